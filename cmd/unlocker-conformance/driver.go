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
	Slots      int      `json:"slots,omitempty"`
}

// grant is a lock that the client holds, or another, the holder.
type grant struct {
	Name   string            `json:"name"`
	UUID   string            `json:"uuid"`
	Token  int64             `json:"token"`
	Holder map[string]string `json:"holder"`
}

type answer struct {
	ID      int    `json:"id"`
	OK      bool   `json:"ok"`
	Error   string `json:"error"`
	Message string `json:"message"`
	grant
	Locks []grant `json:"locks"`
	Held  []grant `json:"held"`
	Lost  bool    `json:"lost"`

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
	stderr  bytes.Buffer
	log     func(string)
	last    int         // id
	answers chan answer // closed when stdout has ended and err is set
	err     error
}

// startDriver runs a client in a process group of its own.
func startDriver(argv, endpoints []string, log func(string)) (*driver, error) {
	process := exec.Command(argv[0], argv[1:]...) //nolint:noctx // kill ends it, with its whole group
	d := &driver{process: process, log: log, answers: make(chan answer, 1)}
	d.process.Env = append(os.Environ(),
		"UNLOCKER_ETCD_ENDPOINTS="+strings.Join(endpoints, ","),
		"UNLOCKER_ETCD_REQUEST_TIMEOUT="+requestTimeout.String(),
		"UNLOCKER_PREFIX="+prefix,
		"UNLOCKER_WAITERS_PREFIX="+waitersPrefix)
	d.process.Stderr = &d.stderr
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

// read reads the answers until one is invalid.
func (d *driver) read(stdout io.Reader) {
	defer close(d.answers)
	lines := bufio.NewScanner(stdout)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		d.log("< " + lines.Text())
		a := answer{at: time.Now()}
		if err := json.Unmarshal(lines.Bytes(), &a); err != nil {
			d.err = fmt.Errorf("it wrote %.200q, which is not an answer: %w", lines.Text(), err)
			return
		}
		d.answers <- a
	}
	d.err = cmp.Or(lines.Err(), errors.New("it ended its output"))
}

// pending is a command whose answer may not have arrived. A driver has one at a time.
type pending struct {
	d    *driver
	c    command
	sent time.Time
}

func (d *driver) begin(c command) *pending {
	d.last++
	c.ID = d.last
	p := &pending{d: d, c: c, sent: time.Now()}
	line, _ := json.Marshal(c) // numbers and strings
	d.log("> " + string(line))
	_, _ = d.stdin.Write(append(line, '\n')) // a driver that does not read does not answer either
	return p
}

func (p *pending) answered() bool { return len(p.d.answers) > 0 }

// wait returns the answer, or an error if it does not arrive within the limit after the
// command was sent.
func (p *pending) wait(limit time.Duration) (answer, error) {
	select {
	case a, ok := <-p.d.answers:
		switch {
		case !ok:
			return a, fmt.Errorf("%s: the driver did not answer: %w", p.c.Op, p.d.err)
		case a.ID != p.c.ID:
			return a, fmt.Errorf("%s: the answer has the id %d, not %d", p.c.Op, a.ID, p.c.ID)
		}
		a.sent = p.sent
		return a, nil
	case <-time.After(time.Until(p.sent.Add(limit))):
		return answer{}, fmt.Errorf("%s: no answer after %v", p.c.Op, limit)
	}
}

func (d *driver) signal(s syscall.Signal) error { return syscall.Kill(-d.process.Process.Pid, s) }

// suspend returns when all threads of the process have stopped.
func (d *driver) suspend() error {
	err := d.signal(syscall.SIGSTOP)
	if err == nil {
		_, err = syscall.Wait4(d.process.Process.Pid, nil, syscall.WUNTRACED, nil)
	}
	return err
}

// exit waits for the end of the process after quit.
func (d *driver) exit(limit time.Duration) error {
	timer := time.AfterFunc(limit, func() { _ = d.signal(syscall.SIGKILL) })
	err := d.end()
	if !timer.Stop() {
		return fmt.Errorf("it still ran %v after quit", limit)
	}
	return err
}

// kill ends the process and what it has started. It may be called more than once.
func (d *driver) kill() {
	if d.process.ProcessState != nil {
		return
	}
	_ = d.signal(syscall.SIGKILL)
	_ = d.stdin.Close()
	_ = d.end() // fails, as it was killed
}

func (d *driver) end() error {
	for range d.answers {
		continue
	}
	return d.process.Wait()
}

// complaint is the last part of what an ended driver wrote to stderr.
func (d *driver) complaint() string {
	text := d.stderr.String()
	return strings.TrimSpace(text[max(0, len(text)-4<<10):])
}
