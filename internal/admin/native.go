package admin

import (
	"context"
	"errors"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/native"
)

// maxNative is the maximum number of keys whose values and leases Native reads, the holders first.
const maxNative = 10_000

// nativeLimits are those of what Native reads and returns of each prefix.
func nativeLimits() native.Limits {
	return native.Limits{Keys: 200_000, Locks: maxNative, Waiters: 1000}
}

// ErrNoNativePrefixes is the error of Native if there is nothing to list.
var ErrNoNativePrefixes = errors.New("native_prefixes is empty: --native needs them, for example --native-prefixes /locks/")

// Native lists the locks and elections of etcd's own clients. If a prefix cannot be listed, it
// returns the others and an error.
func (a *Admin) Native(ctx context.Context) (api.NativeList, error) {
	if len(a.config.NativePrefixes) == 0 {
		return api.NativeList{}, ErrNoNativePrefixes
	}
	var prefixes []api.NativePrefix
	var listings []native.Listing
	var errs []error
	unseen := func(string, native.Key, time.Time) time.Time { return time.Time{} }
	for _, prefix := range a.config.NativePrefixes {
		listing, err := native.List(ctx, a.client, prefix, a.config.Etcd.RequestTimeout, nativeLimits(), unseen)
		if err != nil {
			errs = append(errs, a.failedOn(ctx, err, etcd.Read, prefix))
			continue
		}
		prefixes, listings = append(prefixes, api.NativePrefix{Prefix: prefix, Holders: []api.NativeHolder{}}), append(listings, listing)
	}
	limited, cancel := context.WithTimeout(ctx, a.config.Etcd.RequestTimeout)
	defer cancel()
	native.Describe(limited, a.client.Client, maxNative, prefixes, listings)
	return api.NativeList{Prefixes: prefixes}, errors.Join(errs...)
}
