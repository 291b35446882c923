package app

import (
	"context"
	"fmt"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

const (
	// waitingInterval is how often the log says what locks past their deadline wait for.
	waitingInterval = 10 * time.Second
	// maxWaiting is how many locks it names at a time, of the first maxLooked of those.
	maxWaiting, maxLooked = 20, 1000
)

// logWaiting logs for locks past their deadline what they wait for, each again only when
// that has changed.
func (a *App) logWaiting(ctx context.Context) error {
	tick := time.NewTicker(waitingInterval)
	defer tick.Stop()
	for said := map[string]string{}; ; {
		select {
		case <-tick.C:
			said = a.sayWaiting(ctx, said)
		case <-ctx.Done():
			return nil
		}
	}
}

// sayWaiting returns why each lock waits that it named now or before.
func (a *App) sayWaiting(ctx context.Context, said map[string]string) map[string]string {
	stats, err := a.table.Stats(ctx, 0)
	expired := stats.Locks[protocol.Expired]
	if err != nil || expired == 0 {
		return nil
	}
	page, err := a.table.Page(ctx, table.Query{States: []protocol.State{protocol.Expired}, Limit: maxLooked})
	if err != nil {
		return nil // the table has stopped
	}
	waiting, now, h := make(map[string]string, len(page.Items)), time.Now(), a.holding()
	named := 0
	for i := range page.Items {
		it := &page.Items[i]
		if now.Add(a.ahead(it)).Sub(it.AutoUnlockAt().Time()) < lingering {
			continue
		}
		v := a.reaper.Verdict(*it)
		why := fmt.Sprint(it.Token, it.Revision, v.Action, v.Mode, v.Reason, h.words)
		if said[it.Name] == why {
			waiting[it.Name] = why
		} else if named++; named <= maxWaiting {
			waiting[it.Name] = why
			a.logger.Info(api.LogWaiting, "lock", protocol.Clip([]byte(it.Name), lockstore.MaxName), "explanation", h.explain(v), "locks", expired)
		}
	}
	return waiting
}
