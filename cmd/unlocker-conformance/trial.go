package main

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

const (
	prefix = "/conformance/locks/"
	// requestTimeout bounds each command, beside its wait.
	requestTimeout = 5 * time.Second
	// slack is what a command may take longer on a busy machine.
	slack = 2500 * time.Millisecond
	// background is within which a client must do what it does in the background.
	background = requestTimeout + slack
	// startup is for the start of a process.
	startup = 30 * time.Second
	// patient is longer than any check takes.
	patient = 15 * time.Minute
)

// trial is one check of one client, with an etcd of its own behind proxies. Its methods end
// the check with a failure, so they must be called from the goroutine of the check only;
// those that return an error may be called from hooks, too.
type trial struct {
	ctx     context.Context // marked as the kit's
	argv    []string
	log     func(string)
	began   time.Time
	cluster *localetcd.Cluster
	etcd    *clientv3.Client
	proxies []*localetcd.Proxy
	proxy   *localetcd.Proxy // the first one
	urls    []string
	*recorder

	drivers []*driver
	said    []request // the commands and answers, with mu
	tickets bool      // the client puts them
	failure error
}

// try runs a check and returns why the client failed it.
func try(ctx context.Context, c check, argv []string, log func(string)) error {
	marked, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(ctx, kitHeader, "1"), patient)
	defer cancel()
	t := &trial{ctx: marked, argv: argv, log: log, recorder: &recorder{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer t.close()
		t.start(max(1, c.endpoints))
		t.began = time.Now()
		c.run(t)
	}()
	<-done
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return t.failure
}

func (t *trial) start(endpoints int) {
	var err error
	t.cluster, err = localetcd.Start(t.ctx, localetcd.Options{UnsafeNoFsync: true, Server: t.options()})
	t.must(err)
	for range endpoints {
		p, err := localetcd.NewProxy(t.cluster.Addr(0))
		t.must(err)
		t.proxies, t.urls = append(t.proxies, p), append(t.urls, "http://"+p.Addr())
	}
	t.proxy = t.proxies[0]
	t.etcd, err = t.cluster.Client()
	t.must(err)
}

// close ends everything that the check has started, the last first.
func (t *trial) close() {
	for _, d := range t.drivers {
		d.kill()
		if text := d.complaint(); text != "" && t.failure != nil && !strings.Contains(t.failure.Error(), text) {
			t.failure = fmt.Errorf("%w\nits stderr:\n%s", t.failure, text)
		}
	}
	for _, p := range t.proxies {
		p.Close()
	}
	if t.cluster != nil {
		_ = t.cluster.Close()
	}
}

// fail ends the check. The last commands, answers and requests of the client are the evidence, in their order.
func (t *trial) fail(format string, args ...any) {
	seen := t.requests(t.began)
	t.mu.Lock()
	seen = slices.Concat(seen[max(0, len(seen)-12):], t.said[max(0, len(t.said)-6):])
	t.mu.Unlock()
	slices.SortStableFunc(seen, func(a, b request) int { return a.at.Compare(b.at) })
	var lines strings.Builder
	for _, q := range seen {
		fmt.Fprintf(&lines, "\n  %6.3fs %.500s", q.at.Sub(t.began).Seconds(), q.text)
	}
	t.failure = fmt.Errorf(format, args...)
	if lines.Len() > 0 {
		t.failure = fmt.Errorf("%w\nthe last commands (>), answers (<) and requests:%s", t.failure, lines.String())
	}
	runtime.Goexit()
}

// skip ends the check without a verdict.
func (t *trial) skip(why string) {
	t.failure = fmt.Errorf("%w: %s", errUnjudged, why)
	runtime.Goexit()
}

func (t *trial) must(err error) {
	if err != nil {
		t.fail("%w", err)
	}
}

func (t *trial) require(ok bool, format string, args ...any) {
	if !ok {
		t.fail(format, args...)
	}
}

// pause lets time pass in which the client should do something, or nothing.
func (t *trial) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-t.ctx.Done():
		t.fail("interrupted")
	}
}

// within reports whether something happens within a limit.
func (t *trial) within(limit time.Duration, happened func() bool) bool {
	for from := time.Now(); !happened(); t.pause(20 * time.Millisecond) {
		if time.Since(from) > limit {
			return false
		}
	}
	return true
}

