package app

import (
	"context"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/native"
)

// nativeInterval is the minimum time between two listings of the native prefixes.
const nativeInterval = 5 * time.Second

// nativeLimits bound what the daemon reads and keeps of each native prefix.
func nativeLimits() native.Limits { return native.Limits{Keys: 200_000, Locks: 200, Waiters: 50} }

func (a *App) newNative() (err error) {
	a.native, err = native.New(native.Options{
		Client:         a.client.Client,
		Prefixes:       a.config.NativePrefixes,
		RequestTimeout: a.config.Etcd.RequestTimeout,
		Interval:       nativeInterval,
		Limits:         nativeLimits(),
		Explain:        func(err error, prefix string) error { return a.client.Explain(err, etcd.Read, prefix) },
		Logger:         a.logger,
	})
	return err
}

// Native implements web.Source.
func (v view) Native(ctx context.Context) (api.NativeList, error) { return v.app.native.View(ctx) }
