package api

import "time"

// NativeList answers GET /api/v1/native: the locks and elections of etcd's own clients below the
// configured native_prefixes, which are shown and never touched.
type NativeList struct {
	Prefixes []NativePrefix `json:"prefixes"`
}

// NativePrefix is what one of the native_prefixes holds.
type NativePrefix struct {
	Prefix      string         `json:"prefix"`
	At          time.Time      `json:"at,omitzero"`
	Revision    int64          `json:"revision,omitempty"`
	Error       string         `json:"error,omitempty"`
	Held        int            `json:"held"`
	Waiting     int            `json:"waiting"`
	Other       int            `json:"other"`
	Holders     []NativeHolder `json:"holders"`
	MoreHolders int            `json:"more_holders,omitempty"`
}

// NativeHolder is a lock or an election that is held: by its oldest key.
type NativeHolder struct {
	Name string `json:"name"`
	NativeKey
	Foreign     bool        `json:"foreign,omitempty"`
	Since       time.Time   `json:"since,omitzero"`
	Waiters     []NativeKey `json:"waiters"`
	MoreWaiters int         `json:"more_waiters,omitempty"`
}

// NativeKey is one key that holds or waits.
type NativeKey struct {
	Key           string `json:"key"`
	Revision      int64  `json:"create_revision"`
	Lease         string `json:"lease"`
	LeaseState    string `json:"lease_state"`
	TTL           int64  `json:"ttl,omitempty"`
	GrantedTTL    int64  `json:"granted_ttl,omitempty"`
	Value         string `json:"value,omitempty"`
	TruncatedFrom int    `json:"truncated_from_bytes,omitempty"`
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
