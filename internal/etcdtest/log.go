package etcdtest

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"sync"
)

// Log keeps what a program or a process logs. It may be written and read at the same
// time. The zero value is ready for use.
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

// String returns all that was logged.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Lines returns the fields of the lines that have a message, in their order, or of all
// lines for "". What is not JSON is skipped.
func (l *Log) Lines(message string) (lines []map[string]any) {
	for text := range bytes.Lines([]byte(l.String())) {
		var line map[string]any
		if json.Unmarshal(text, &line) == nil && (message == "" || line["msg"] == message) {
			lines = append(lines, line)
		}
	}
	return lines
}
