package app

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/records"
	"github.com/etcd-unlocker/unlocker/internal/web"
)

// unlocker removes locks for people who ask the API. It implements web.Unlocker.
type unlocker struct {
	manual records.Unlocker
	host   string
}

// newUnlocker returns nil unless the configuration allows unlocks.
func (a *App) newUnlocker(store lockstore.Store) (web.Unlocker, error) {
	if !a.config.Web.AllowUnlock {
		return nil, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("web.allow_unlock: %w", err)
	}
	return unlocker{records.Unlocker{Config: a.config, Client: a.client, Store: store, Now: time.Now}, host}, nil
}

// User implements web.Unlocker.
func (u unlocker) User(r *http.Request) (string, error) {
	name, err := records.UserOf(r, u.manual.Config.Web)
	return name + "@" + u.host, err
}

// Unlock implements web.Unlocker. Nothing is removed without a record.
func (u unlocker) Unlock(ctx context.Context, name string, what api.Unlock, who string) (api.Forced, error) {
	refused, err := u.manual.TryRecord(ctx, name)
	if refused != nil {
		err = fmt.Errorf("nothing was removed, as no record can be left: %w; the command unlocker unlock can do without one", refused)
	}
	if err != nil {
		return api.Forced{}, err
	}
	removed, now, err := u.manual.Unlock(ctx, records.Request{Name: name, UUID: what.UUID, Who: who, Reason: what.Reason}, true)
	switch {
	case errors.Is(err, lockstore.ErrNoLock):
		err = web.ErrNoLock
	case errors.Is(err, lockstore.ErrOtherUUID):
		err = &web.Conflict{Err: fmt.Errorf("nothing was removed: %w, since revision %d", err, now.Token)}
	case errors.Is(err, lockstore.ErrAmbiguous):
		err = &web.Ambiguous{Err: err}
	case errors.Is(err, lockstore.ErrNoUUID), errors.Is(err, lockstore.ErrUnsteady), errors.Is(err, lockstore.ErrTooLarge):
		err = &web.Conflict{Err: fmt.Errorf("nothing was removed: %w", err)}
	}
	return removed, err
}
