package live

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
)

// sink is a client that has got its window when got has a value.
type sink struct {
	h   http.Header
	n   int
	got chan struct{}
}

func (s *sink) Header() http.Header              { return s.h }
func (s *sink) WriteHeader(int)                  {}
func (s *sink) SetWriteDeadline(time.Time) error { return nil }

func (s *sink) Write(b []byte) (int, error) {
	s.n += len(b)
	return len(b), nil
}

func (s *sink) FlushError() error {
	select {
	case s.got <- struct{}{}:
	default:
	}
	return nil
}

// cloning makes new strings with each page, as the table's names are clipped.
type cloning struct{ *source }

func (c cloning) Windows(ctx context.Context, queries []api.Query) ([]api.LockPage, time.Duration, error) {
	pages, blocked, err := c.source.Windows(ctx, queries)
	for i := range pages {
		for j := range pages[i].Locks {
			pages[i].Locks[j].Name = strings.Clone(pages[i].Locks[j].Name)
		}
	}
	return pages, blocked, err
}

// So many views as there may be, of locks with names that are long, the more so as JSON.
func TestMemoryOfViews(t *testing.T) {
	const n = 1000
	s := &source{locks: map[string]api.Lock{}, changed: make(chan struct{}, 1)}
	for i := range n {
		name := fmt.Sprint(i, strings.Repeat("\x01", 4000))
		s.locks[name] = api.Lock{Name: name, State: "held", Urgency: fmt.Sprint(i)}
	}
	h := New(cloning{s}, (&etcdtest.Log{}).Logger())
	before := heap()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{}, maxViews+1)
	go func() { _ = h.Run(ctx); ended <- struct{}{} }()
	sinks := make([]*sink, maxViews)
	for i := range sinks {
		sinks[i] = &sink{h: http.Header{}, got: make(chan struct{}, 1)}
		go func() {
			r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
			_ = h.Serve(sinks[i], r, api.Query{Contains: strings.Repeat("\x01", i), ByUrgency: true, Limit: n}, JSON())
			ended <- struct{}{}
		}()
	}
	for _, c := range sinks {
		<-c.got
	}
	grown := heap() - before
	cancel()
	for range maxViews + 1 {
		<-ended
	}
	t.Logf("%d KiB for each view", grown/maxViews>>10)
	require.Less(t, grown, maxViews*(api.MaxPage+maxRing))
	for _, c := range sinks {
		require.Less(t, c.n, api.MaxPage+10_000)
	}
	for _, v := range h.views {
		require.NotEmpty(t, v.page.Locks)
		require.Equal(t, n, v.page.Matched, "all are counted")
		require.Nil(t, v.reset.Value(), "nobody is sent it any more")
	}
}

func heap() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}
