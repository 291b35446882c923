package app

import (
	"context"
	"errors"
	"time"

	"golang.org/x/time/rate"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/records"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Limits of what the daemon takes from audit_prefix, where any client with the right may
// write. A day of manual unlocks is far less.
const (
	maxRecords       = 10_000
	recordsPerSecond = 100
	recordsBurst     = 1000
)

// recordFeed passes the records of manual unlocks to the reaper. Only its Follower uses it.
type recordFeed struct {
	app     *App
	allowed *rate.Limiter
	// warn limits the warnings about records that are not used.
	warn *rate.Limiter
}

func (a *App) newRecords() (err error) {
	r := recordFeed{a, rate.NewLimiter(recordsPerSecond, recordsBurst), rate.NewLimiter(rate.Every(time.Minute), 1)}
	prefix := a.config.AuditKeys()
	a.records, err = etcd.NewFollower(etcd.FollowerOptions{
		Client:         a.client.Client,
		Prefix:         prefix,
		RequestTimeout: a.config.Etcd.RequestTimeout,
		Freshness:      a.config.Reaper.Freshness,
		MaxKeys:        maxRecords,
		MaxSize:        records.MaxBytes + 1, // so that Parse refuses what is cut
		On:             r.on,
		Explain:        func(err error) error { return a.client.Explain(err, etcd.Read, prefix) },
		Logger:         a.logger,
	})
	return err
}

func (r *recordFeed) on(e etcd.Event) {
	if e.Deleted {
		return // by its lease
	}
	rec, err := records.Parse(e.Value)
	if err == nil && !e.First && !r.allowed.Allow() {
		err = errors.New("too many at a time")
	}
	switch {
	case err != nil && r.warn.Allow():
		r.app.logger.Warn(api.LogBadRecord, "key", r.app.config.AuditKeys()+protocol.Clip([]byte(e.Key), records.MaxText), "error", err)
	case err == nil && rec.Prefix == r.app.config.Prefix:
		rec.Revision = e.Revision // of the transaction that removed the lock
		r.app.reaper.Manual(context.Background(), rec.Forced, e.First)
	}
}
