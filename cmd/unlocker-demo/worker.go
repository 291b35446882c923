package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/lock"
)

// worker is a simulated program that wants one lock. Its transactions are those
// of docs/protocol.md, written out.
type worker struct {
	client *clientv3.Client
	layout lock.Layout
	post   post

	host, owner, name, purpose string
	alert, unlock              time.Duration // from now, at each renewal
	stamp                      func(time.Time) string

	uuid  string
	token int64
	keys  []string // its own, for the unlock
}

// holder is who has a lock that could not be had.
type holder struct {
	host     string
	token    int64
	revision int64 // of the failed transaction: where to wait from
}

// requestTimeout bounds each transaction.
const requestTimeout = 5 * time.Second

var errLost = errors.New("the lock is lost")

func (w *worker) key(field string) string { return w.layout.Key(w.name, field) }

func (w *worker) say(t tone, format string, args ...any) {
	w.post(said{who: w.host, what: fmt.Sprintf(format, args...), tone: t})
}

// tryLock takes the lock, or tells who holds it. skip is the number of callers
// between the line of code that locks and this one.
func (w *worker) tryLock(ctx context.Context, skip int) (*holder, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	now := time.Now()
	w.uuid, w.keys = newUUID(), nil
	var puts []clientv3.Op
	for _, f := range [][2]string{
		{"uuid", w.uuid}, {"hostname", w.host}, {"owner", w.owner}, {"purpose", w.purpose},
		{"pid", strconv.Itoa(os.Getpid())}, {"backtrace", backtrace(skip + 1)}, {"locked_at", w.stamp(now)},
		{"alert_at", w.stamp(now.Add(w.alert))}, {"auto_unlock_at", w.stamp(now.Add(w.unlock))},
	} {
		w.keys = append(w.keys, w.key(f[0]))
		puts = append(puts, clientv3.OpPut(w.key(f[0]), f[1]))
	}
	resp, err := w.client.Txn(ctx).
		If(clientv3.Compare(clientv3.Version(w.key("uuid")), "=", 0)).
		Then(puts...).
		Else(clientv3.OpGet(w.key("uuid")), clientv3.OpGet(w.key("hostname"))).
		Commit()
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", w.name, err)
	}
	if resp.Succeeded {
		w.token = resp.Header.Revision
		return nil, nil
	}
	h := &holder{revision: resp.Header.Revision}
	for _, kv := range resp.Responses[0].GetResponseRange().Kvs {
		h.token = kv.CreateRevision
	}
	for _, kv := range resp.Responses[1].GetResponseRange().Kvs {
		h.host = string(kv.Value)
	}
	return h, nil
}

// alive pushes the deadlines forward.
func (w *worker) alive(ctx context.Context) error {
	now := time.Now()
	ops := []clientv3.Op{
		clientv3.OpPut(w.key("alert_at"), w.stamp(now.Add(w.alert))),
		clientv3.OpPut(w.key("auto_unlock_at"), w.stamp(now.Add(w.unlock))),
		clientv3.OpPut(w.key("alive_at"), w.stamp(now)),
	}
	return w.ifMine(ctx, "renew", ops)
}

// release unlocks: each of its own keys, as names may be nested in its own.
func (w *worker) release(ctx context.Context) error {
	ops := []clientv3.Op{clientv3.OpDelete(w.key("alive_at"))}
	for _, key := range w.keys {
		ops = append(ops, clientv3.OpDelete(key))
	}
	return w.ifMine(ctx, "unlock", ops)
}

func (w *worker) ifMine(ctx context.Context, what string, ops []clientv3.Op) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	resp, err := w.client.Txn(ctx).If(clientv3.Compare(clientv3.Value(w.key("uuid")), "=", w.uuid)).Then(ops...).Commit()
	if err == nil && !resp.Succeeded {
		err = errLost
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", what, w.name, err)
	}
	return nil
}

// await returns when the lock may be free: its uuid was deleted, or the watch
// ended and only another attempt tells.
func (w *worker) await(ctx context.Context, revision int64) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	watch := w.client.Watch(ctx, w.key("uuid"), clientv3.WithRev(revision), clientv3.WithFilterPut())
	for resp := range watch {
		if resp.Err() != nil || len(resp.Events) > 0 {
			break
		}
	}
	return ctx.Err()
}

func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// backtrace is the stack of the caller, innermost first.
func backtrace(skip int) string {
	pcs := make([]uintptr, 16)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(skip+2, pcs)])
	var b strings.Builder
	for {
		f, more := frames.Next()
		if f.File != "" {
			dir, file := filepath.Split(f.File)
			fmt.Fprintf(&b, "%s/%s:%d %s\n", filepath.Base(dir), file, f.Line, path.Base(f.Function))
		}
		if !more {
			return b.String()
		}
	}
}

// seconds writes a time as the protocol wants it.
func seconds(t time.Time) string { return lock.TimestampOf(t).String() }

// milliseconds is the usual mistake.
func milliseconds(t time.Time) string { return strconv.FormatInt(t.UnixMilli(), 10) }
