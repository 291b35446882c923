package verdict_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// past is the deadline of all locks here, and before any clock that runs the tests.
var past = time.Unix(1_700_000_000, 0).UTC()

const ages = 100 * 365 * 24 * time.Hour

const (
	grace     = 3 * time.Second
	tolerance = 2 * time.Second
	settle    = 15 * time.Second
	standby   = 5 * time.Second
)

func rules(policies ...verdict.Policy) verdict.Rules {
	return verdict.Rules{
		Reaper:   config.Reaper{Mode: verdict.Enforce, Grace: grace, ClockTolerance: tolerance, StandbyDelay: standby},
		Policies: policies,
	}
}

// listed is a lock as a listing shows it, with the deadline past.
func listed(name string, fields ...protocol.Field) *protocol.Lock {
	var b protocol.Builder
	for _, f := range append(fields, protocol.FieldAutoUnlockAt) {
		b.Add(protocol.KV{Field: f, Value: []byte(protocol.TimestampOf(past).String()), Create: 7, Mod: 7})
	}
	l := b.Lock(name)
	return &l
}
