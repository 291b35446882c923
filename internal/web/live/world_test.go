package live

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

// source has locks, and counts the passes.
type source struct {
	mu      sync.Mutex
	locks   map[string]api.Lock
	status  api.Status
	changed chan struct{}
	passes  [][]api.Query
	takes   time.Duration // how long a pass takes
	blocks  time.Duration // for how long it blocks
	fails   error
}

func (s *source) Windows(_ context.Context, queries []api.Query) ([]api.LockPage, time.Duration, error) {
	s.mu.Lock()
	takes := s.takes
	s.mu.Unlock()
	time.Sleep(takes)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.passes = append(s.passes, queries)
	pages := make([]api.LockPage, len(queries))
	for i, q := range queries {
		pages[i] = s.page(q)
	}
	return pages, s.blocks, s.fails
}

func (s *source) page(q api.Query) api.LockPage {
	p := api.LockPage{Locks: []api.Lock{}}
	for _, l := range s.locks {
		if (len(q.States) == 0 || slices.Contains(q.States, l.State)) && strings.Contains(l.Name, q.Contains) {
			p.Locks = append(p.Locks, l)
		}
	}
	p.Matched = len(p.Locks)
	slices.SortFunc(p.Locks, func(a, b api.Lock) int { return cmp.Compare(a.Urgency, b.Urgency) })
	p.Locks = api.Fit(p.Locks[:min(len(p.Locks), q.Limit)])
	return p
}

func (s *source) Changed() <-chan struct{} { return s.changed }

func (s *source) Status(context.Context) (api.Status, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := s.status
	status.Now, status.Etcd.Probed = time.Now(), time.Now()
	return status, nil
}

// world is a hub behind a real HTTP server, in a bubble.
type world struct {
	*source
	t     *testing.T
	hub   *Hub
	log   *etcdtest.Log
	dial  func() net.Conn
	stop  func()
	http2 bool
	// format is that of the clients.
	format Format
}

// inBubble runs f with a hub that is served by HTTP/1.1 or HTTP/2, with the timeouts of the daemon.
func inBubble(t *testing.T, http2 bool, f func(*testing.T, *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, http2: http2, format: JSON(), log: &etcdtest.Log{}, source: &source{locks: map[string]api.Lock{}, changed: make(chan struct{}, 1)}}
		w.hub = New(w.source, w.log.Logger())
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.hub.Run(ctx) }()
		w.stop = sync.OnceFunc(func() {
			cancel()
			require.NoError(t, <-ended)
		})
		defer w.stop()
		defer w.serve()()
		f(t, w)
	})
}

func both(t *testing.T, f func(*testing.T, *world)) {
	t.Helper()
	t.Run("HTTP/1.1", func(t *testing.T) { inBubble(t, false, f) })
	t.Run("HTTP/2", func(t *testing.T) { inBubble(t, true, f) })
}

// serve serves connections that are pipes, until the function that it returns is called.
func (w *world) serve() (stop func()) {
	server := &http.Server{
		Handler:     http.HandlerFunc(w.answer),
		ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second,
		Protocols: w.protocols(),
	}
	l := &listener{conns: make(chan net.Conn), closed: make(chan struct{})}
	w.dial = func() net.Conn {
		here, there := net.Pipe()
		l.conns <- there
		return here
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	return func() {
		w.stop()
		require.NoError(w.t, server.Shutdown(w.t.Context()))
		require.ErrorIs(w.t, <-served, http.ErrServerClosed)
	}
}

func (w *world) protocols() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(!w.http2)
	p.SetUnencryptedHTTP2(w.http2)
	return p
}

func (w *world) answer(rw http.ResponseWriter, r *http.Request) {
	if err := w.hub.Serve(rw, r, queryOf(r.URL.RawQuery), w.format); err != nil {
		http.Error(rw, err.Error(), http.StatusServiceUnavailable)
	}
}

func queryOf(text string) api.Query {
	values, _ := url.ParseQuery(text)
	return api.Query{Contains: values.Get("q"), States: values["state"], ByUrgency: true, Limit: 3}
}

