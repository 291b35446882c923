package main

import (
	"context"
	"fmt"
	"time"
)

const (
	// tolerable is how long a machine may stand still during a check that convicts a client.
	tolerable = 250 * time.Millisecond
	// tries is how often a check runs on a machine that stands still each time.
	tries = 3
)

// meter measures how long this machine stood still, until the function that it returns is called.
type meter func() (stop func() time.Duration)

// try runs a check and returns why the client failed it. If the machine stood still meanwhile,
// that may be the reason, and the check runs again.
func (m meter) try(ctx context.Context, c check, argv []string, log func(string)) error {
	for n := 1; ; n++ {
		stop := m()
		err := try(ctx, c, argv, log)
		stood := stop()
		if err == nil || ctx.Err() != nil || stood < tolerable {
			return err
		}
		stood = stood.Round(time.Millisecond)
		if n == tries {
			return fmt.Errorf("%w\nthe machine stood still for %v meanwhile: this may be its fault", err, stood)
		}
		log(fmt.Sprintf("the machine stood still for %v, and the check failed; again: %v", stood, err))
	}
}

// standstill is a meter. A timer that is late shows it.
func standstill() (stop func() time.Duration) {
	const interval = 20 * time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	longest := make(chan time.Duration)
	go func() {
		stood := time.Duration(0)
		for ctx.Err() == nil {
			began := time.Now()
			<-time.After(interval)
			stood = max(stood, time.Since(began)-interval)
		}
		longest <- stood
	}()
	return func() time.Duration {
		cancel()
		return <-longest
	}
}
