package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcd-unlocker/unlocker/mutex"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest"
)

// The program before the move: it takes its old lock for each job. WORKER says which version of it this process is.
func TestMain(m *testing.M) {
	if version := os.Getenv("WORKER"); version != "" {
		if err := program(context.Background(), version); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

const jobs = 8

func program(ctx context.Context, version string) error {
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{os.Getenv("ETCD")}})
	if err != nil {
		return err
	}
	defer func() { _ = etcd.Close() }()
	locks, err := mutex.New(etcd)
	if err != nil {
		return err
	}
	name, job := filepath.Base(os.Getenv("DIR")), work
	if os.Getenv("HANGS") != "" {
		job = hang
	}
	underOld := redisLock
	if os.Getenv("OLD") == "etcd" {
		underOld = func(ctx context.Context, name string, f func(context.Context) error) error {
			return etcdLock(ctx, etcd, name, f)
		}
	}
	for range jobs {
		switch version {
		case "old":
			err = underOld(ctx, name, job)
		case "tryBoth":
			err = underOld(ctx, name, func(ctx context.Context) error { return tryBoth(ctx, locks, name, job) })
		case "both":
			err = underOld(ctx, name, func(ctx context.Context) error { return both(ctx, locks, name, job) })
		case "new":
			err = both(ctx, locks, name, job)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// etcdLock is an old lock: etcd's own.
func etcdLock(ctx context.Context, etcd *clientv3.Client, name string, f func(context.Context) error) error {
	session, err := concurrency.NewSession(etcd, concurrency.WithTTL(2))
	if err != nil {
		return err
	}
	defer func() { _ = session.Close() }()
	m := concurrency.NewMutex(session, "/old/"+name)
	if err := m.Lock(ctx); err != nil {
		return err
	}
	return errors.Join(f(ctx), m.Unlock(ctx))
}

// redisLock is an old lock: redsync.
func redisLock(ctx context.Context, name string, f func(context.Context) error) error {
	client := redis.NewClient(&redis.Options{Addr: os.Getenv("REDIS")})
	defer func() { _ = client.Close() }()
	m := redsync.New(goredis.NewPool(client)).NewMutex(name, redsync.WithExpiry(time.Minute), redsync.WithTries(100_000), redsync.WithRetryDelay(5*time.Millisecond))
	if err := m.LockContext(ctx); err != nil {
		return err
	}
	err := f(ctx)
	_, released := m.UnlockContext(ctx)
	return errors.Join(err, released)
}

// work fails if another process works.
func work(context.Context) error {
	mark := filepath.Join(os.Getenv("DIR"), "mark")
	f, err := os.OpenFile(mark, os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("another process works: %w", err)
	}
	<-time.After(10 * time.Millisecond)
	return errors.Join(f.Close(), os.Remove(mark))
}

func hang(context.Context) error {
	fmt.Println("working")
	select {}
}

// worker is a process of a version of the program.
type worker struct {
	*exec.Cmd
	out *bytes.Buffer
}

func start(t *testing.T, version string, env ...string) worker {
	t.Helper()
	w := worker{exec.CommandContext(t.Context(), os.Args[0]), &bytes.Buffer{}}
	w.Env, w.Stdout, w.Stderr = append(append(os.Environ(), "WORKER="+version), env...), w.out, w.out
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	return w
}

func TestSteps(t *testing.T) {
	redis := miniredis.RunT(t)
	for _, old := range []string{"etcd", "redis"} {
		for _, fleet := range [][]string{{"old", "tryBoth"}, {"tryBoth", "both"}, {"both", "new"}} {
			t.Run(old+"/"+strings.Join(fleet, "-"), func(t *testing.T) {
				env := []string{"DIR=" + t.TempDir(), "OLD=" + old, "REDIS=" + redis.Addr()}
				var workers []worker
				for _, version := range append(fleet, fleet...) {
					workers = append(workers, start(t, version, env...))
				}
				for _, w := range workers {
					if err := w.Wait(); err != nil {
						t.Errorf("%v: %s", err, w.out)
					}
				}
			})
		}
	}
}

// A job that is killed in step 2 blocks the next one for as long as its old lock, which is what it was before.
func TestKilledJob(t *testing.T) {
	env := []string{"DIR=" + t.TempDir(), "OLD=etcd"}
	killed := start(t, "tryBoth", append(env, "HANGS=1")...)
	for etcd := connect(t); held(t, etcd, filepath.Base(env[0])) == 0; {
		<-time.After(10 * time.Millisecond)
	}
	_ = killed.Process.Kill()
	_ = killed.Wait()
	next := start(t, "tryBoth", env...)
	if err := next.Wait(); err != nil || strings.Count(next.out.String(), "working under the old lock alone") != jobs {
		t.Errorf("%v: %s", err, next.out)
	}
	if held(t, connect(t), filepath.Base(env[0])) == 0 {
		t.Error("the lock of the killed job is not there any more: this test was too slow to show anything")
	}
}

func connect(t *testing.T) *clientv3.Client {
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{os.Getenv("ETCD")}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = etcd.Close() })
	return etcd
}

// held returns whether anyone has the new lock, as a number of keys.
func held(t *testing.T, etcd *clientv3.Client, name string) int64 {
	resp, err := etcd.Get(t.Context(), "/mutexes/"+name+"/uuid")
	if err != nil {
		t.Fatal(err)
	}
	return resp.Count
}

// The table of the page: an outage that begins immediately before a renewal is survived if it is as long as the page
// says, and not if it is a tenth of the patience longer.
func TestPatience(t *testing.T) {
	page, err := os.ReadFile("page.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile(`(?m)^\| (\d+)( s|m)(?:, the default)? \| (\d+) s \| (\d+) s \|$`).FindAllStringSubmatch(string(page), -1)
	if len(rows) != 5 {
		t.Fatal(rows)
	}
	for _, row := range rows {
		patience, err := time.ParseDuration(row[1] + strings.TrimSpace(row[2]))
		if err != nil {
			t.Fatal(err)
		}
		outage, err := time.ParseDuration(row[3] + "s")
		if err != nil {
			t.Fatal(err)
		}
		if row[4] != fmt.Sprint((patience + 2*time.Second).Seconds()) {
			t.Errorf("others wait for %s s where the patience is %s", row[4], patience)
		}
		for longer, survives := range map[time.Duration]bool{0: true, max(6*time.Second, patience/10): false} {
			synctest.Test(t, func(t *testing.T) {
				etcd := mutextest.New(t)
				l, err := etcd.Client().Lock(t.Context(), "a", mutex.Patience(patience), mutex.KeepAlive(24*time.Hour))
				if err != nil {
					t.Fatal(err)
				}
				<-time.After(4*patience/3 - 10*time.Millisecond)
				etcd.Disconnect()
				<-time.After(outage + longer)
				etcd.Connect()
				<-time.After(patience)
				if (l.Held() == nil) != survives {
					t.Errorf("patience %s, outage %s: %v", patience, outage+longer, l.Held())
				}
				_ = l.Unlock(t.Context())
			})
		}
	}
}