// listener is one of pipes.
type listener struct {
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *listener) Addr() net.Addr { return &net.UnixAddr{} }

// put takes or changes a lock. Its urgency is its text.
func (w *world) put(name, state string, edits ...func(*api.Lock)) {
	l := api.Lock{Name: name, State: state, Urgency: state + name}
	for _, edit := range edits {
		edit(&l)
	}
	w.change(func(s *source) { s.locks[name] = l })
}

func (w *world) release(name string) { w.change(func(s *source) { delete(s.locks, name) }) }

func (w *world) change(f func(*source)) {
	w.mu.Lock()
	f(w.source)
	w.mu.Unlock()
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

func (w *world) scans() int {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.passes)
}

func (w *world) clients() int {
	synctest.Wait()
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	return w.hub.clients
}

// client reads a stream, and applies its events as a page in a browser does.
type client struct {
	*world
	body  io.ReadCloser
	code  int
	close func()
	ended chan struct{}

	mu      sync.Mutex
	id      string
	beats   int
	beaten  string   // what the last heartbeat said
	types   []string // of the events since they were asked for
	shown   map[string]api.Lock
	matched int
	daemon  *api.Status
}

// open opens a stream, and reads it.
func (w *world) open(query, last string) *client {
	c := w.openSlow(query, last)
	go c.read()
	synctest.Wait()
	return c
}

// openSlow opens a stream that is not read until read is called.
func (w *world) openSlow(query, last string) *client {
	w.t.Helper()
	transport := &http.Transport{
		Protocols:   w.protocols(),
		HTTP2:       &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10}, // who does not read blocks the daemon
		DialContext: func(context.Context, string, string) (net.Conn, error) { return w.dial(), nil },
	}
	ctx, cancel := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://daemon/api/v1/events?"+query, nil)
	require.NoError(w.t, err)
	req.Header.Set("Last-Event-ID", last)
	resp, err := transport.RoundTrip(req) //nolint:bodyclose // closed by client.close
	require.NoError(w.t, err)
	c := &client{world: w, body: resp.Body, code: resp.StatusCode, ended: make(chan struct{}), id: last, shown: map[string]api.Lock{}}
	c.close = func() {
		cancel()
		_ = resp.Body.Close()
		transport.CloseIdleConnections()
		synctest.Wait()
	}
	w.t.Cleanup(c.close)
	return c
}

// read reads until the stream ends.
func (c *client) read() {
	defer close(c.ended)
	lines := bufio.NewReader(c.body)
	id, data := "", ""
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return
		}
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		switch {
		case key == "id":
			id = value
		case key == "data":
			data = value
		case key == "" && value != "":
			c.beat(value)
		case line == "\n" && data != "":
			c.apply(id, data)
			data = ""
		}
	}
}

func (c *client) beat(now string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.beats++
	c.beaten = now
}

func (c *client) apply(id, data string) {
	var e api.Event
	if err := json.Unmarshal([]byte(data), &e); err != nil {
		panic(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.id = id
	c.types = append(c.types, e.Type)
	switch e.Type {
	case api.EventReset:
		c.shown = map[string]api.Lock{}
		for _, l := range e.Locks {
			c.shown[l.Name] = l
		}
		c.matched = *e.Matched
	case api.EventLock:
		c.shown[e.Name] = *e.Lock
	case api.EventGone:
		delete(c.shown, e.Name)
	case api.EventMatched:
		c.matched = *e.Matched
	case api.EventStatus:
		c.daemon = e.Status
	}
}

// got returns the types of the events since the last call.
func (c *client) got() []string {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	types := c.types
	c.types = nil
	return types
}

// names are those of the locks shown, by urgency.
func (c *client) names() string {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	shown := slices.SortedFunc(maps.Values(c.shown), func(a, b api.Lock) int { return cmp.Compare(a.Urgency, b.Urgency) })
	var names []string
	for _, l := range shown {
		names = append(names, l.Name)
	}
	return strings.Join(names, " ")
}

func (c *client) hasEnded() bool {
	synctest.Wait()
	select {
	case <-c.ended:
		return true
	default:
		return false
	}
}
