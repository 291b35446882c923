package app

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/etcd-unlocker/unlocker/internal/admin"
	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/pause"
	"github.com/etcd-unlocker/unlocker/internal/records"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/internal/web"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Limits of what the daemon takes from audit_prefix, where any client with the right may
// write. It writes no records beyond maxRecords, some hundred megabytes at most.
const maxRecords = 50_000

func (a *App) newRecords() (err error) {
	allowed, levels := rate.NewLimiter(records.PerSecond, records.Burst), etcd.Levels{}
	follow := a.follow(a.config.AuditKeys())
	follow.MaxKeys, follow.MaxSize = maxRecords, records.MaxBytes+1 // one more, so that Parse refuses what is cut
	follow.On = func(e etcd.Event) { a.record(e, allowed, &levels) }
	a.records, err = etcd.NewFollower(follow)
	return err
}

// record passes a record of a removal to the reaper. allowed limits how many of what users do are logged; levels are those
// of the messages about records that are not used, or not logged.
func (a *App) record(e etcd.Event, allowed *rate.Limiter, levels *etcd.Levels) {
	if e.Deleted { // by its lease
		name, _, _ := strings.Cut(e.Key, "//")
		a.reaper.RecordGone(name)
		return
	}
	prefix, rec, err := records.Parse(e.Value, e.Revision)
	if err != nil {
		a.logger.Log(context.Background(), levels.Of(api.LogBadRecord), api.LogBadRecord, "key", a.config.AuditKeys()+protocol.Clip([]byte(e.Key), records.MaxText), "error", err)
		return
	}
	if prefix != a.config.Prefix {
		return
	}
	logged := e.First || rec.Trigger != verdict.Manual && rec.Who == "" || allowed.Allow()
	if !logged {
		a.logger.Log(context.Background(), levels.Of(api.LogManyUnlocks), api.LogManyUnlocks)
	}
	if !a.reaper.Recorded(context.Background(), rec, e.First, logged) || e.First {
		return
	}
	if rec.Who != "" && logged {
		a.logger.Info(api.LogBrakeEnds, "lock", rec.Name, "who", rec.Who, "reason", rec.Reason)
	}
	_ = a.table.Resume(context.Background()) // the only error is that the table has stopped
}

// unlocker removes locks for people who ask the API. It implements web.Unlocker.
type unlocker struct {
	manual records.Unlocker
	host   string
	locks  func(context.Context, api.Query) (api.LockPage, error)
	admin  *admin.Admin
}

// newUnlocker returns nil unless the configuration allows unlocks.
func (a *App) newUnlocker(v view) web.Unlocker {
	if !a.config.Web.AllowUnlock {
		return nil
	}
	return unlocker{records.NewUnlocker(a.config, a.client, v.store), a.host, v.Locks, admin.On(a.client, a.layout, a.config, a.logger)}
}

func (u unlocker) User(r *http.Request) (string, error) {
	name, err := records.UserOf(r, u.manual.Config.Web)
	return name + "@" + u.host, err
}

func (u unlocker) Ask(ctx context.Context, name, who string) error {
	err := u.manual.Ask(ctx, name, who)
	switch {
	case errors.Is(err, lockstore.ErrNoLock):
		return web.ErrNoLock
	case errors.Is(err, lockstore.ErrNoUUID), errors.Is(err, records.ErrReleased):
		return &web.Error{Status: http.StatusConflict, Err: err}
	case errors.As(err, new(*records.NoAnswer)):
		return &web.Error{Status: http.StatusGatewayTimeout, Err: err}
	}
	return u.manual.Client.Explain(err, etcd.ReadWrite, u.manual.Config.AskKeys())
}

func (u unlocker) Pause(ctx context.Context, what api.PauseRequest, who string) (api.Pause, error) {
	var lasts time.Duration
	err := config.Duration(&lasts).Set(what.For)
	if err == nil {
		err = admin.ValidatePause(what.Match, lasts, what.Reason)
	}
	if err != nil {
		return api.Pause{}, &web.Error{Status: http.StatusBadRequest, Err: errors.New(strings.TrimPrefix(err.Error(), "--"))}
	}
	return u.admin.Pause(ctx, who, what.Match, lasts, what.Reason)
}

func (u unlocker) Resume(ctx context.Context, match string) (api.Pause, error) {
	ended, _, err := u.admin.Resume(ctx, match, true)
	if errors.Is(err, admin.ErrNoPause) {
		err = &web.Error{Status: http.StatusNotFound, Err: err}
	}
	return ended, err
}

// recordable returns an error if no record of the unlock of a lock can be left: without one, nothing is removed.
func (u unlocker) recordable(ctx context.Context, name string) error {
	refused, err := u.manual.TryRecord(ctx, name)
	if refused != nil {
		err = fmt.Errorf("nothing was removed, as no record can be left: %w; the command unlocker unlock can do without one", refused)
	}
	return err
}

func (u unlocker) Select(ctx context.Context, what api.UnlockMany) (api.Selection, error) {
	if err := pause.CheckMatch(what.Match); err != nil {
		return api.Selection{}, &web.Error{Status: http.StatusBadRequest, Err: fmt.Errorf("match: %w", err)}
	}
	var all []api.Lock // which the answer has whole
	q := api.Query{Match: what.Match, Silent: what.Silent, Limit: 1000}
	for range 16 { // pages
		page, err := u.locks(ctx, q)
		if err != nil {
			return api.Selection{}, err
		}
		all = append(all, page.Locks...)
		if q.After = page.Next; q.After == "" {
			return records.Select(slices.Values(all), what.Silent), nil
		}
	}
	return api.Selection{}, &web.Error{Status: http.StatusBadRequest, Err: errors.New("match: selects more locks than fit into an answer: narrow it")}
}

func (u unlocker) UnlockMany(ctx context.Context, what api.UnlockMany, who string, report func(api.Unlocked)) error {
	selected, err := u.Select(ctx, what)
	if err != nil {
		return err
	}
	if selected.Digest != what.Digest {
		return &web.Error{Status: http.StatusConflict, Err: errors.New("nothing was removed: the digest is of other locks, or some were taken again: select them again")}
	}
	if err := u.recordable(ctx, selected.Locks[0].Name); err != nil { // there is one, as there is a digest
		return err
	}
	report(u.manual.UnlockSelected(ctx, selected.Locks, what, who, true, report))
	return nil
}

func (u unlocker) Unlock(ctx context.Context, name string, what api.Unlock, who string) (api.Forced, error) {
	if err := u.recordable(ctx, name); err != nil {
		return api.Forced{}, err
	}
	removed, now, err := u.manual.Unlock(ctx, name, what, who, true)
	switch {
	case errors.Is(err, lockstore.ErrNoLock):
		err = web.ErrNoLock
	case errors.Is(err, lockstore.ErrOtherUUID):
		err = &web.Error{Status: http.StatusConflict, Err: fmt.Errorf("nothing was removed: %w, since revision %d", err, now.Token)}
	case errors.Is(err, lockstore.ErrAmbiguous):
		err = &web.Error{Status: http.StatusGatewayTimeout, Err: err}
	case errors.Is(err, lockstore.ErrNoUUID), errors.Is(err, lockstore.ErrUnsteady), errors.Is(err, lockstore.ErrTooLarge):
		err = &web.Error{Status: http.StatusConflict, Err: fmt.Errorf("nothing was removed: %w", err)}
	}
	return removed, err
}
