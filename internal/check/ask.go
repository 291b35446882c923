package check

import (
	"context"

	"github.com/etcd-unlocker/unlocker/internal/client"
)

// Ask queries all daemons of a client concurrently for what the rules need. It returns
// one Answer for each URL, with an error if the daemon did not answer within the timeout
// or before ctx was done.
func Ask(ctx context.Context, c *client.Client, rules Rules) []Answer {
	answers := make([]Answer, c.Len())
	c.Each(ctx, func(ctx context.Context, i int, d client.Daemon) {
		answers[i] = Answer{URL: d.URL}
		answers[i].Err = query(ctx, d, rules, &answers[i])
	})
	return answers
}

func query(ctx context.Context, d client.Daemon, rules Rules, a *Answer) (err error) {
	if a.Status, err = d.Status(ctx); err != nil {
		return err
	}
	if err := fetch(ctx, d, rules.Lock, a); err != nil || rules.Forced == 0 {
		return err
	}
	a.Forced, err = d.Forced(ctx, "", 500)
	return err
}

// fetch queries the one lock to check, or the locks to name in the output.
func fetch(ctx context.Context, d client.Daemon, name string, a *Answer) error {
	switch {
	case name == "":
		return locks(ctx, d, a)
	case a.blind() == "": // the daemon reads the lock from etcd
		detail, err := d.Lock(ctx, name)
		if detail != nil {
			a.Lock = &detail.Lock
		}
		return err
	}
	return nil
}

// locks queries the locks to name in the output, if there are any.
func locks(ctx context.Context, d client.Daemon, a *Answer) error {
	for _, states := range [][]string{{overdue, expired}, {undated, malformed}} {
		if a.Status.Locks[states[0]]+a.Status.Locks[states[1]] == 0 {
			continue
		}
		page, err := d.Locks(ctx, states, 200, "")
		if err != nil {
			return err
		}
		a.Locks = append(a.Locks, page.Locks...)
	}
	return nil
}
