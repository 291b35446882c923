package api

import "time"

// NativeList answers GET /api/v1/native: the locks and elections of etcd's own clients below the
// configured native_prefixes, which are shown and never touched.
type NativeList struct {
	// Prefixes has an entry for each configured prefix, in the order of the configuration.
	Prefixes []NativePrefix `json:"prefixes"`
}

// NativePrefix is what one of the native_prefixes holds.
type NativePrefix struct {
	Prefix string `json:"prefix"`
	// At is when the prefix was last listed, Revision that of the listing. They are left out
	// before the first listing.
	At       time.Time `json:"at,omitzero"`
	Revision int64     `json:"revision,omitempty"`
	// Error is why the last listing failed. The other fields are then those of the listing
	// before, if there was one.
	Error string `json:"error,omitempty"`
	// Held counts the keys that hold, Waiting those that wait, Other the keys that are not of
	// this kind.
	Held    int `json:"held"`
	Waiting int `json:"waiting"`
	Other   int `json:"other"`
	// Holders are the locks that are held, those with the oldest key first; MoreHolders counts
	// the ones that are not in Holders.
	Holders     []NativeHolder `json:"holders"`
	MoreHolders int            `json:"more_holders,omitempty"`
}

// NativeHolder is a lock or an election that is held: by its oldest key.
type NativeHolder struct {
	// Name is the lock's whole key in etcd, without the lease: as it was given to
	// concurrency.NewMutex, concurrency.NewElection or etcdctl.
	Name string `json:"name"`
	NativeKey
	// Foreign reports whether the key is not one of the lock's own, which are all waiting: it
	// belongs to a lock with a longer name, or is of another kind.
	Foreign bool `json:"foreign,omitempty"`
	// Since is when the daemon first saw this key hold: at its start for one that held already.
	// Left out by commands that ask no daemon.
	Since time.Time `json:"since,omitzero"`
	// Waiters are the keys that wait, in the order in which they get the lock; MoreWaiters
	// counts the ones that are not in Waiters.
	Waiters     []NativeKey `json:"waiters"`
	MoreWaiters int         `json:"more_waiters,omitempty"`
}

// NativeKey is one key that holds or waits.
type NativeKey struct {
	Key string `json:"key"`
	// Revision is the create_revision of the key: the fencing token, and the order of waiters.
	Revision int64 `json:"create_revision"`
	// Lease is the id of the key's lease in hexadecimal, as etcdctl prints it: 0 if it has none.
	Lease string `json:"lease"`
	// LeaseState is one of the constants below.
	LeaseState string `json:"lease_state"`
	// TTL is how many seconds remain unless the lease is kept alive, GrantedTTL how many it has
	// after each keepalive. They are set for an alive lease only.
	TTL        int64 `json:"ttl,omitempty"`
	GrantedTTL int64 `json:"granted_ttl,omitempty"`
	// Value is the key's value: what a candidate of an election announces. A mutex has none.
	Value string `json:"value,omitempty"`
	// TruncatedFrom is the size of the value in etcd, in bytes, if Value is truncated.
	TruncatedFrom int `json:"truncated_from_bytes,omitempty"`
}

// States of the lease of a NativeKey.
const (
	// LeaseAlive is a lease with time left.
	LeaseAlive = "alive"
	// LeaseGone is a lease that etcd does not know, or no longer: its keys are about to be deleted.
	LeaseGone = "gone"
	// LeaseNone is a key without a lease. It stays until it is deleted, and blocks all waiters.
	LeaseNone = "none"
	// LeaseUnknown is a lease that was not read: etcd did not answer in time, or refused, or
	// there are too many.
	LeaseUnknown = "unknown"
)
