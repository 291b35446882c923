package main

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
	_ "modernc.org/sqlite"

	"github.com/etcd-unlocker/unlocker/mutex"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest"
)

// TestMain is the main function of a candidate, too.
func TestMain(m *testing.M) {
	if os.Getenv("CANDIDATE") == "" {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{os.Getenv("ETCD")}})
	if err != nil {
		panic(err)
	}
	locks, err := mutex.New(etcd)
	if err != nil {
		panic(err)
	}
	_ = lead(ctx, locks, "leader", func(ctx context.Context) error {
		fmt.Println(os.Getenv("CANDIDATE"))
		<-ctx.Done()
		return context.Cause(ctx)
	})
}

// Ten goroutines, each with a slot of its own while it works.
func TestRender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd, turns, slots := mutextest.New(t), sync.WaitGroup{}, sync.Map{}
		began := time.Now()
		for range 10 {
			turns.Go(func() {
				check(t, render(t.Context(), etcd.Client(), func(_ context.Context, slot string) error {
					if _, used := slots.LoadOrStore(slot, true); used || len(slot) != 1 || slot > "3" {
						t.Errorf("slot %q is used twice, or is none", slot)
					}
					time.Sleep(time.Minute)
					slots.Delete(slot)
					return nil
				}))
			})
		}
		turns.Wait()
		if took := time.Since(began); took > 3*time.Minute+time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// Three processes, on a real etcd with a daemon: etcd hangs for longer than the patience, one stops, and one is killed.
func TestLeaders(t *testing.T) {
	leads, processes := make(chan string), map[string]*os.Process{}
	for _, name := range []string{"a", "b", "c"} {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), "CANDIDATE="+name)
		out, err := cmd.StdoutPipe()
		check(t, err)
		check(t, cmd.Start())
		processes[name] = cmd.Process
		go func() {
			for lines := bufio.NewScanner(out); lines.Scan(); {
				leads <- lines.Text()
			}
			_ = cmd.Wait()
		}()
	}
	first := <-leads
	etcd, err := strconv.Atoi(os.Getenv("ETCD_PID"))
	check(t, err)
	check(t, syscall.Kill(etcd, syscall.SIGSTOP))
	<-time.After(20 * time.Second) // the lock of the leader has expired
	check(t, syscall.Kill(etcd, syscall.SIGCONT))
	began := time.Now()
	leader := <-leads
	t.Logf("%s leads %v after the outage, %s before", leader, time.Since(began).Round(time.Millisecond), first)
	if time.Since(began) > 10*time.Second { // the daemon would take 15 s of settle, and the outage
		t.Errorf("nobody leads for %v after the outage", time.Since(began))
	}
	for holds := regexp.MustCompile(`unlocker_reaper_hold{.*} 1`); holds.MatchString(metrics(t)); { // else the next lock is one of before, too
		<-time.After(100 * time.Millisecond)
	}
	after := func(what syscall.Signal, least, most time.Duration, leader string) (next string) {
		check(t, processes[leader].Signal(what))
		began := time.Now()
		next = <-leads
		took := time.Since(began)
		t.Logf("%v after %v", took.Round(time.Millisecond), what)
		if took < least || took > most {
			t.Errorf("%v is not between %v and %v", took, least, most)
		}
		return next
	}
	second := after(syscall.SIGTERM, 0, 5*time.Second, leader)
	third := after(syscall.SIGKILL, 10*time.Second, 30*time.Second, second) // 15 s since the last renewal, and 2 s
	check(t, processes[third].Kill())
}

