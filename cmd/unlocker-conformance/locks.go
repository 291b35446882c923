package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// fields are the keys of a lock, without those of locks with nested names.
type fields map[string]*mvccpb.KeyValue

func (f fields) text(field string) string { return string(f[field].GetValue()) }

// token is the create_revision of the uuid; 0 if the lock does not exist.
func (f fields) token() int64 { return f["uuid"].GetCreateRevision() }

// String lists fields with their revisions.
func (f fields) String() string {
	var parts []string
	for _, field := range slices.Sorted(maps.Keys(f)) {
		parts = append(parts, fmt.Sprintf("%s=%.60q@%d", field, f[field].Value, f[field].ModRevision))
	}
	return "{" + strings.Join(parts, " ") + "}"
}

// read reads a lock; the options may be those of a revision.
func (t *trial) read(name string, at ...clientv3.OpOption) (fields, error) {
	dir := prefix + name + "/"
	r, err := t.etcd.Get(t.ctx, dir, append(at, clientv3.WithPrefix())...)
	if err != nil {
		return nil, err
	}
	f := fields{}
	for _, kv := range r.Kvs {
		if field := strings.TrimPrefix(string(kv.Key), dir); !strings.Contains(field, "/") {
			f[field] = kv
		}
	}
	return f, nil
}

func (t *trial) fields(name string, at ...clientv3.OpOption) fields {
	f, err := t.read(name, at...)
	t.must(err)
	return f
}

// untouched requires that a lock is as it was, to the revision of each key.
func (t *trial) untouched(name string, was fields) {
	is := t.fields(name)
	t.require(is.String() == was.String(), "the client changed the lock %q of another\nfrom %s\nto   %s", name, was, is)
}

// absent requires that no key of a lock is left.
func (t *trial) absent(name string) {
	is := t.fields(name)
	t.require(len(is) == 0, "there are keys of %q which nobody holds: %s", name, is)
}

// cleared requires that the client releases, in the background, a lock that nobody holds.
func (t *trial) cleared(name string) {
	released := func() bool { return len(t.fields(name)) == 0 }
	t.require(t.within(background, released), "it did not release %q, which nobody holds, within %v: %s", name, background, t.fields(name))
}

// fresh requires that a lock was taken by one transaction with all the fields, once.
func (t *trial) fresh(name string, g grant) fields {
	f := t.fields(name)
	t.require(f.text("uuid") == g.UUID && g.UUID != "", "the answer has uuid %q, but etcd has %s", g.UUID, f)
	t.require(f.token() == g.Token, "the token is %d, the create_revision of the uuid of %q %d", g.Token, name, f.token())
	t.require(f["uuid"].Version == 1, "the uuid of %q was written %d times", name, f["uuid"].Version)
	for _, field := range []string{"hostname", "locked_at", "alert_at", "auto_unlock_at"} {
		t.require(f[field] != nil, "%q has no %s: %s", name, field, f)
	}
	for field, kv := range f {
		t.require(kv.ModRevision == f.token(), "%s of %q was not written in the transaction of the uuid: %s", field, name, f)
		t.require(kv.Lease == 0, "%s of %q has a lease", field, name)
	}
	return f
}

func (t *trial) instant(f fields, field string) time.Time {
	at, err := protocol.ParseTimestamp([]byte(f.text(field)))
	if err != nil {
		t.fail("%s: %w", field, err)
	}
	return at.Time()
}

// rounding is how far a timestamp may be off, since it may be of whole seconds.
const rounding = 1100 * time.Millisecond

// now requires that a timestamp was taken between a command and its answer.
func (t *trial) now(f fields, field string, a answer) {
	at := t.instant(f, field)
	t.require(at.After(a.sent.Add(-rounding)) && at.Before(a.at.Add(rounding)), "%s is not now: %s", field, f)
}

// ahead requires that a timestamp is so far after another one.
func (t *trial) ahead(f fields, field string, of time.Time, want time.Duration) {
	got := t.instant(f, field).Sub(of)
	t.require((got-want).Abs() <= rounding, "%s is %v ahead, not %v: %s", field, got, want, f)
}

// take acquires a lock for another client, whatever there was. It returns the fields.
func (t *trial) take(name string) (f fields) {
	t.must(t.seize(name, &f))
	return f
}

func (t *trial) seize(name string, f *fields) (err error) {
	if err := t.remove(name); err != nil {
		return err
	}
	now := time.Now()
	revision, err := t.write(name, map[string]string{
		"uuid": fmt.Sprintf("kit-%d", now.UnixNano()), "hostname": "kit", "purpose": "to be in the way",
		"locked_at": stamp(now), "alert_at": stamp(now.Add(time.Hour)), "auto_unlock_at": stamp(now.Add(2 * time.Hour)),
	})
	if err != nil {
		return err
	}
	*f, err = t.read(name, clientv3.WithRev(revision)) // a client at fault may have deleted it since
	return err
}

// write returns the revision that etcd has by it.
func (t *trial) write(name string, values map[string]string) (int64, error) {
	var ops []clientv3.Op
	for field, value := range values {
		ops = append(ops, clientv3.OpPut(prefix+name+"/"+field, value))
	}
	r, err := t.etcd.Txn(t.ctx).Then(ops...).Commit()
	if err != nil {
		return 0, err
	}
	return r.Header.Revision, nil
}

// remove deletes all keys of locks, as the daemon does.
func (t *trial) remove(names ...string) error {
	var ops []clientv3.Op
	for _, name := range names {
		f, err := t.read(name)
		if err != nil {
			return err
		}
		for field := range f {
			ops = append(ops, clientv3.OpDelete(prefix+name+"/"+field))
		}
	}
	_, err := t.etcd.Txn(t.ctx).Then(ops...).Commit()
	return err
}

// otherWrites moves the revision of etcd on.
func (t *trial) otherWrites() error {
	for range 3 {
		if _, err := t.etcd.Put(t.ctx, "/conformance/other", "x"); err != nil {
			return err
		}
	}
	return nil
}

func (t *trial) revision() int64 {
	r, err := t.etcd.Get(t.ctx, "/conformance/other")
	t.must(err)
	return r.Header.Revision
}

func stamp(t time.Time) string { return strconv.FormatFloat(float64(t.UnixMilli())/1000, 'f', 3, 64) }
