package admin

import (
	"context"
	"fmt"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/client"
	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/history"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
)

// History is what is known about who held a lock.
type History struct {
	api.History
	// Asked is the URL of the daemon that was asked how the periods ended; empty if none was.
	Asked string `json:"-"`
}

// History reads who held a lock. The name must be valid, as ParseName returns it. The error is
// ErrNoLock if nobody held it as far as etcd still knows.
func (a *Admin) History(ctx context.Context, name string, b lockstore.Bounds) (History, error) {
	audit := a.config.AuditKeys()
	r := history.Reader{
		Store: a.store, AuditPrefix: audit,
		ExplainAudit: func(err error) error { return a.failedOn(ctx, err, etcd.Read, audit) },
	}
	h, err := r.Read(ctx, name, b)
	switch {
	case err != nil:
		return History{}, a.failed(ctx, err, etcd.Read)
	case len(h.Periods) > 0:
		return History{History: h}, nil
	case h.Truncated:
		return History{}, fmt.Errorf("nobody held lock %s under %s since revision %d: %w: --timeout ends before older revisions are read",
			quoted(name), a.config.Prefix, h.FromRevision, ErrNoLock)
	case h.Compacted:
		return History{}, fmt.Errorf("nobody held lock %s under %s since revision %d: %w: etcd has nothing older, it was compacted",
			quoted(name), a.config.Prefix, h.FromRevision, ErrNoLock)
	}
	return History{}, fmt.Errorf("nobody ever held lock %s under %s: %w", quoted(name), a.config.Prefix, ErrNoLock)
}

// maxForced is the maximum number of forced unlocks that a daemon is asked for.
const maxForced = 1000

// Explain adds what a daemon knows about the ends of the periods. On error they are as they were.
func (h *History) Explain(ctx context.Context, from client.Daemon) error {
	forced, err := from.Forced(ctx, h.Name, maxForced)
	if err != nil {
		return ofDaemon(from, err)
	}
	h.Asked = from.URL
	history.AddForced(&h.History, forced)
	return nil
}