func metrics(t *testing.T) string {
	resp, err := http.Get(os.Getenv("DAEMON") + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	check(t, err)
	check(t, resp.Body.Close())
	return string(text)
}

// The leader that lost an outage releases its lock by itself: there is no daemon here.
func TestLeadAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := mutextest.New(t)
		ctx, stop := context.WithCancel(t.Context())
		leads, over := make(chan string), sync.WaitGroup{}
		for _, name := range []string{"a", "b", "c"} {
			over.Go(func() {
				_ = lead(ctx, etcd.Client(), "leader", func(ctx context.Context) error {
					leads <- name
					<-ctx.Done()
					leads <- "nobody"
					return context.Cause(ctx)
				})
			})
		}
		first := <-leads
		etcd.Disconnect()
		began := time.Now()
		if left := <-leads; left != "nobody" || time.Since(began) > 15*time.Second {
			t.Errorf("%s leads %v after the beginning of the outage", left, time.Since(began))
		}
		<-time.After(time.Minute)
		etcd.Connect()
		began = time.Now()
		next := <-leads
		t.Logf("%s leads %v after the end of the outage, %s before", next, time.Since(began), first)
		if next == "nobody" || time.Since(began) > 10*time.Second {
			t.Errorf("%s leads %v after the end of the outage", next, time.Since(began))
		}
		stop()
		<-leads
		over.Wait()
	})
}

// holders returns two locks of the same name, the first of which was lost.
func holders(t *testing.T) (earlier, later *mutex.Lock) {
	t.Helper()
	etcd := mutextest.New(t)
	earlier, err := etcd.Client().Lock(t.Context(), "reports")
	check(t, err)
	etcd.Remove("reports")
	later, err = etcd.Client().Lock(t.Context(), "reports")
	check(t, err)
	t.Cleanup(func() { check(t, later.Unlock(context.Background())) })
	return earlier, later
}

func TestSQL(t *testing.T) {
	page, err := os.ReadFile("page.md")
	check(t, err)
	db, err := sql.Open("sqlite", "file:"+t.TempDir()+"/db")
	check(t, err)
	defer func() { _ = db.Close() }()
	for _, statement := range []string{
		regexp.MustCompile("(?m)^    (CREATE TABLE .*)$").FindStringSubmatch(string(page))[1],
		"CREATE TABLE reports (month TEXT PRIMARY KEY, total INTEGER, token INTEGER)",
		"INSERT INTO reports VALUES ('2026-11', 0, 0)",
	} {
		_, err := db.Exec(statement)
		check(t, err)
	}
	earlier, later := holders(t)
	transaction := func(ctx context.Context, db *sql.DB, l *mutex.Lock, month string, total int64) error {
		return fenced(ctx, db, l, func(tx *sql.Tx) error {
			_, err := tx.Exec("UPDATE reports SET total = ? WHERE month = ?", total, month)
			return err
		})
	}
	for _, write := range []func(context.Context, *sql.DB, *mutex.Lock, string, int64) error{save, transaction} {
		check(t, write(t.Context(), db, earlier, "2026-11", 1))
		check(t, write(t.Context(), db, later, "2026-11", 2))
		check(t, write(t.Context(), db, later, "2026-11", 3))
		if err := write(t.Context(), db, earlier, "2026-11", 4); !errors.Is(err, errFenced) {
			t.Error(err)
		}
		var total int64
		check(t, db.QueryRow("SELECT total FROM reports").Scan(&total))
		if total != 3 {
			t.Errorf("the total is %d", total)
		}
	}
}

// bucket is an object store with conditional writes.
type bucket struct {
	mu      sync.Mutex
	content string
	version int
	before  func() // the next PUT
}

func (b *bucket) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if before := b.before; r.Method == http.MethodPut && before != nil {
		b.before = nil
		before()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	tag := fmt.Sprintf(`"%d"`, b.version)
	switch {
	case r.Method == http.MethodGet && b.version == 0:
		w.WriteHeader(http.StatusNotFound)
	case r.Method == http.MethodGet:
		w.Header().Set("ETag", tag)
		_, _ = io.WriteString(w, b.content)
	case b.version == 0 && r.Header.Get("If-None-Match") == "*", b.version > 0 && r.Header.Get("If-Match") == tag:
		text, _ := io.ReadAll(r.Body)
		b.content, b.version = string(text), b.version+1
	default:
		w.WriteHeader(http.StatusPreconditionFailed)
	}
}

