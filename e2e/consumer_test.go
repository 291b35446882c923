//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The newest release of each client library of etcd. The tests of the module itself run with the
// oldest one that it requires.
var clientReleases = []string{"v3.5.35", "v3.6.8", "v3.7.3"}

const (
	// addedModules is how many modules a user of package mutex has at most in the module graph, in addition
	// to those of etcd's client.
	addedModules = 15
	// addedBytes is how much package mutex adds at most to a binary that uses etcd's client.
	addedBytes = 400 << 10
)

// consumer is a module of a user, built by the go command with requirements of its own.
type consumer struct {
	t       *testing.T
	dir     string
	modules []string
	size    int64
	env     []string
}

// buildConsumer builds a user's program with a release of etcd's client.
func buildConsumer(t *testing.T, client string, files map[string]string) consumer {
	t.Helper()
	p := consumer{t: t, dir: t.TempDir()}
	for name, text := range files {
		require.NoError(t, os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o600))
	}
	p.run("mod", "init", "consumer.test")
	p.run("mod", "edit", "-go=1.23.0", "-require=go.etcd.io/etcd/client/v3@"+client)
	if strings.Contains(files["main.go"], "unlocker/mutex") {
		module, err := filepath.Abs("../mutex")
		require.NoError(t, err)
		p.run("mod", "edit", "-require=github.com/etcd-unlocker/unlocker/mutex@v0.0.0", "-replace=github.com/etcd-unlocker/unlocker/mutex="+module)
	}
	p.run("mod", "tidy")
	require.Equal(t, client, p.run("list", "-m", "-f", "{{.Version}}", "go.etcd.io/etcd/client/v3"), "the user's release")
	p.modules = strings.Fields(p.run("list", "-m", "-f", "{{.Path}}", "all"))
	p.run("build", "-trimpath", "-ldflags=-s -w", "-o", "program", ".")
	binary, err := os.Stat(filepath.Join(p.dir, "program"))
	require.NoError(t, err)
	p.size = binary.Size()
	return p
}

// run runs the go command in the user's module.
func (p consumer) run(args ...string) string {
	p.t.Helper()
	cmd := exec.CommandContext(p.t.Context(), "go", args...)
	cmd.Dir = p.dir
	cmd.Env = append(append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off", "CGO_ENABLED=0"), p.env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(p.t, err, "go %s:\n%s%s", strings.Join(args, " "), out, stderr.String())
	return strings.TrimSpace(string(out))
}

func (p consumer) goLine() string { return p.run("list", "-m", "-f", "{{.GoVersion}}") }

const (
	// bareClient uses etcd's client alone.
	bareClient = `package main

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

func main() {
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:2379"}})
	if err == nil {
		_, err = etcd.Txn(context.Background()).Then(clientv3.OpPut("a", "1")).Commit()
		fmt.Println(<-etcd.Watch(context.Background(), "a"))
	}
	fmt.Println(err)
}
`
	// locking uses package mutex.
	locking = `package main

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/mutex"
)

func main() {
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:2379"}})
	if err == nil {
		fmt.Println(work(etcd))
	}
}

func work(etcd *clientv3.Client) error {
	client, err := mutex.New(etcd)
	if err != nil {
		return err
	}
	return client.WithLock(context.Background(), "a", func(ctx context.Context) error {
		_, err := etcd.Put(ctx, "result", "42")
		return err
	})
}
`
	// lockingTest is the test of that program: it locks, waits for another holder, and loses a lock.
	lockingTest = `//go:build go1.25

package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/etcd-unlocker/unlocker/mutex"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest"
)

func TestWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := mutextest.New(t)
		other, err := e.Client().Lock(t.Context(), "a", mutex.KeepAlive(24*time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			<-time.After(time.Hour)
			if err := other.Unlock(context.Background()); err != nil {
				t.Error(err)
			}
		}()
		began := time.Now()
		if err := work(e.Etcd()); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(began); waited < time.Hour || waited > time.Hour+time.Second {
			t.Errorf("waited for %v", waited)
		}
		if resp, err := e.Etcd().Get(t.Context(), "result"); err != nil || string(resp.Kvs[0].Value) != "42" {
			t.Error(resp, err)
		}
		err = e.Client().WithLock(t.Context(), "a", func(ctx context.Context) error {
			e.Remove("a")
			<-ctx.Done()
			return context.Cause(ctx)
		})
		if !errors.Is(err, mutex.ErrForced) {
			t.Error(err)
		}
	})
}
`
)

// TestConsumer builds what a user builds, with each release of etcd's client that package mutex supports:
// it works, it keeps the user's release and Go version, and it stays small.
func TestConsumer(t *testing.T) {
	t.Parallel()
	for _, client := range clientReleases {
		t.Run(client, func(t *testing.T) {
			alone := buildConsumer(t, client, map[string]string{"main.go": bareClient})
			with := buildConsumer(t, client, map[string]string{"main.go": locking, "main_test.go": lockingTest})
			t.Logf("%d modules instead of %d, %d kB more than %d kB", len(with.modules), len(alone.modules), (with.size-alone.size)>>10, alone.size>>10)
			require.LessOrEqual(t, len(with.modules), len(alone.modules)+addedModules)
			require.LessOrEqual(t, with.size, alone.size+addedBytes)
			require.Equal(t, alone.goLine(), with.goLine())
			for _, module := range with.modules {
				require.NotContains(t, module, "etcd/server")
				require.NotEqual(t, "github.com/etcd-unlocker/unlocker", module)
			}
			require.Contains(t, with.run("test", "-v", "."), "--- PASS: TestWork")
		})
	}
}
