// Command conformance drives package mutex by the commands of unlocker-conformance, which
// docs/conformance.md describes.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/mutex"
)

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

type command struct {
	ID         int      `json:"id"`
	Op         string   `json:"op"`
	Name       string   `json:"name"`
	Names      []string `json:"names"`
	UUID       string   `json:"uuid"`
	Purpose    string   `json:"purpose"`
	AlertAfter float64  `json:"alert_after"`
	Patience   float64  `json:"patience"`
	Wait       float64  `json:"wait"`
	Slots      int      `json:"slots"`
}

type reply map[string]any

type driver struct {
	client  *mutex.Client
	timeout time.Duration
	locks   map[string]*mutex.Lock
}

func run(in io.Reader, out io.Writer) error {
	timeout, err := time.ParseDuration(os.Getenv("UNLOCKER_ETCD_REQUEST_TIMEOUT"))
	if err != nil {
		return err
	}
	etcd, err := clientv3.New(clientv3.Config{Endpoints: strings.Split(os.Getenv("UNLOCKER_ETCD_ENDPOINTS"), ",")})
	if err != nil {
		return err
	}
	defer func() { _ = etcd.Close() }()
	client, err := mutex.New(etcd, mutex.Prefix(os.Getenv("UNLOCKER_PREFIX")), mutex.WaitersPrefix(os.Getenv("UNLOCKER_WAITERS_PREFIX")))
	if err != nil {
		return err
	}
	d := &driver{client: client, timeout: timeout, locks: map[string]*mutex.Lock{}}
	for lines := bufio.NewScanner(in); lines.Scan(); {
		var q command
		if err := json.Unmarshal(lines.Bytes(), &q); err != nil {
			return err
		}
		a := d.execute(q)
		a["id"] = q.ID
		if err := json.NewEncoder(out).Encode(a); err != nil || q.Op == "quit" {
			return err
		}
	}
	return nil
}

// execute answers a command.
func (d *driver) execute(q command) reply {
	a, err := d.do(q)
	if err == nil {
		a["ok"] = true
		return a
	}
	a = reply{"ok": false, "error": kind(err), "message": err.Error()}
	if held := (*mutex.HeldError)(nil); errors.As(err, &held) {
		a["holder"] = holder(held.Holder)
	}
	return a
}

func (d *driver) do(q command) (reply, error) {
	ctx, cancel := context.WithTimeout(context.Background(), max(d.timeout, seconds(q.Wait)))
	defer cancel()
	terms := []mutex.Option{mutex.Expect(seconds(q.AlertAfter)), mutex.Patience(seconds(q.Patience))}
	switch q.Op {
	case "quit":
		return reply{}, nil
	case "lock":
		if q.Slots > 0 {
			terms = append(terms, mutex.Slots(q.Slots))
		}
		l, err := d.client.Lock(ctx, q.Name, append(terms, mutex.Purpose(q.Purpose), mutex.Wait(seconds(q.Wait)))...)
		if err != nil {
			return nil, err
		}
		return d.taken(l), nil
	case "try_lock_all":
		return d.tryLockAll(ctx, q.Names, terms)
	}
	l := d.locks[q.UUID]
	if l == nil {
		return nil, errors.New("no such lock")
	}
	switch q.Op {
	case "alive":
		return reply{}, l.Alive(ctx, terms...)
	case "unlock":
		return reply{}, l.Unlock(ctx)
	}
	return reply{"lost": lost(l, seconds(q.Wait))}, nil
}

func (d *driver) taken(l *mutex.Lock) reply {
	d.locks[l.UUID()] = l
	return reply{"name": l.Name(), "uuid": l.UUID(), "token": l.Token()}
}

func (d *driver) tryLockAll(ctx context.Context, names []string, terms []mutex.Option) (reply, error) {
	taken, held, err := d.client.TryLockAll(ctx, names, terms...)
	locks, others := []reply{}, []reply{}
	for _, l := range taken {
		locks = append(locks, d.taken(l))
	}
	for _, h := range held {
		others = append(others, reply{"name": h.Name, "holder": holder(h.Holder)})
	}
	return reply{"locks": locks, "held": others}, err
}

// lost waits for the loss of a lock.
func lost(l *mutex.Lock, wait time.Duration) bool {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	select {
	case <-l.Context(context.Background()).Done():
	case <-ctx.Done():
	}
	return errors.Is(l.Held(), mutex.ErrLost)
}

func holder(h mutex.Holder) map[string]string {
	fields := map[string]string{"uuid": h.UUID, "hostname": h.Hostname, "purpose": h.Purpose}
	for field, at := range map[string]time.Time{"locked_at": h.LockedAt, "auto_unlock_at": h.AutoUnlockAt} {
		fields[field] = fmt.Sprintf("%d.%03d", at.Unix(), at.Nanosecond()/1e6)
	}
	return fields
}

func kind(err error) string {
	switch {
	case errors.Is(err, mutex.ErrHeld):
		return "held"
	case errors.Is(err, mutex.ErrLost):
		return "lost"
	case errors.Is(err, context.DeadlineExceeded):
		return "unavailable"
	}
	return "invalid"
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
