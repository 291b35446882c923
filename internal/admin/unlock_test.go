package admin_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/admin"
	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/records"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

func TestUnlock(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Set("a", "hostname", "worker-0", "left", "x")
	w.take("a", time.Hour, time.Hour)
	w.Set("a", "backtrace", "main.go:1\n", "ticket", "OPS-1")
	w.take("a/b", time.Hour, time.Hour)
	w.native("a")
	asked := 0
	removed, err := w.Unlock(t.Context(), "a", "u-a", "", func(d admin.Detail, _ error) error {
		asked++
		require.Equal(t, "billing", d.Owner)
		require.Len(t, d.Fields, 9)
		w.Set("a", "alive_at", in(0), "auto_unlock_at", in(2*time.Hour)) // it is alive
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, 1, asked)
	require.Len(t, w.Keys(""), 7)
	require.Contains(t, w.Keys(""), "a/694d")
	resp, err := w.Client.Get(t.Context(), "x")
	require.NoError(t, err)
	require.Equal(t, resp.Header.Revision, removed.Revision)
	require.WithinDuration(t, time.Now(), removed.At, time.Minute)
	require.Len(t, removed.Fields, 10, "what was removed, not what was shown")
	require.Contains(t, removed.Fields, api.Field{Name: "backtrace", Value: "main.go:1\n"})
	removed.Fields, removed.At = nil, time.Time{}
	require.Equal(t, api.Forced{Name: "a", UUID: "u-a", Token: removed.Token, Hostname: "worker-1", Owner: "billing", Trigger: "manual", Revision: removed.Revision, Who: admin.Who()}, removed)
}

// records returns the records of unlocks.
func (w *world) records() (all []*mvccpb.KeyValue) {
	w.t.Helper()
	resp, err := w.Client.Get(w.t.Context(), "/unlocker/audit/mutexes/", clientv3.WithPrefix())
	require.NoError(w.t, err)
	return resp.Kvs
}

// leases returns the number of leases.
func (w *world) leases() int {
	w.t.Helper()
	resp, err := w.Client.Leases(w.t.Context())
	require.NoError(w.t, err)
	return len(resp.Leases)
}

// A person may read and write some locks, and write records.
func TestS7_UnlockLeavesARecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.take("a", time.Hour, time.Hour)
	w.Set("a", "backtrace", strings.Repeat("frame\n", 100_000))
	w.guarded("/mutexes/a/")
	const prefix = "/unlocker/audit/mutexes/"
	_, err := w.Client.RoleGrantPermission(t.Context(), "ops", prefix, clientv3.GetPrefixRangeEnd(prefix), clientv3.PermissionType(clientv3.PermWrite))
	require.NoError(t, err)
	var unasked error
	removed, err := w.Unlock(t.Context(), "a", "u-a", "OPS-1: worker-1 was replaced", func(_ admin.Detail, unrecorded error) error {
		unasked = unrecorded
		require.Empty(t, w.records(), "that it can be written is tried without writing it")
		return nil
	})
	require.NoError(t, errors.Join(err, unasked))
	found := w.records()
	require.Len(t, found, 1)
	require.Equal(t, fmt.Sprintf("/unlocker/audit/mutexes/a//%d", removed.Token), string(found[0].Key))
	require.Equal(t, removed.Revision, found[0].ModRevision, "in the transaction that deletes the lock")
	require.Less(t, len(found[0].Value), records.MaxBytes)
	left, err := w.Client.TimeToLive(t.Context(), clientv3.LeaseID(found[0].Lease))
	require.NoError(t, err)
	require.EqualValues(t, 25*3600, left.GrantedTTL, "as long as the records before it, whose count it ends")
	of, r, err := records.Parse(found[0].Value, found[0].ModRevision)
	require.NoError(t, err)
	require.Equal(t, "/mutexes/", of)
	require.WithinDuration(t, time.Now(), r.At, time.Minute)
	require.Len(t, r.Fields, 7)
	require.Contains(t, admin.Who(), "@")
	r.At, r.Fields = time.Time{}, nil
	require.Equal(t, api.Forced{
		Name: "a", UUID: "u-a", Token: removed.Token, Hostname: "worker-1", Owner: "billing", Trigger: verdict.Manual, By: api.Other,
		Who: admin.Who(), Reason: "OPS-1: worker-1 was replaced", Revision: removed.Revision,
	}, r)
}

