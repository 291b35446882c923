package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"
)

const (
	// MaxTicket is the maximum size of the value of a ticket, in bytes.
	MaxTicket = 16 << 10
	// MaxSlots is the maximum number of slots of a name.
	MaxSlots = 1000
	// maxHolds is how many uuids are kept of a ticket.
	maxHolds = 64
)

// Ticket is what a waiter says about itself, in JSON. These are claims of the process that wrote it. Texts are
// clipped to the length of a DNS name.
type Ticket struct {
	// UUID is the one that the lock will have.
	UUID     string `json:"uuid,omitempty"`
	Hostname string `json:"hostname,omitempty"`
	PID      string `json:"pid,omitempty"`
	Owner    string `json:"owner,omitempty"`
	Purpose  string `json:"purpose,omitempty"`
	// Since is when the wait began according to the waiter's clock, in RFC 3339.
	Since time.Time `json:"since,omitzero"`
	// Slots is how many holders of the name the waiter allows, 0 where the name is a lock.
	Slots int `json:"slots,omitempty"`
	// Holds are the uuids of the locks that this flow of work holds while it waits.
	Holds []string `json:"holds,omitempty"`
}

// ParseTicket returns the ticket with this value. What is too long or too many is left out, so that the result is
// bounded.
func ParseTicket(value []byte) (t Ticket, err error) {
	if len(value) > MaxTicket || json.Unmarshal(value, &t) != nil || !validUUID(t.UUID) || t.Slots < 0 || t.Slots > MaxSlots || t.Since.UTC().Year() > 9999 {
		return Ticket{}, errors.New("not the value of a ticket")
	}
	t.Since = t.Since.UTC()
	return t.bounded(), nil
}

// Value returns the value to write.
func (t Ticket) Value() string {
	value, _ := json.Marshal(t.bounded()) // fails for years beyond 9999 only
	return string(value)
}

func (t Ticket) bounded() Ticket {
	for _, s := range []*string{&t.Hostname, &t.PID, &t.Owner, &t.Purpose} {
		*s = Clip([]byte(*s), maxLabelLen)
	}
	t.Holds = slices.DeleteFunc(slices.Clone(t.Holds), func(uuid string) bool { return !validUUID(uuid) })
	t.Holds = t.Holds[:min(len(t.Holds), maxHolds)]
	return t
}

func validUUID(uuid string) bool { return uuid != "" && len(uuid) <= maxUUIDLen }

// TicketsOf returns the half-open range of the tickets of a name under waitersPrefix, which ends in a slash. The
// key of a ticket is <waitersPrefix><name>//<ticket>, with any <ticket> that is unique and has no slash. No name contains two
// slashes in a row. The order of the tickets is that of their create_revision, and then that of the keys.
func TicketsOf(waitersPrefix, name string) (from, end string) {
	base := waitersPrefix + name + "/"
	return base + "/", base + string(rune('/'+1))
}

// SplitTicket splits a key under waitersPrefix into the name and the ticket. They share its memory.
func SplitTicket(waitersPrefix string, key []byte) (name, ticket []byte, valid bool) {
	rest, ok := bytes.CutPrefix(key, []byte(waitersPrefix))
	i := bytes.LastIndex(rest, []byte("//"))
	if !ok || i < 0 || !validUUID(string(rest[i+2:])) || validName(rest[:i]) != nil || strings.Contains(string(rest[i+2:]), "/") {
		return nil, nil, false
	}
	return rest[:i], rest[i+2:], true
}
