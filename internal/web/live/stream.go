package live

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"runtime"
	"slices"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
)

const (
	// heartbeat is how often a stream has a comment.
	heartbeat = 10 * time.Second
	// writeTimeout bounds how long a client may take for maxWrite bytes.
	writeTimeout = 10 * time.Second
	maxWrite     = 64 << 10
)

// Headers sets the headers of a stream.
func Headers(h http.Header) {
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no") // nginx would wait for more
}

// Serve sends the events of a query in a format until the client goes, does not read, or Run returns. It
// returns an error only if it has sent nothing.
func (h *Hub) Serve(w http.ResponseWriter, r *http.Request, q api.Query, f Format) error {
	v, err := h.join(q, f)
	if err != nil {
		return err
	}
	defer h.leave(v)
	if !h.await(r.Context(), v) {
		return ErrBusy
	}
	Headers(w.Header())
	s := &stream{hub: h, view: v, w: w, control: http.NewResponseController(w)}
	if err := s.begin(r.Header.Get("Last-Event-ID")); err != nil {
		return nil
	}
	for s.follow(r.Context()) == nil {
	}
	return nil
}

func (h *Hub) await(ctx context.Context, v *view) bool {
	for {
		h.mu.Lock()
		ready, grown := v.fresh && v.status != nil, v.grown
		h.mu.Unlock()
		if ready {
			return true
		}
		select {
		case <-grown:
		case <-h.stopped:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

type stream struct {
	hub     *Hub
	view    *view
	w       io.Writer
	control *http.ResponseController
	seen    uint64    // how many events of the view it has
	beaten  time.Time // when the last heartbeat was sent
}

// begin sends what the client does not have: all, unless it can resume after the event with the id
// that it has seen last; and the status.
func (s *stream) begin(last string) error {
	// Clients do not come back all at the same time after a restart.
	if err := s.write(fmt.Appendf(nil, "retry: %d\n", 1000+rand.IntN(2000))); err != nil {
		return err
	}
	s.hub.mu.Lock()
	n, kept := s.view.place(last)
	status := s.view.status
	s.hub.mu.Unlock()
	if !kept {
		return s.reset()
	}
	s.seen = n
	return s.event(status)
}

func (s *stream) reset() error {
	s.hub.mu.Lock()
	whole, err := s.view.whole()
	status := s.view.status
	s.seen = s.view.ring.count
	s.hub.mu.Unlock()
	if err == nil {
		err = s.event(*whole)
		runtime.KeepAlive(whole) // for others who want it meanwhile
	}
	if err == nil {
		err = s.event(status)
	}
	return err
}

// follow sends the next events, or waits for them. At the end of the stream it returns an error.
func (s *stream) follow(ctx context.Context) error {
	if err := s.beat(); err != nil {
		return err
	}
	s.hub.mu.Lock()
	events, kept := s.view.ring.after(s.seen)
	grown := s.view.grown
	s.hub.mu.Unlock()
	if !kept {
		return s.reset()
	}
	for _, e := range events {
		s.seen++
		if err := s.event(e); err != nil {
			return err
		}
	}
	if len(events) > 0 {
		return ctx.Err()
	}
	// Without the deadline, which HTTP/2 would enforce although nothing is being written.
	if err := cmp.Or(s.control.Flush(), s.control.SetWriteDeadline(time.Time{})); err != nil {
		return err
	}
	next := time.NewTimer(time.Until(s.beaten.Add(heartbeat)))
	defer next.Stop()
	select {
	case <-grown:
	case <-next.C:
	case <-s.hub.stopped:
		return ErrBusy
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// beat sends a comment every heartbeat, with the time, by which clients count.
func (s *stream) beat() error {
	now := time.Now()
	if now.Sub(s.beaten) < heartbeat {
		return nil
	}
	s.beaten = now
	return s.write(now.UTC().AppendFormat(nil, ": 2006-01-02T15:04:05.000Z\n\n"))
}

// event sends an event, after which the client has those seen so far.
func (s *stream) event(data []byte) error {
	return s.write(fmt.Appendf(nil, "id: %s\ndata: ", s.view.id(s.seen)), data, []byte("\n\n"))
}

// write fails if the client does not read.
func (s *stream) write(texts ...[]byte) error {
	for _, data := range texts {
		for part := range slices.Chunk(data, maxWrite) {
			if err := s.control.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
				return err
			}
			if _, err := s.w.Write(part); err != nil {
				return err
			}
		}
	}
	return nil
}