// guarded makes the Admin that of a user with readwrite on the prefix only.
func (w *world) guarded(prefix string) {
	w.t.Helper()
	w.Guard("ops", "pw", prefix)
	w.Admin = open(w.t, func(c *config.Config) {
		c.Etcd.Endpoints, c.Etcd.Username, c.Etcd.Password = w.Endpoints(), "ops", config.NewSecret("pw")
	})
}

// A person who may not write the record can unlock without it.
func TestUnlockWithoutTheRightToRecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.take("a", time.Hour, time.Hour)
	w.guarded("/mutexes/")
	w.requireUnrecorded(`etcdserver: permission denied: user "ops" needs write on [/unlocker/audit/mutexes/, /unlocker/audit/mutexes0) (prefix /unlocker/audit/mutexes/)`)
}

// requireUnrecorded unlocks a lock of which no record can be left.
func (w *world) requireUnrecorded(why string) {
	w.t.Helper()
	no := errors.New("no")
	confirm := func(_ admin.Detail, unrecorded error) error {
		require.EqualError(w.t, unrecorded, why)
		return no
	}
	_, err := w.Unlock(w.t.Context(), "a", "u-a", "why", confirm)
	require.ErrorIs(w.t, err, no)
	require.Len(w.t, w.Keys(""), 6)
	no = nil
	_, err = w.Unlock(w.t.Context(), "a", "u-a", "why", confirm)
	require.NoError(w.t, err)
	require.Empty(w.t, w.Keys(""))
	require.Empty(w.t, w.records())
	require.Zero(w.t, w.leases())
}

func TestUnlockEndsWithANo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.take("a", time.Hour, time.Hour)
	no := errors.New("no")
	_, err := w.Unlock(t.Context(), "a", "u-a", "", func(admin.Detail, error) error { return no })
	require.ErrorIs(t, err, no)
	require.Len(t, w.Keys(""), 6)
}

// Nobody is asked if the removal cannot succeed.
func TestUnlockOfWhatCannotBe(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.take("a", time.Hour, time.Hour)
	w.Set("orphan", "alert_at", in(0))
	_, err := w.Unlock(t.Context(), "none", "u", "", unasked(t))
	require.EqualError(t, err, `no lock "none" under /mutexes/`)
	_, err = w.Unlock(t.Context(), "orphan", "u", "", unasked(t))
	require.ErrorIs(t, err, lockstore.ErrNoUUID)
	require.ErrorContains(t, err, `"orphan"`)
	for _, uuid := range []string{"", "u-b", "U-a"} {
		_, err = w.Unlock(t.Context(), "a", uuid, "", unasked(t))
		require.EqualError(t, err, `lock "a" is held under another uuid: nothing was removed`)
		other := (*admin.OtherHolder)(nil)
		require.ErrorAs(t, err, &other)
		require.Equal(t, "u-a", other.Lock.UUID)
	}
	require.Len(t, w.Keys(""), 7)
}

// The lock changes while a person decides.
func TestUnlockIsOvertaken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.take("a", time.Hour, time.Hour)
	_, err := w.Unlock(t.Context(), "a", "u-a", "", func(admin.Detail, error) error {
		w.Set("a", "uuid", "next", "owner", "next")
		return nil
	})
	other := (*admin.OtherHolder)(nil)
	require.ErrorAs(t, err, &other)
	require.Equal(t, "next", other.Lock.UUID)
	require.Equal(t, "next", other.Lock.Owner)
	require.Len(t, other.Lock.Fields, 6)
	require.Len(t, w.Keys(""), 6)

	_, err = w.Unlock(t.Context(), "a", "next", "", func(admin.Detail, error) error {
		_, err := w.Client.Delete(t.Context(), "/mutexes/a/", clientv3.WithPrefix())
		return err
	})
	require.EqualError(t, err, `no lock "a" under /mutexes/: it was released or removed meanwhile`)
	require.Empty(t, w.records(), "of what was not removed")
	require.Zero(t, w.leases())
}

func TestUnlockOfOddUUIDs(t *testing.T) {
	t.Parallel()
	for _, uuid := range []string{"", strings.Repeat("u", 300), "\xff\x00", "a\nb"} {
		w := newWorld(t)
		w.Set("a", "uuid", uuid)
		_, err := w.Unlock(t.Context(), "a", uuid+"x", "", yes)
		require.ErrorIs(t, err, lockstore.ErrOtherUUID, uuid)
		_, err = w.Unlock(t.Context(), "a", uuid, "", yes)
		require.NoError(t, err, uuid)
		require.Empty(t, w.Keys(""))
	}
}

