package table

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// etcd is a model of the keys below the prefix: it makes the events that the
// real one would, in its order, and lists them.
type etcd struct {
	rev   int64
	locks map[string]map[string]protocol.KV
}

func newEtcd() *etcd { return &etcd{rev: 1, locks: make(map[string]map[string]protocol.KV)} }

// put writes fields in one transaction, in key order.
func (s *etcd) put(name string, fields map[string]string) (events []Event) {
	s.rev++
	if s.locks[name] == nil {
		s.locks[name] = make(map[string]protocol.KV)
	}
	for _, f := range slices.Sorted(maps.Keys(fields)) {
		kv := protocol.KV{Field: protocol.ParseField([]byte(f)), Value: []byte(fields[f]), Create: s.rev, Mod: s.rev}
		if old, ok := s.locks[name][f]; ok {
			kv.Create = old.Create
		}
		s.locks[name][f] = kv
		events = append(events, Event{Name: []byte(name), KV: kv})
	}
	return events
}

// del deletes fields, all of the lock's where none is named, as one range
// delete does.
func (s *etcd) del(name string, fields ...string) (events []Event) {
	s.rev++
	if len(fields) == 0 {
		fields = slices.Sorted(maps.Keys(s.locks[name]))
	}
	for _, f := range fields {
		if _, ok := s.locks[name][f]; !ok {
			continue
		}
		delete(s.locks[name], f)
		events = append(events, Event{Name: []byte(name), Deleted: true,
			KV: protocol.KV{Field: protocol.ParseField([]byte(f)), Mod: s.rev}})
	}
	if len(s.locks[name]) == 0 {
		delete(s.locks, name)
	}
	return events
}

// collect returns all locks as a listing would.
func (s *etcd) collect() (locks []protocol.Lock) {
	for name, fields := range s.locks {
		var b protocol.Builder
		for _, kv := range fields {
			b.Add(kv)
		}
		locks = append(locks, b.Lock(name))
	}
	return locks
}

func (s *etcd) token(name string) int64 { return s.locks[name]["uuid"].Create }

// snapshot is a backup.
func (s *etcd) snapshot() *etcd {
	backup := &etcd{rev: s.rev, locks: make(map[string]map[string]protocol.KV)}
	for name, fields := range s.locks {
		backup.locks[name] = maps.Clone(fields)
	}
	return backup
}

// holder is the clock of a holder: how far it is off from the true one.
type holder time.Duration

func (h holder) at(d time.Duration) string { return at(time.Duration(h) + d) }

// acquires returns the fields of a lock for auto, taken now.
func (h holder) acquires(auto time.Duration) map[string]string {
	f := fields(0, 0)
	f["locked_at"], f["alert_at"], f["auto_unlock_at"] = h.at(0), h.at(auto), h.at(auto)
	return f
}

// renews returns the fields of a renewal for auto.
func (h holder) renews(auto time.Duration) map[string]string {
	return map[string]string{"alive_at": h.at(0), "auto_unlock_at": h.at(auto)}
}

// fields are those of a lock taken now, by the true clock.
func fields(alert, auto time.Duration) map[string]string {
	return map[string]string{
		"uuid": fmt.Sprintf("%08x-0000-4000-8000-000000000000", time.Now().UnixNano()&0xffffffff), "hostname": "h1",
		"locked_at": at(0), "alert_at": at(alert), "auto_unlock_at": at(auto),
	}
}

// deadline is a renewal without a stamp.
func deadline(auto time.Duration) map[string]string {
	return map[string]string{"auto_unlock_at": at(auto)}
}

func at(d time.Duration) string { return protocol.TimestampOf(present().Add(d)).String() }

// present is the true time of the tests: a bubble's begins in 2000, when no
// timestamp of a lock is plausible.
func present() time.Time { return time.Now().AddDate(26, 0, 0) }
