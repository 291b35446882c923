package app

import (
	"context"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/history"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/web"
)

// Limits of a history in the API.
const (
	historyPeriods  = 50
	historyRenewals = 20
	historyTime     = 5 * time.Second
	// historyWait is how long a request waits for that of another.
	historyWait = 2 * time.Second
	// historyForced is the maximum number of forced unlocks that are compared with the periods.
	historyForced = 1000
)

// History implements web.Source. It reads one history at a time, for three quarters of the time that
// ctx has, and then returns what it has.
func (v view) History(ctx context.Context, name string) (api.History, error) {
	select {
	case v.histories <- struct{}{}:
		defer func() { <-v.histories }()
	case <-time.After(historyWait):
		return api.History{}, web.ErrBusy
	case <-ctx.Done():
		return api.History{}, ctx.Err()
	}
	audit := v.app.config.AuditKeys()
	r := history.Reader{
		Store: v.store, AuditPrefix: audit,
		ExplainAudit: func(err error) error { return v.app.client.Explain(err, etcd.Read, audit) },
	}
	bounds := lockstore.Bounds{Periods: historyPeriods, Renewals: historyRenewals, Time: historyTime}
	if end, limited := ctx.Deadline(); limited {
		bounds.Time = min(bounds.Time, time.Until(end)*3/4)
	}
	h, err := r.Read(ctx, name, bounds)
	if err != nil {
		return api.History{}, err
	}
	history.AddForced(&h, v.Forced(name, historyForced))
	return h, nil
}
