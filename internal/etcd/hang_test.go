package etcd

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

// proxied is a client of three members through proxies.
type proxied struct {
	*Client
	t       *testing.T
	proxies []*localetcd.Proxy
	log     etcdtest.Log
}

func newProxied(t *testing.T) *proxied {
	t.Helper()
	cluster, p := etcdtest.Start(t, localetcd.Options{Members: 3}), &proxied{t: t}
	o := options("")
	o.Endpoints, o.HangAfter = nil, time.Second
	for i := range 3 {
		p.proxies = append(p.proxies, cluster.Proxy(i))
		o.Endpoints = append(o.Endpoints, p.proxies[i].Addr())
	}
	o.Logger = p.log.Logger()
	p.Client = mustNew(t, o)
	eventuallyPut(t, p.Client, "k")
	return p
}

// ask asks for alarms until the test ends.
func (p *proxied) ask() {
	ctx, cancel := context.WithCancel(context.Background())
	var asking sync.WaitGroup
	p.t.Cleanup(func() { cancel(); asking.Wait() })
	asking.Go(func() {
		for ctx.Err() == nil {
			asking.Go(func() {
				ctx, cancel := context.WithTimeout(ctx, 4*p.options.HangAfter)
				defer cancel()
				_, _ = p.AlarmList(ctx)
			})
			select {
			case <-time.After(p.options.HangAfter / 4):
			case <-ctx.Done():
			}
		}
	})
}

// connected waits until requests are sent to all members.
func (p *proxied) connected() {
	p.t.Helper()
	members := make(map[uint64]bool)
	etcdtest.Eventually(p.t, func() bool {
		r, err := p.Get(p.t.Context(), "k")
		require.NoError(p.t, err)
		members[r.Header.MemberId] = true
		return len(members) == len(p.proxies)
	}, "connected")
}

// watches opens streams to all members.
func (p *proxied) watches(key string) (all []clientv3.WatchChan) {
	for range 6 {
		w := clientv3.NewWatcher(p.Client.Client)
		p.t.Cleanup(func() { _ = w.Close() })
		watch := w.Watch(p.t.Context(), key, clientv3.WithCreatedNotify())
		require.True(p.t, (<-watch).Created)
		all = append(all, watch)
	}
	return all
}

// A member that hangs while others answer loses its connection: each watch and each request
// goes to another, long before a keepalive would notice, and comes back once it answers.
func TestAMemberThatHangsIsLeft(t *testing.T) {
	t.Parallel()
	p := newProxied(t)
	p.connected()
	p.ask()
	watches := p.watches("watched")
	p.proxies[1].Blackhole()
	eventuallyPut(t, p.Client, "watched")
	for _, w := range watches {
		select {
		case r := <-w:
			require.NoError(t, r.Err())
			require.Len(t, r.Events, 1)
		case <-time.After(etcdtest.Soon):
			require.FailNow(t, "a watch hangs")
		}
	}
	require.Equal(t, p.proxies[1].Addr(), p.log.Lines(api.LogMemberHangs)[0]["member"])
	for range 9 {
		_, err := p.Put(t.Context(), "k", "v") // would fail with the connection
		require.NoError(t, err, "no request is sent to it")
	}
	require.NoError(t, p.proxies[1].Heal())
	p.proxies[0].Blackhole()
	p.proxies[2].Blackhole()
	eventuallyGet(t, p.Client)
}

// Where no member answers none is left: the outage may be anywhere.
func TestNoMemberIsLeftWhileNoneAnswers(t *testing.T) {
	t.Parallel()
	p := newProxied(t)
	p.connected()
	for _, proxy := range p.proxies {
		proxy.Blackhole()
	}
	p.ask() // not before, since the last member might answer when the first has hung for long
	ctx, cancel := context.WithTimeout(t.Context(), 4*p.options.HangAfter)
	defer cancel()
	_, err := p.Get(ctx, "k")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Empty(t, p.log.Lines(api.LogMemberHangs))
	for _, proxy := range p.proxies {
		require.NoError(t, proxy.Heal())
	}
	eventuallyGet(t, p.Client)
}

// A member that answers slowly is no member that hangs.
func TestAMemberThatShowsSomethingIsNotLeft(t *testing.T) {
	t.Parallel()
	h := newTraffic(Options{HangAfter: time.Second})
	silent, other := &connection{}, &connection{heard: time.Now().Add(time.Minute)}
	began := time.Now().Add(-2 * h.patience)
	for _, c := range []*connection{silent, silent, other, nil} { // two probes ask it before it is left
		h.pending[&request{start: began, on: c}] = struct{}{}
	}
	later := &request{start: time.Now()}
	require.Empty(t, h.ended(later, false), "no other member answers either")
	require.Empty(t, h.ended(&request{start: began}, true), "this process stalled: both answers are late")
	require.Equal(t, []*connection{silent}, h.ended(later, true))
	require.Empty(t, h.ended(later, true), "once")
	h.patience = time.Hour
	h.pending[&request{start: began, on: silent}] = struct{}{}
	require.Empty(t, h.ended(later, true), "not for so long yet")
}

func eventuallyGet(t *testing.T, c *Client) {
	t.Helper()
	etcdtest.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := c.Get(ctx, "k", clientv3.WithSerializable())
		return err == nil
	})
}
