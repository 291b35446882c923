package mutex

import (
	"bytes"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

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

// maxTraces bounds the memory for backtraces.
const maxTraces = 256

// caller returns where a method of the client was called from.
func (t *traces) caller(trace bool) (at call) {
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
		_, method, own := strings.Cut(f.Function, "/mutex.")
		if inside = inside && own && strings.HasPrefix(method, "(*Client)."); !inside && f.Function != "" && b.Len() < maxText {
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

// format turns pairs of lines, a call and its place, into one line each without arguments.
func format(stack string) string {
	lines := strings.Split(stack, "\n")
	var b strings.Builder
	b.WriteString(lines[0])
	for i := 1; i+1 < len(lines) && b.Len() < maxText; i += 2 {
		function := lines[i]
		if end := strings.LastIndexByte(function, '('); end > 0 && !strings.HasPrefix(function, "created by ") {
			function = function[:end]
		}
		place, _, _ := strings.Cut(strings.TrimSpace(lines[i+1]), " +0x")
		fmt.Fprintf(&b, "\n%s %s", function, place)
	}
	return protocol.Clip([]byte(b.String()), maxText)
}
