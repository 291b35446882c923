package admin_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/admin"
	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
)

func (w *world) show(name string) admin.Detail {
	w.t.Helper()
	d, err := w.Show(w.t.Context(), name)
	require.NoError(w.t, err)
	return d
}

func TestShow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Set("a", "hostname", "worker-0", "purpose", "of an earlier holder", "backtrace", strings.Repeat("x", 40<<10), "locked_at", "soon", "note", "x")
	w.Set("a", "uuid", "u", "owner", "billing", "auto_unlock_at", in(time.Hour), "alive_at", in(0), "backtrace", "main.go:1")
	w.take("a/b", time.Hour, time.Hour)
	d := w.show("a")
	require.Equal(t, "held", d.State)
	require.Equal(t, "u", d.UUID)
	require.Equal(t, "billing", d.Owner)
	require.Empty(t, d.Hostname)
	require.ElementsMatch(t, []string{"hostname", "purpose", "locked_at"}, d.Leftovers)
	require.Len(t, d.Fields, 9)
	require.Equal(t, 9, d.Keys)
	require.Contains(t, d.Fields, api.Field{Name: "backtrace", Value: "main.go:1"})
	require.Contains(t, d.Fields, api.Field{Name: "note", Value: "x"})
	require.WithinDuration(t, time.Now(), d.AliveAt, 2*time.Second)
	require.WithinDuration(t, time.Now(), d.At, time.Minute)
	require.Zero(t, d.MoreFields)
	require.Nil(t, d.Verdict)
	require.True(t, d.Due.IsZero())
}

func TestShowOfManyFields(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Set("a", "uuid", "u")
	for i := range 3 {
		var fields []string
		for j := range 100 {
			fields = append(fields, fmt.Sprintf("k%d-%d", i, j), "x")
		}
		w.Set("a", fields...)
	}
	d := w.show("a")
	require.Equal(t, 301, len(d.Fields)+d.MoreFields)
}

// What is truncated says so, with its size in etcd.
func TestShowMarksWhatIsTruncated(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const limit = 64 << 10
	sizes := map[string]int{"uuid": limit + 1, "backtrace": 3 * limit, "fits": limit, "wide": limit}
	for name, size := range sizes {
		fill := "x"
		if name == "wide" {
			fill, sizes[name] = "é", 2*size
		}
		w.Set("a", name, strings.Repeat(fill, size))
	}
	d := w.show("a")
	require.Len(t, d.Fields, len(sizes))
	for _, f := range d.Fields {
		require.Equal(t, f.Name != "fits", strings.HasSuffix(f.Value, "…"))
		if f.Name == "fits" {
			require.Zero(t, f.TruncatedFrom)
			continue
		}
		require.Equal(t, sizes[f.Name], f.TruncatedFrom, f.Name)
		require.LessOrEqual(t, len(f.Value), limit+len("…"))
	}
	require.Regexp(t, `uuid is "x{64}…": not 1 to 256 bytes`, strings.Join(d.Outlook, " "))
}

// What follows from the lock alone.
func TestOutlook(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.take("x", time.Hour, 2*time.Hour)
	w.take("overdue", -time.Minute, time.Hour)
	w.take("expired", -time.Hour, -time.Minute)
	w.Set("undated", "uuid", "u")
	w.Set("milliseconds", "uuid", "u", "auto_unlock_at", strconv.FormatInt(time.Now().UnixMilli(), 10), "locked_at", "0")
	w.Set("uuid", "uuid", strings.Repeat("u", 300))
	w.Set("stray", "x", "y")
	w.Set("orphan", "alert_at", "1")
	w.Set("left", "locked_at", "nonsense", "auto_unlock_at", "nonsense")
	w.Set("left", "uuid", "u")
	lease, err := w.Client.Grant(t.Context(), 600)
	require.NoError(t, err)
	_, err = w.Client.Put(t.Context(), "/mutexes/leased/uuid", "u", clientv3.WithLease(lease.ID))
	require.NoError(t, err)
	for name, want := range map[string]string{
		"x":            "",
		"overdue":      `According to the clock of this host, it is past its alert_at\.`,
		"expired":      `According to the clock of this host, it is past its auto_unlock_at\.`,
		"undated":      `It is never removed automatically: there is no auto_unlock_at\.`,
		"left":         `It is never removed automatically: there is no auto_unlock_at\.`,
		"milliseconds": `It is never removed automatically: auto_unlock_at is "\d{13}": it looks like milliseconds, and the unit is seconds; locked_at is "0": outside .*`,
		"uuid":         `It is never removed automatically: uuid is "u+…": not 1 to 256 bytes\.`,
		"stray":        `It is never removed automatically: there is no uuid, but there are keys that a lock does not leave behind\.`,
		"leased":       `It is never removed automatically: uuid has a lease, as no field of a lock has\.`,
		"orphan":       `There is no uuid: nobody holds it. Its fields are left over, for example from a renewal after the unlock\.`,
	} {
		require.Regexp(t, "^"+want+"$", strings.Join(w.show(name).Outlook, " "), name)
	}
}

func TestShowOfNoLock(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i := range 10 {
		w.take(fmt.Sprintf("billing/%d", i), time.Hour, time.Hour)
	}
	for i := range 60 {
		w.take(fmt.Sprintf("many/%02d", i), time.Hour, time.Hour)
	}
	w.Set("evil/\x1b[2J", "uuid", "u")
	w.native("native")
	for name, want := range map[string]string{
		"none":    `no lock "none" under /mutexes/`,
		"billing": `no lock "billing" under /mutexes/; there are locks below it: "billing/0", "billing/1", "billing/2", "billing/3", "billing/4", and 5 more`,
		"many":    `no lock "many" under /mutexes/; there are locks below it: "many/00", "many/01", "many/02", "many/03", "many/04", and more`,
		"evil":    `no lock "evil" under /mutexes/; there are locks below it: "evil/\x1b[2J"`,
		"native":  `no lock "native" under /mutexes/; it has keys with a lease, such as those of etcd's own mutexes, which unlocker never touches`,
		"\u202e":  `no lock "\u202e" under /mutexes/`,
	} {
		_, err := w.Show(t.Context(), name)
		require.EqualError(t, err, want)
		require.ErrorIs(t, err, lockstore.ErrNoLock)
	}
}

func TestParseName(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		"a/b": "a/b", `"a\x1b\nb"`: "a\x1b\nb", `"a`: `"a`, `"\"a\""`: `"a"`, "mutexes/a": "mutexes/a",
	} {
		name, err := admin.ParseName("/mutexes/", given)
		require.NoError(t, err)
		require.Equal(t, want, name)
	}
	for given, want := range map[string]string{
		"/mutexes/a/b": `"/mutexes/a/b" is a key: give the name of the lock without the prefix: "a/b"`,
		"/a":           `lock name "/a" has an empty segment`,
		"":             `lock name "" is empty`,
		"\xff":         `lock name "�" is not UTF-8`,
		"/mutexes/":    `lock name "/mutexes/" has an empty segment`,
	} {
		_, err := admin.ParseName("/mutexes/", given)
		require.EqualError(t, err, want)
	}
}