func (t *trial) driver() *driver {
	n := len(t.drivers) + 1
	d, err := startDriver(t.argv, t.urls, func(line string) {
		line = fmt.Sprintf("%d %s", n, line)
		t.log(line)
		t.mu.Lock()
		defer t.mu.Unlock()
		t.said = append(t.said, request{at: time.Now(), text: line})
	})
	t.must(err)
	t.drivers = append(t.drivers, d)
	context.AfterFunc(t.ctx, func() { _ = d.stdin.Close() })
	t.must(d.greet())
	return d
}

// limit is within what time a command must be answered. Each of its names may take a request, one after another.
func (c command) limit() time.Duration {
	return max(requestTimeout, seconds(c.Wait)) + slack*time.Duration(1+len(c.Names))
}

func (t *trial) answer(p *pending) answer {
	a, err := p.wait(p.c.limit())
	t.must(err)
	return a
}

func (t *trial) do(d *driver, c command) answer { return t.answer(d.begin(c)) }

// succeed is do for a command that must succeed.
func (t *trial) succeed(d *driver, c command) answer { return t.success(d.begin(c)) }

// holder returns a driver that has taken a lock, and its answer.
func (t *trial) holder(c command) (*driver, answer) {
	d := t.driver()
	return d, t.succeed(d, c)
}

func (t *trial) success(p *pending) answer {
	a := t.answer(p)
	t.require(a.OK, "%s failed: %s", p.c.Op, a)
	return a
}

// refused is do for a command that must fail with an error of this kind.
func (t *trial) refused(d *driver, c command, kind string) answer {
	a := t.do(d, c)
	t.require(!a.OK && a.Error == kind, "%s answered %s instead of error %q", c.Op, a, kind)
	return a
}

// hooked is do for a command whose next write meets the hooks.
func (t *trial) hooked(d *driver, c command, before, after func() error) answer {
	met := t.surround(writes, before, after)
	a := t.do(d, c)
	t.must(met())
	return a
}

// raced is do for a command before whose next write another takes the lock. It requires that the
// client leaves the lock of the other alone, and fails with an error of this kind.
func (t *trial) raced(d *driver, c command, name, kind string) {
	var other fields
	a := t.hooked(d, c, func() error { return t.seize(name, &other) }, nothing)
	t.untouched(name, other)
	t.require(!a.OK && a.Error == kind, "another had taken the lock, but %s answered %s", c.Op, a)
}

// cut is do for a command whose next write happens, but all connections are cut before its
// answer reaches the client. then is called after the write.
func (t *trial) cut(d *driver, c command, then func() error) answer {
	return t.hooked(d, c, quietly(t.proxy.HoldReplies), func() error {
		defer t.proxy.Break()
		return then()
	})
}

func quietly(f func()) func() error {
	return func() error {
		f()
		return nil
	}
}

// withhold keeps the next write on its way, as a network may, while the client sees its connection
// disturbed instead of an answer. The function that it returns lets the write reach etcd.
func (t *trial) withhold(disturb func()) (execute func()) {
	withheld := make(chan any, 1)
	t.arm(writes, func(_ context.Context, m any, _ func() (any, error)) (any, error) {
		withheld <- m
		t.proxy.HoldReplies()
		disturb()
		return nil, status.Error(codes.Unavailable, "withheld by unlocker-conformance")
	})
	return func() {
		t.require(len(withheld) > 0, "it sent no request that writes")
		txn, ok := (<-withheld).(*pb.TxnRequest)
		t.require(ok, "it wrote without a transaction")
		_, err := pb.NewKVClient(t.etcd.ActiveConnection()).Txn(t.ctx, txn)
		t.must(err)
	}
}

// hang begins a command and keeps its next write until the client gives the request up. The function
// that it returns requires that this is in time.
func (t *trial) hang(d *driver, c command) (abandoned func()) {
	const limit = requestTimeout + slack
	inTime := make(chan bool, 1)
	t.arm(writes, func(ctx context.Context, _ any, _ func() (any, error)) (any, error) {
		select {
		case <-ctx.Done():
			inTime <- true
		case <-time.After(limit):
			inTime <- false
		}
		return nil, status.Error(codes.Canceled, "kept by unlocker-conformance")
	})
	t.writes(d.begin(c))
	return func() {
		t.require(<-inTime, "a request of %s without an answer was still on its way after %v", c.Op, limit)
	}
}

// restart starts etcd again after something was done while it was down.
func (t *trial) restart(while func() error) {
	t.cluster.Kill(0)
	t.must(while())
	t.must(t.cluster.Restart(t.ctx))
	t.revision() // etcd's client repeats reads only while it connects
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
