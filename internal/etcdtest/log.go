package etcdtest

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"sync"
)

// Log is a buffer for the log of a daemon or a process. It is safe for concurrent use. The
// zero value is ready for use.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// Logger returns a logger that writes JSON of all levels to the log.
func (l *Log) Logger() *slog.Logger {
	return slog.New(slog.NewJSONHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// String returns everything that was logged.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Tail returns the last n lines.
func (l *Log) Tail(n int) string {
	lines := slices.Collect(strings.Lines(l.String()))
	return strings.Join(lines[max(0, len(lines)-n):], "")
}

// Lines returns the fields of the lines with the message, or of all lines if it is "", in
// their order. It skips lines that are not JSON.
func (l *Log) Lines(message string) (lines []map[string]any) {
	for text := range bytes.Lines([]byte(l.String())) {
		var line map[string]any
		if json.Unmarshal(text, &line) == nil && (message == "" || line["msg"] == message) {
			lines = append(lines, line)
		}
	}
	return lines
}
