//go:build go1.25

package mutex_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/mutex"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

// logged returns the option of a client that logs, and what it has logged.
func logged() (mutex.Option, func() []string) {
	var mu sync.Mutex
	var b bytes.Buffer
	log := mutex.Log(slog.New(slog.NewJSONHandler(&b, nil)))
	return mutex.Observe(func(e mutex.Event) {
			mu.Lock()
			defer mu.Unlock()
			log(e)
		}), func() []string {
			mu.Lock()
			defer mu.Unlock()
			return strings.Split(strings.TrimSpace(b.String()), "\n")[:strings.Count(b.String(), "\n")]
		}
}

// seen are the events of a client.
type seen struct {
	mu     sync.Mutex
	events []mutex.Event
}

func (s *seen) add(e mutex.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, e)
}

// take returns the events so far without those of a kind, and forgets all.
func (s *seen) take(without mutex.EventKind) (kinds []mutex.EventKind, events []mutex.Event) {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.events {
		if e.Kind != without {
			kinds, events = append(kinds, e.Kind), append(events, e)
		}
	}
	s.events = nil
	return kinds, events
}

type call struct{}

// TestEvents lets a lock have all that can happen to it, in two clients.
func TestEvents(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		var s seen
		first, _ := connect(mutex.Patience(time.Minute))
		c, link := connect(mutex.KeepAlive(time.Hour), mutex.Patience(time.Minute), mutex.Observe(nil), mutex.Observe(s.add))
		held, err := first.Lock(t.Context(), "a")
		require.NoError(t, err)
		time.AfterFunc(10*time.Second, func() { _ = held.Unlock(t.Context()) })
		ctx := context.WithValue(t.Context(), call{}, "this")
		l, err := c.Lock(ctx, "a")
		require.NoError(t, err)
		kinds, events := s.take("")
		require.Equal(t, []mutex.EventKind{mutex.EventWaiting, mutex.EventTaken}, kinds)
		var by *mutex.HeldError
		require.ErrorAs(t, events[0].Err, &by)
		require.Equal(t, held.UUID(), by.Holder.UUID)
		require.NotEmpty(t, by.Holder.Hostname)
		require.Equal(t, "this", events[0].Context.Value(call{}))
		require.Equal(t, "this", events[1].Context.Value(call{}))
		require.Equal(t, l.UUID(), events[0].UUID)
		require.Equal(t, "a", events[1].Name)
		require.Equal(t, l.UUID(), events[1].UUID)
		require.InDelta(t, 10*time.Second, events[1].Took, float64(time.Second))

		<-time.After(time.Minute + time.Second)
		kinds, events = s.take("")
		require.Equal(t, []mutex.EventKind{mutex.EventRenewed, mutex.EventRenewed, mutex.EventRenewed}, kinds)
		require.InDelta(t, 2./3, events[0].Margin, .01)

		// Two late renewals are one event.
		for range 2 {
			link.Set(memetcd.Unreachable())
			<-time.After(time.Until(l.Deadline()) - 5*time.Second)
			link.Set(memetcd.Faults{})
			<-time.After(5 * time.Second)
		}
		kinds, events = s.take(mutex.EventRenewed)
		require.Equal(t, []mutex.EventKind{mutex.EventLate}, kinds)
		require.Less(t, events[0].Margin, .25)
		<-time.After(time.Minute)
		link.Set(memetcd.Unreachable())
		<-time.After(time.Until(l.Deadline()) - 5*time.Second)
		link.Set(memetcd.Faults{})
		<-time.After(5 * time.Second)
		kinds, _ = s.take(mutex.EventRenewed)
		require.Equal(t, []mutex.EventKind{mutex.EventLate}, kinds, "after one in time")

		question(t, link, l)
		<-time.After(time.Second)
		kinds, _ = s.take(mutex.EventRenewed)
		require.Equal(t, []mutex.EventKind{mutex.EventAsked}, kinds)
		require.NoError(t, l.Unlock(t.Context()))
		require.NoError(t, l.Unlock(t.Context()))
		kinds, events = s.take(mutex.EventRenewed)
		require.Equal(t, []mutex.EventKind{mutex.EventReleased}, kinds)
		require.Greater(t, events[0].Took, 3*time.Minute)
	})
}

