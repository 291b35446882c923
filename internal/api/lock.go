package api

import (
	"time"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// States returns the names of all states a lock can have.
func States() []string {
	var names []string
	for s := range protocol.NumStates {
		names = append(names, s.String())
	}
	return names
}

// StatesByUrgency returns the names of all states, the most urgent first.
func StatesByUrgency() []string {
	var names []string
	for _, s := range protocol.ByUrgency() {
		names = append(names, s.String())
	}
	return names
}

// maxName bounds a name, in bytes. etcd accepts keys of more than a megabyte.
const maxName = 4 << 10

// NewLock returns a lock as it is at now, where the clock of its holder is ahead. A key that
// belongs to no lock has a name that begins with a slash.
func NewLock(l *protocol.Lock, now time.Time, ahead time.Duration) Lock {
	return Lock{
		Name:         protocol.Clip([]byte(l.Name), maxName),
		State:        l.State(protocol.TimestampOf(now.Add(ahead))).String(),
		UUID:         l.UUID(),
		Hostname:     l.Hostname(),
		Owner:        l.Owner(),
		Purpose:      l.Purpose(),
		Status:       l.Status(),
		LockedAt:     l.LockedAt().Time(),
		AlertAt:      l.AlertAt().Time(),
		AutoUnlockAt: l.AutoUnlockAt().Time(),
		AliveAt:      l.AliveAt().Time(),
		ClockOffset:  ahead.Seconds(),
		Token:        l.Token,
		Revision:     l.Revision,
		Keys:         int(l.Keys),
	}
}
