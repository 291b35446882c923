package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sync/errgroup"
)

// options are what the command line says.
type options struct {
	once, verbose, colour bool
	out, log              io.Writer
}

var (
	errNotTrue     = errors.New("the story did not come true")
	errInterrupted = errors.New("interrupted before the end of the story")
)

const (
	// storyTime bounds the story; usually it takes half of that.
	storyTime = 28 * time.Second
	// lull lets the last things be told that belong to the story.
	lull = 3 * scrapeEvery
	// patience is for a last line on an output that nobody reads.
	patience = 500 * time.Millisecond
)

// event is something that was seen; it tells itself to the narrator.
type event interface{ tell(n *narrator) }

// post hands an event to the narrator, who may be gone at the end.
type post func(event)

// perform plays the demo until ctx is done or, with once, until the story is
// told. Nothing is left running or lying about when it returns.
func perform(ctx context.Context, o options) error {
	events := make(chan event)
	n := newNarrator(o, time.Now())
	n.legend()
	playing, end := context.WithCancel(ctx)
	defer end()
	told := make(chan struct{})
	go func() {
		defer close(told)
		defer end()
		n.run(playing, events)
	}()

	err := play(playing, func(e event) {
		select {
		case events <- e:
		case <-playing.Done():
		}
	})
	end()
	select {
	case <-told:
	case <-time.After(patience):
		// Nobody reads: the narrator is stuck with a line, and left so.
		if err == nil && o.once {
			err = errInterrupted
		}
		return err
	}
	return n.close(err)
}

// play sets the stage and lets all play on it until ctx is done.
func play(ctx context.Context, p post) (err error) {
	s := &stage{}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.build(ctx, tap(p)); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	players, ctx := errgroup.WithContext(ctx)
	start := func(who string, do func(context.Context) error) {
		players.Go(func() error {
			if err := do(ctx); err != nil && ctx.Err() == nil {
				return fmt.Errorf("%s: %w", who, err)
			}
			return nil
		})
	}
	// The daemon's own end is a matter of its own: it is to be clean.
	players.Go(func() error { return s.app.Run(ctx) })
	start("cast", func(ctx context.Context) error {
		if err := awaitReady(ctx, s.places().ops); err != nil {
			return err
		}
		p(s.places())
		start("metrics", func(ctx context.Context) error { return scrape(ctx, s.places().ops, p) })
		start("etcd", func(ctx context.Context) error { return observe(ctx, s.client, s.layout, p) })
		c := cast{client: s.client, layout: s.layout, post: p}
		for who, part := range c.parts() {
			start(who, func(ctx context.Context) error { return c.play(ctx, who, part) })
		}
		return nil
	})
	return players.Wait()
}

// pause waits; it fails when ctx is done first.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