func TestObjectStore(t *testing.T) {
	b := &bucket{}
	server := httptest.NewServer(b)
	defer server.Close()
	earlier, later := holders(t)
	check(t, putFenced(t.Context(), server.URL, earlier, "1"))
	b.before = func() { check(t, putFenced(t.Context(), server.URL, later, "2")) } // between its GET and its PUT
	if err := putFenced(t.Context(), server.URL, earlier, "3"); !errors.Is(err, errFenced) {
		t.Error(err)
	}
	check(t, putFenced(t.Context(), server.URL, later, "4"))
	if want := fmt.Sprintf("%d\n4", later.Token()); b.content != want {
		t.Errorf("%q instead of %q", b.content, want)
	}
}

func TestOncePerPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd, hosts, ran := mutextest.New(t), sync.WaitGroup{}, []string{}
		for _, period := range []string{"2026-11-22T03", "2026-11-22T03", "2026-11-22T04", "2026-11-22T03"} {
			hosts.Go(func() {
				check(t, oncePerPeriod(t.Context(), etcd.Etcd(), etcd.Client(), "report", period, func(context.Context) error {
					<-time.After(time.Minute)
					ran = append(ran, period)
					return nil
				}))
			})
		}
		hosts.Wait()
		if !slices.IsSorted(ran) || len(slices.Compact(slices.Clone(ran))) != len(ran) || !slices.Contains(ran, "2026-11-22T04") {
			t.Error(ran)
		}
	})
}

func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd, workers := mutextest.New(t), sync.WaitGroup{}
		var items []string
		for i := range 60 {
			items = append(items, fmt.Sprint(i))
		}
		var mu sync.Mutex
		done := map[string]int{}
		for range 3 {
			workers.Go(func() {
				check(t, drain(t.Context(), etcd.Etcd(), etcd.Client(), items, func(_ context.Context, item string) error {
					<-time.After(time.Second)
					mu.Lock()
					defer mu.Unlock()
					done[item]++
					return nil
				}))
			})
		}
		workers.Wait()
		for _, item := range items {
			if done[item] != 1 {
				t.Errorf("item %s was done %d times", item, done[item])
			}
		}
	})
}

func TestLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd, text := mutextest.New(t), &strings.Builder{}
		log := slog.New(slog.NewTextHandler(text, nil))
		err := logged(t.Context(), log, etcd.Client(), "a", func(ctx context.Context) error {
			etcd.Remove("a")
			<-ctx.Done()
			return context.Cause(ctx)
		})
		if !errors.Is(err, mutex.ErrForced) || !strings.Contains(text.String(), `msg="lock lost" lock=a reason="removed by force"`) {
			t.Error(err, text)
		}
		held, err := etcd.Client().Lock(t.Context(), "a")
		check(t, err)
		short, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		err = logged(short, log, etcd.Client(), "a", nil)
		if !errors.Is(err, mutex.ErrHeld) || !strings.Contains(text.String(), `msg="lock held" lock=a by=`) {
			t.Error(err, text)
		}
		check(t, held.Unlock(t.Context()))
		check(t, logged(t.Context(), log, etcd.Client(), "a", func(context.Context) error { return nil }))
		if !strings.Contains(text.String(), `msg="lock taken" lock=a token=`) {
			t.Error(text)
		}
	})
}

func TestObserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd, registry, text := mutextest.New(t), prometheus.NewRegistry(), &strings.Builder{}
		locks, err := newLocks(etcd.Etcd(), slog.New(slog.NewTextHandler(text, nil)), registry)
		check(t, err)
		l, err := locks.Lock(t.Context(), "a", mutex.KeepAlive(mutex.Forever))
		check(t, err)
		<-time.After(time.Second) // it watches the lock
		etcd.Remove("a")
		<-l.Context(t.Context()).Done()
		if err := l.Unlock(t.Context()); !errors.Is(err, mutex.ErrLost) {
			t.Error(err)
		}
		families, err := registry.Gather()
		check(t, err)
		all := strings.Join(strings.Fields(fmt.Sprint(families)), " ") // protobuf varies its spaces
		if !strings.Contains(all, `label:{name:"event" value:"lost"} counter:{value:1`) {
			t.Error(all)
		}
	})
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}
