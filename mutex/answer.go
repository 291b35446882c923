package mutex

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

const (
	// answerInterval is the minimum time between two answers of a lock, whoever asks.
	answerInterval = 5 * time.Second
	// statusTimeout is how long the function of OnAsk may take. Then the answer has the stack only.
	statusTimeout = 500 * time.Millisecond
	// deafInterval is how often a client without the right to read questions tries again.
	deafInterval = 10 * time.Minute
)

// note is the request that writes what the holder does: under its uuid, and without renewing the lock.
type note struct {
	outcome
	l      *Lock
	fields map[protocol.Field]string
}

func (n *note) step() step {
	l := n.l
	l.mu.Lock()
	defer l.mu.Unlock()
	s := step{compares: []clientv3.Cmp{l.c.store.is(l.name, l.uuid)}}
	for f, value := range n.fields {
		if l.ctx.Err() == nil && value != "" { // Unlock sees that it may have been written
			l.written[f.String()] = ""
			s.then = append(s.then, clientv3.OpPut(l.c.store.key(l.name, f), value))
		}
	}
	return s
}

func (n *note) answered(answer) bool { return true }

func (l *Lock) write(fields map[protocol.Field]string) {
	ctx, cancel := context.WithTimeout(l.ctx, attemptTimeout)
	defer cancel()
	l.c.store.settle(ctx, attemptTimeout, &note{l: l, fields: fields})
}

// listen waits for questions until the lock is lost or released. It reads the key before it watches it: etcd's client
// 3.7 may not close after a watch that was refused. It logs each refusal, so that one lock tries for all.
func (l *Lock) listen() {
	for l.ctx.Err() == nil {
		if left := time.Until(time.Unix(0, l.c.deaf.Load())); left > 0 {
			_ = rest(l.ctx, left+rand.N(time.Minute))
			continue
		}
		l.follow(protocol.QuestionKey(l.c.settings.ask, l.name, l.uuid), 0, l.question, func(err error) (over bool) {
			if code(err) != codes.PermissionDenied {
				return false
			}
			l.c.deaf.Store(time.Now().Add(deafInterval).UnixNano())
			l.c.sayDeaf.Do(func() {
				l.c.settings.observers.emit(Event{Kind: EventAsked, Err: fmt.Errorf("no right to read questions under %s: %w", l.c.settings.ask, err)})
			})
			return true
		})
	}
}

// question has the timer of the lock start the answer.
func (l *Lock) question(asked *mvccpb.KeyValue) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if asked != nil {
		l.asked = true
		l.arm(time.Now())
	}
}

// answerQuestion is called once at a time. It acts on nothing in the question, which any client may have written.
func (l *Lock) answerQuestion() {
	l.emit(Event{Kind: EventAsked})
	began := time.Now()
	fields := map[protocol.Field]string{protocol.FieldStatus: l.status(), protocol.FieldAnsweredAt: timestamp(began, 0)}
	if l.goroutine != 0 {
		fields[protocol.FieldStack] = l.c.stacks.of(l.goroutine)
	}
	l.write(fields)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mute = began.Add(answerInterval)
}

// status returns what OnAsk says, or else what Status said. A function that hangs, perhaps as the work does, is not
// called again.
func (l *Lock) status() string {
	l.mu.Lock()
	set := l.set
	l.mu.Unlock()
	if set.onAsk == nil {
		return set.status
	}
	select {
	case <-l.saying: // too late for the last answer
		l.saying = nil
	default:
	}
	if l.saying == nil {
		saying := make(chan string, 1)
		l.saying = saying
		go func() { saying <- protocol.Clip([]byte(set.onAsk()), maxText) }()
	}
	select {
	case text := <-l.saying:
		l.saying = nil
		return text
	case <-time.After(statusTimeout):
		return set.status
	case <-l.ctx.Done():
		return ""
	}
}