// TestEventsOfALoss has one event for each way to lose a lock, whoever reports it.
func TestEventsOfALoss(t *testing.T) {
	for name, lose := range map[string]func(*testing.T, *memetcd.Link, *mutex.Lock){
		"deadline": func(t *testing.T, _ *memetcd.Link, l *mutex.Lock) {
			require.ErrorIs(t, done(t, l.Context(t.Context())), mutex.ErrDeadline)
			require.Error(t, l.Alive(t.Context()))
		},
		"removed": func(t *testing.T, link *memetcd.Link, l *mutex.Lock) {
			<-time.After(time.Second)
			_, err := link.Delete(t.Context(), "/mutexes/a/", clientv3.WithPrefix())
			require.NoError(t, err)
			require.ErrorIs(t, done(t, l.Context(t.Context())), mutex.ErrForced)
		},
		"seen by Unlock": func(t *testing.T, link *memetcd.Link, _ *mutex.Lock) {
			_, err := link.Delete(t.Context(), "/mutexes/a/", clientv3.WithPrefix())
			require.NoError(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
				var s seen
				c, link := connect(mutex.Observe(s.add))
				l, err := c.Lock(t.Context(), "a")
				require.NoError(t, err)
				lose(t, link, l)
				require.ErrorIs(t, l.Unlock(t.Context()), mutex.ErrLost)
				kinds, events := s.take("")
				require.Equal(t, []mutex.EventKind{mutex.EventTaken, mutex.EventLost}, kinds)
				require.ErrorIs(t, events[1].Err, mutex.ErrLost)
			})
		})
	}
}

// TestLogWarnsOfLateRenewals escapes the name, which anything may be.
func TestLogWarnsOfLateRenewals(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		log, said := logged()
		c, _ := connect(log, mutex.Patience(time.Minute))
		l, err := c.Lock(t.Context(), "a\n\x1b[2J")
		require.NoError(t, err)
		require.NoError(t, l.Alive(t.Context()))
		for range 2 {
			<-time.After(50 * time.Second)
			require.NoError(t, l.Alive(t.Context()))
		}
		require.NoError(t, l.Unlock(t.Context()))
		require.Len(t, said(), 1)
		require.Contains(t, said()[0], `"level":"WARN","msg":"mutex: lock renewed late","lock":"a\n\u001b[2J"`)
		require.Contains(t, said()[0], `"margin":0.16`)
	})
}

// TestObserversOfALock are in addition to those of the client.
func TestObserversOfALock(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		var all, one, none seen
		c, _ := connect(mutex.Observe(all.add))
		for _, opts := range [][]mutex.Option{{mutex.Observe(one.add)}, {mutex.Observe(nil), mutex.Observe(none.add)}} {
			locks, _, err := c.TryLockAll(t.Context(), []string{"a", "b"}, opts...)
			require.NoError(t, err)
			require.NoError(t, c.UnlockAll(t.Context(), locks...))
		}
		for _, s := range []*seen{&all, &one, &none} {
			kinds, _ := s.take("")
			require.Equal(t, []mutex.EventKind{mutex.EventTaken, mutex.EventTaken, mutex.EventReleased, mutex.EventReleased}, kinds)
		}
	})
}

func TestLog(t *testing.T) {
	err := errors.ErrUnsupported
	for want, events := range map[string][]mutex.Event{
		"mutex: lock renewed late":          {{Kind: mutex.EventLate, Name: "a"}},
		"mutex: waiting for etcd":           {{Kind: mutex.EventWaiting, Err: mutex.ErrUnreachable}},
		"mutex: waiting in no order":        {{Kind: mutex.EventWaiting, Err: err}},
		"mutex: no answers to unlocker ask": {{Kind: mutex.EventAsked, Err: err}},
		"": {
			{Kind: mutex.EventWaiting, Name: "a", Err: &mutex.HeldError{}}, {Kind: mutex.EventTaken, Name: "a"}, {Kind: mutex.EventRenewed, Name: "a"},
			{Kind: mutex.EventLost, Name: "a", Err: err}, {Kind: mutex.EventReleased, Name: "a"}, {Kind: mutex.EventAsked, Name: "a"},
		},
	} {
		var b bytes.Buffer
		log := mutex.Log(slog.New(slog.NewJSONHandler(&b, nil)))
		for _, e := range events {
			log(e)
		}
		var line struct{ Level, Msg string }
		if want != "" {
			require.NoError(t, json.Unmarshal(b.Bytes(), &line), b.String())
			require.Equal(t, "WARN", line.Level)
		}
		require.Equal(t, want, line.Msg)
		require.Equal(t, want == "", b.Len() == 0, b.String())
	}
}
