package lockstore

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// names are those of fields.
func names(fields []api.Field) (names []string) {
	for _, f := range fields {
		names = append(names, f.Name)
	}
	return names
}

func TestReadGivesTheLockAndNothingElse(t *testing.T) {
	h := newHarness(t)
	h.set("a", "hostname", "of an earlier holder")
	h.expired("a", "a/b", "a!", "a0")
	h.set("a", "ticket", "OPS-1", "\x01", "\xff", "alert_at", past)
	h.native("a")
	r, err := h.ReadOne(h.ctx, "a")
	require.NoError(t, err)
	fields, more := r.Shown()
	require.Equal(t, []string{"alert_at", "auto_unlock_at", "hostname", "locked_at", "purpose", "uuid", "\x01", "ticket"}, names(fields))
	require.Equal(t, api.Field{Name: "\x01", Value: "\uFFFD"}, fields[6], "valid UTF-8")
	require.Zero(t, more)
	require.Equal(t, "u-a", r.UUID())
	require.Equal(t, past, r.AutoUnlockAt().String())
	require.EqualValues(t, 8, r.Keys)
}

func TestReadOfNoLock(t *testing.T) {
	h := newHarness(t)
	h.expired("a/b")
	h.native("native")
	for _, name := range []string{"a", "none", "native", "a/b/c"} {
		_, err := h.ReadOne(h.ctx, name)
		require.ErrorIs(t, err, ErrNoLock, name)
	}
	for _, name := range []string{"", "/a", "a/", "a//b", "\xff"} {
		_, err := h.ReadOne(h.ctx, name)
		require.ErrorContains(t, err, "lock name", name)
	}
}

func TestReadIsBounded(t *testing.T) {
	for _, n := range []int{62, 63, 64, 65, 300} {
		h := newHarness(t)
		h.set("a", "uuid", "u", "backtrace", strings.Repeat("x", maxShownValue+1))
		h.crowd("a/k%04d", n-2)
		r, err := h.ReadOne(h.ctx, "a")
		require.NoError(t, err)
		require.EqualValues(t, n, r.Keys)
		fields, more := r.Shown()
		require.Equal(t, n, len(fields)+more)
		require.Equal(t, []string{"backtrace", "uuid"}, names(fields)[:2])
		require.Len(t, fields[0].Value, maxShownValue+len("…"))
	}
}

// What one lock can hold must not become the memory of the daemon.
func TestReadOfAMonsterIsBounded(t *testing.T) {
	h := newHarness(t)
	h.set("a", "uuid", "u")
	for i := range 20 {
		h.set("a", fmt.Sprintf("%02d%s", i, strings.Repeat("n", 200<<10)), strings.Repeat("v", 200<<10))
	}
	r, err := h.ReadOne(h.ctx, "a")
	require.NoError(t, err)
	require.EqualValues(t, 21, r.Keys)
	fields, more := r.Shown()
	require.Equal(t, 21, len(fields)+more)
	total := 0
	for _, f := range fields {
		total += len(f.Name) + len(f.Value)
	}
	require.LessOrEqual(t, total, maxShownBytes)
	kept := 0
	for _, f := range r.fields {
		kept += len(f.name) + len(f.value)
		require.LessOrEqual(t, len(f.name), protocol.MaxName+4)
	}
	require.LessOrEqual(t, kept, keptBytes+maxShownValue+protocol.MaxName+8)
}

// Names that are equal when they are shown are told apart, whatever others are called.
func TestShownFieldsHaveDifferentNames(t *testing.T) {
	h := newHarness(t)
	h.set("a", "uuid", "u", "\xfe", "1", "\xff", "2", "\uFFFD#3", "3")
	r, err := h.ReadOne(h.ctx, "a")
	require.NoError(t, err)
	fields, more := r.Shown()
	require.Zero(t, more)
	require.Equal(t, []string{"uuid", "\uFFFD#3", "\uFFFD", "\uFFFD#4"}, names(fields))
}
