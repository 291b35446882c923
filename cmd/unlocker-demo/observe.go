package main

import (
	"context"
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/lock"
)

// change is what one transaction did to one lock, as a watch on etcd showed it.
type change struct {
	at       time.Time
	revision int64
	name     string
	put      map[string]string // values by field
	deleted  []string          // fields
	token    int64             // where the uuid was put: its create revision
}

// observe tells every change below the prefix until ctx is done. It begins with
// the first revision, so that nothing is missed.
func observe(ctx context.Context, client *clientv3.Client, layout lock.Layout, p post) error {
	watch := client.Watch(clientv3.WithRequireLeader(ctx), layout.Prefix(), clientv3.WithPrefix(), clientv3.WithRev(1))
	for resp := range watch {
		if err := resp.Err(); err != nil {
			return err
		}
		for _, c := range changes(layout, resp.Events, time.Now()) {
			p(c)
		}
	}
	return errors.New("the watch has ended")
}

// changes puts together what belongs together. Events come in the order of their
// revisions.
func changes(layout lock.Layout, events []*clientv3.Event, now time.Time) []*change {
	var all []*change
	of := map[string]*change{} // at the present revision
	for _, e := range events {
		if len(all) > 0 && all[len(all)-1].revision != e.Kv.ModRevision {
			clear(of)
		}
		name, field, valid := layout.Split(e.Kv.Key)
		if !valid {
			continue
		}
		c := of[string(name)]
		if c == nil {
			c = &change{at: now, revision: e.Kv.ModRevision, name: string(name), put: map[string]string{}}
			of[c.name], all = c, append(all, c)
		}
		if e.Type == clientv3.EventTypeDelete {
			c.deleted = append(c.deleted, string(field))
			continue
		}
		c.put[string(field)] = string(e.Kv.Value)
		if string(field) == lock.FieldUUID.String() {
			c.token = e.Kv.CreateRevision
		}
	}
	return all
}

// seen is a lock as the watch has shown it.
type seen struct {
	fields    map[string]string
	token     int64
	renewals  int
	announced bool // unlocker's log has said that it removes it
}

// deadline returns the lock's auto_unlock_at, or zero.
func (s *seen) deadline() time.Time {
	t, err := lock.ParseTimestamp([]byte(s.fields[lock.FieldAutoUnlockAt.String()]))
	if err != nil {
		return time.Time{}
	}
	return t.Time()
}

// tell implements event.
func (c *change) tell(n *narrator) {
	s := n.locks[c.name]
	if s == nil {
		s = &seen{fields: map[string]string{}}
		n.locks[c.name] = s
	}
	had := len(s.fields)
	deadline, announced := s.deadline(), s.announced
	taken := c.token != 0 && c.token != s.token
	if _, ok := c.put[lock.FieldAliveAt.String()]; ok && !taken {
		s.renewals++
	}
	if taken {
		s.token, s.renewals, s.announced = c.token, 0, false
	}
	for field, value := range c.put {
		s.fields[field] = value
	}
	for _, field := range c.deleted {
		delete(s.fields, field)
	}
	switch {
	case taken:
		n.taken(c, s)
	case len(c.deleted) > 0:
		n.deleted(c, s, had, deadline, announced)
	}
}
