package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// command is a line to the driver; docs/conformance.md describes the fields.
type command struct {
	ID         int      `json:"id"`
	Op         string   `json:"op"`
	Name       string   `json:"name"`
	Names      []string `json:"names,omitempty"`
	UUID       string   `json:"uuid,omitempty"`
	AlertAfter float64  `json:"alert_after,omitempty"`
	Patience   float64  `json:"patience,omitempty"`
	Purpose    string   `json:"purpose,omitempty"`
	Wait       float64  `json:"wait"`
}

// grant is a lock that the client holds.
type grant struct {
	Name  string `json:"name"`
	UUID  string `json:"uuid"`
	Token int64  `json:"token"`
}

// refusal is a lock that another holds.
type refusal struct {
	Name   string            `json:"name"`
	Holder map[string]string `json:"holder"`
}

type answer struct {
	ID      int    `json:"id"`
	OK      bool   `json:"ok"`
	Error   string `json:"error"`
	Message string `json:"message"`
	grant
	Holder map[string]string `json:"holder"`
	Locks  []grant           `json:"locks"`
	Held   []refusal         `json:"held"`
	Lost   bool              `json:"lost"`

	sent, at time.Time
}

func (a answer) took() time.Duration { return a.at.Sub(a.sent) }

// String says what the answer was, for evidence.
func (a answer) String() string {
	if a.OK {
		return "ok"
	}
	text := fmt.Sprintf("error %q", a.Error)
	if a.Message != "" {
		text += fmt.Sprintf(" (%.300q)", a.Message)
	}
	return text
}

type driver struct {
	process *exec.Cmd
	stdin   io.WriteCloser
	stderr  *tail
	done    chan struct{} // closed when stdout has ended and err is set
	log     func(string)

	mu      sync.Mutex
	pending map[int]*pending
	last    int
	err     error
}

// startDriver runs a client in a process group of its own.
func startDriver(argv, endpoints []string, log func(string)) (*driver, error) {
	d := &driver{
		process: exec.Command(argv[0], argv[1:]...), //nolint:noctx // kill ends it, with its whole group
		stderr:  &tail{}, done: make(chan struct{}), log: log, pending: map[int]*pending{},
	}
	d.process.Env = append(os.Environ(),
		"UNLOCKER_ETCD_ENDPOINTS="+strings.Join(endpoints, ","),
		"UNLOCKER_ETCD_REQUEST_TIMEOUT="+requestTimeout.String(),
		"UNLOCKER_PREFIX="+prefix)
	d.process.Stderr = d.stderr
	d.process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var err error
	if d.stdin, err = d.process.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := d.process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := d.process.Start(); err != nil {
		return nil, err
	}
	go d.read(stdout)
	return d, nil
}

// greet waits until the driver runs: until it answers anything.
func (d *driver) greet() error {
	_, err := d.begin(command{Op: "lost", UUID: "none"}).wait(startup)
	return err
}

// read delivers the answers to those who wait for them.
func (d *driver) read(stdout io.Reader) {
	lines := bufio.NewScanner(stdout)
	lines.Buffer(nil, 16<<20)
	var err error
	for err == nil && lines.Scan() {
		d.log("< " + lines.Text())
		err = d.deliver(lines.Bytes())
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = cmp.Or(err, lines.Err(), errors.New("it ended its output"))
	close(d.done)
}

func (d *driver) deliver(line []byte) error {
	a := answer{at: time.Now()}
	if err := json.Unmarshal(line, &a); err != nil {
		return fmt.Errorf("it wrote %.200q, which is not an answer: %w", line, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.pending[a.ID]
	if p == nil {
		return fmt.Errorf("it answered to id %d, which is not open", a.ID)
	}
	delete(d.pending, a.ID)
	a.sent = p.sent
	p.answer <- a
	return nil
}

// pending is a command whose answer may not have arrived.
type pending struct {
	d      *driver
	c      command
	sent   time.Time
	answer chan answer
}

func (d *driver) begin(c command) *pending {
	d.mu.Lock()
	d.last++
	c.ID = d.last
	p := &pending{d: d, c: c, sent: time.Now(), answer: make(chan answer, 1)}
	d.pending[c.ID] = p
	d.mu.Unlock()
	line, _ := json.Marshal(c) // numbers and strings
	d.log("> " + string(line))
	_, _ = d.stdin.Write(append(line, '\n')) // a driver that does not read does not answer either
	return p
}

// wait returns the answer, or an error if it does not arrive within the limit after the
// command was sent.
func (p *pending) wait(limit time.Duration) (answer, error) {
	select {
	case a := <-p.answer:
		return a, nil
	case <-p.d.done:
		select {
		case a := <-p.answer: // the last one before the end
			return a, nil
		default:
		}
		p.d.mu.Lock()
		defer p.d.mu.Unlock()
		return answer{}, fmt.Errorf("%s: the driver did not answer: %w", p.c.Op, p.d.err)
	case <-time.After(time.Until(p.sent.Add(limit))):
		return answer{}, fmt.Errorf("%s: no answer after %v", p.c.Op, limit)
	}
}

func (d *driver) signal(s syscall.Signal) error { return syscall.Kill(-d.process.Process.Pid, s) }

// exit waits for the end of the process after quit. It returns the exit code.
func (d *driver) exit(limit time.Duration) (int, error) {
	timer := time.AfterFunc(limit, func() { _ = d.signal(syscall.SIGKILL) })
	<-d.done
	err := d.process.Wait()
	if !timer.Stop() {
		return -1, fmt.Errorf("it still ran %v after quit", limit)
	}
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return -1, err
	}
	return d.process.ProcessState.ExitCode(), nil
}

// kill ends the process and what it has started. It may be called more than once.
func (d *driver) kill() {
	if d.process.ProcessState != nil {
		return
	}
	_ = d.signal(syscall.SIGKILL)
	_ = d.stdin.Close()
	<-d.done
	_ = d.process.Wait() // fails, as it was killed
}

// tail keeps the end of what is written to it, for after the end of the process.
type tail []byte

const tailSize = 4 << 10

func (t *tail) Write(p []byte) (int, error) {
	*t = append(*t, p...)
	*t = (*t)[max(0, len(*t)-tailSize):]
	return len(p), nil
}

func (t *tail) String() string { return string(bytes.TrimSpace(*t)) }
