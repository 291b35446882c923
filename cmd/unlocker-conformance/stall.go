package main

import (
	"context"
	"fmt"
	"time"
)

const (
	// tolerable is how long a machine may stall during a check that convicts a client.
	tolerable = 250 * time.Millisecond
	// tries is how often a check runs on a machine that stalls each time.
	tries = 3
)

// meter measures how long this machine stalled, until the function that it returns is called.
type meter func() (stop func() time.Duration)

// try runs a check and returns why the client failed it. If the machine stalled meanwhile,
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
			return fmt.Errorf("%w\nthe machine stalled for %v meanwhile: this may be its fault", err, stood)
		}
		log(fmt.Sprintf("the machine stalled for %v, and the check failed; again: %v", stood, err))
	}
}

// timerLag is a meter. A timer that is late shows it.
func timerLag() (stop func() time.Duration) {
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