func TestUnlockAtFullQuota(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{QuotaBackendBytes: 2 << 20})
	w := &world{open(t, func(c *config.Config) { c.Etcd.Endpoints = e.Endpoints() }), e, t}
	w.take("a", time.Hour, time.Hour)
	w.Fill()
	w.requireUnrecorded("etcdserver: mvcc: database space exceeded")
}

// proxied is a world whose Admin connects through a proxy, with a short timeout.
func proxied(t *testing.T) (*world, *localetcd.Proxy) {
	t.Helper()
	w := newWorld(t)
	p := w.Proxy(0)
	w.Admin = open(t, func(c *config.Config) {
		c.Etcd.Endpoints = []string{p.Addr()}
		c.Etcd.RequestTimeout = 500 * time.Millisecond
	})
	return w, p
}

func TestUnlockWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	w, p := proxied(t)
	w.take("a", time.Hour, time.Hour)
	_, err := w.Unlock(t.Context(), "a", "u-a", "", func(admin.Detail, error) error { p.Blackhole(); return nil })
	require.Error(t, err, "the read hangs: nothing was sent")
	require.NotErrorIs(t, err, lockstore.ErrAmbiguous)
	require.NoError(t, p.Heal())
	require.Len(t, w.Keys(""), 6)
}

// everything is each thing that needs etcd.
func everything(ctx context.Context, a *admin.Admin) map[string]error {
	_, list := a.List(ctx, admin.Filter{})
	_, show := a.Show(ctx, "a")
	_, unlock := a.Unlock(ctx, "a", "u-a", "", yes)
	return map[string]error{"list": list, "show": show, "unlock": unlock}
}

func TestNoEtcdIsOneLine(t *testing.T) {
	t.Parallel()
	a := open(t, func(c *config.Config) {
		c.Etcd.Endpoints, c.Etcd.DialTimeout, c.Etcd.RequestTimeout = []string{"127.0.0.1:1", "127.0.0.1:2"}, time.Minute, time.Minute
	})
	began := time.Now()
	for what, err := range everything(t.Context(), a) {
		require.ErrorContains(t, err, "etcd at 127.0.0.1:1, 127.0.0.1:2: no connection: dial tcp 127.0.0.1:", what)
		require.ErrorContains(t, err, "refused", what)
		require.NotContains(t, err.Error(), "\n")
		require.Less(t, len(err.Error()), 150, err.Error())
	}
	require.Less(t, time.Since(began), etcdtest.Soon, "half of the timeouts")
}

func TestHangingEtcdIsOneLine(t *testing.T) {
	t.Parallel()
	w, p := proxied(t)
	w.take("a", time.Hour, time.Hour)
	etcdtest.Eventually(t, func() bool { _, err := w.Show(t.Context(), "a"); return err == nil })
	p.Blackhole()
	began := time.Now()
	for what, err := range everything(t.Context(), w.Admin) {
		require.EqualError(t, err, "etcd at "+p.Addr()+" does not answer within 500ms", what)
	}
	require.Less(t, time.Since(began), etcdtest.Soon)
	require.NoError(t, p.Heal())
}

func TestInterrupted(t *testing.T) {
	t.Parallel()
	w, p := proxied(t)
	p.Blackhole()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for what, err := range everything(ctx, w.Admin) {
		require.ErrorIs(t, err, admin.ErrInterrupted, what)
	}
	require.NoError(t, p.Heal())
}

// A role that does not cover the prefix is named by the error.
func TestPermissionDenied(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Guard("ops", "pw")
	a := open(t, func(c *config.Config) {
		c.Etcd.Endpoints, c.Etcd.Username, c.Etcd.Password = w.Endpoints(), "ops", config.NewSecret("pw")
	})
	for what, err := range everything(t.Context(), a) {
		require.ErrorContains(t, err, "permission denied", what)
		require.ErrorContains(t, err, "etcd at ", what)
		require.ErrorContains(t, err, `user "ops" needs read on [/mutexes/, /mutexes0)`, what)
		require.NotContains(t, err.Error(), "\n")
	}
	w.take("a", time.Hour, time.Hour)
	_, err := w.Client.RoleGrantPermission(t.Context(), "ops", "/mutexes/", "/mutexes0", clientv3.PermissionType(clientv3.PermRead))
	require.NoError(t, err)
	failed := everything(t.Context(), a)
	require.NoError(t, errors.Join(failed["list"], failed["show"]))
	require.ErrorContains(t, failed["unlock"], `user "ops" needs readwrite on [/mutexes/, /mutexes0)`)
}