const (
	maxFrames = 48
	// maxDump bounds the stacks of all goroutines, of which one is looked for.
	maxDump = 32 << 20
	// dumpAge is for how long a dump serves all locks, at least, and dumpRest how many times as long as it took. The
	// world stops for each, also for those who ask for the stacks of many locks.
	dumpAge, dumpRest = 100 * time.Millisecond, 10
)

// traces are the backtraces of the places that have locked: to write one takes longer than
// the rest of what a lock needs beside its transaction.
type traces struct {
	mu    sync.Mutex
	texts map[[maxFrames]uintptr]string
}

// caller returns where a method of the client was called from.
func (t *traces) caller(trace bool) (at call) {
	const maxTraces = 256 // bounds the memory for backtraces
	if !trace {
		return call{}
	}
	var pcs [maxFrames]uintptr
	n := runtime.Callers(2, pcs[:])
	id := goroutineID()
	t.mu.Lock()
	defer t.mu.Unlock()
	text, known := t.texts[pcs]
	if !known {
		text = backtrace(pcs[:n])
		if t.texts == nil || len(t.texts) == maxTraces {
			t.texts = map[[maxFrames]uintptr]string{}
		}
		t.texts[pcs] = text
	}
	return call{text, id}
}

// backtrace returns one line for each function above the client's methods.
func backtrace(pcs []uintptr) string {
	frames := runtime.CallersFrames(pcs)
	var b strings.Builder
	for inside := true; ; {
		f, more := frames.Next()
		_, method, _ := strings.Cut(f.Function, "/mutex.")
		if inside = inside && strings.HasPrefix(method, "(*Client)."); !inside && f.Function != "" && b.Len() < maxText {
			fmt.Fprintf(&b, "%s %s:%d\n", f.Function, f.File, f.Line)
		}
		if !more {
			break
		}
	}
	return protocol.Clip([]byte(b.String()), maxText)
}

// goroutineID returns the number that the stack of this goroutine begins with: there is no
// other way to find it again among all stacks.
func goroutineID() uint64 {
	var b [64]byte
	text, _, _ := strings.Cut(strings.TrimPrefix(string(b[:runtime.Stack(b[:], false)]), "goroutine "), " ")
	id, _ := strconv.ParseUint(text, 10, 64) // 0 turns the stack off
	return id
}

// stacks is the last dump of all goroutines.
type stacks struct {
	mu   sync.Mutex
	dump []byte
}

func (s *stacks) get() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dump != nil {
		return s.dump
	}
	began := time.Now()
	for size := 64 << 10; ; size *= 4 {
		s.dump = make([]byte, min(size, maxDump))
		n := runtime.Stack(s.dump, true)
		if n < len(s.dump) || size >= maxDump {
			s.dump = s.dump[:n]
			break
		}
	}
	time.AfterFunc(max(dumpAge, dumpRest*time.Since(began)), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.dump = nil
	})
	return s.dump
}

// of returns the stack of one goroutine: its state, then one line for each function.
func (s *stacks) of(goroutine uint64) string {
	begin := fmt.Appendf(nil, "goroutine %d [", goroutine)
	for _, part := range bytes.Split(s.get(), []byte("\n\n")) {
		if bytes.HasPrefix(part, begin) {
			return format(string(part))
		}
	}
	return "the goroutine that took the lock has ended"
}

// format turns two lines, a call and its place, into one without arguments. Only those of places are indented.
func format(stack string) string {
	lines := strings.Split(stack, "\n")
	var b strings.Builder
	b.WriteString(lines[0])
	for _, line := range lines[1:] {
		if place, indented := strings.CutPrefix(line, "\t"); indented {
			place, _, _ = strings.Cut(place, " +0x")
			b.WriteString(" " + place)
			continue
		}
		if end := strings.LastIndexByte(line, '('); end > 0 && !strings.HasPrefix(line, "created by ") {
			line = line[:end]
		}
		b.WriteString("\n" + line)
	}
	return protocol.Clip([]byte(b.String()), maxText)
}
