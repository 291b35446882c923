package admin_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
)

// patient is a context for a slow etcd.
func patient(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), etcdtest.Soon)
	t.Cleanup(cancel)
	return ctx
}

func TestNames(t *testing.T) {
	t.Parallel()
	e := newWorld(t)
	for _, name := range []string{"billing/invoices", "billing/ms", "billing", "schlüssel/日本語", "a b", "$(reboot)", "-rf", "x;y", "x`y", "x'y", "x\\y", "evil\n\x1b[2J", "b\u202e", "x\ty", "x=y", "x~"} {
		e.Set(name, "uuid", "u", "hostname", "h")
	}
	e.native("billing/native")
	for begin, want := range map[string]string{
		"":          "billing billing/invoices billing/ms schlüssel/日本語",
		"bil":       "billing billing/invoices billing/ms",
		"billing/":  "billing/invoices billing/ms",
		"billing/m": "billing/ms",
		"x":         "",
	} {
		names, err := e.Names(patient(t), begin)
		require.NoError(t, err)
		require.ElementsMatch(t, strings.Fields(want), names, begin)
	}
}

// A shell continues with what all names that it gets have in common.
func TestNamesOfTooManyHaveTheRightBeginning(t *testing.T) {
	t.Parallel()
	e := newWorld(t)
	var ops []clientv3.Op
	for i := range 500 {
		ops = append(ops, clientv3.OpPut(fmt.Sprintf("/mutexes/deploy/web-%04d/uuid", i), "u"))
	}
	for part := range 10 {
		e.Put(ops[part*50 : part*50+50]...)
	}
	common := func() string {
		names, err := e.Names(patient(t), "d")
		require.NoError(t, err)
		require.Less(t, len(names), 500)
		common := names[0]
		for _, name := range names {
			for !strings.HasPrefix(name, common) {
				common = common[:len(common)-1]
			}
		}
		return common
	}
	require.Equal(t, "deploy/web-0", common())
	e.Set("deploy/x y", "uuid", "u")
	require.Equal(t, "deploy/web-0", common(), "a name that is left out")
	e.Set("deploy/worker", "uuid", "u")
	require.Equal(t, "deploy/w", common())
	e.Set("dry", "uuid", "u")
	require.Equal(t, "d", common())
}

func TestNamesWithoutEtcd(t *testing.T) {
	t.Parallel()
	began := time.Now()
	for _, endpoint := range []string{"127.0.0.1:1", "192.0.2.1:2379"} {
		a := open(t, func(c *config.Config) { c.Etcd.Endpoints = []string{endpoint} })
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		_, err := a.Names(ctx, "")
		cancel()
		require.Error(t, err)
	}
	require.Less(t, time.Since(began), 15*time.Second)
}
