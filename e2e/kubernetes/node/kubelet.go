//go:build ignore

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

func (n *node) find(r *http.Request) *pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.pods[types.NamespacedName{Namespace: r.PathValue("namespace"), Name: r.PathValue("pod")}]
}

func (n *node) serve(cert, key string) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", func(w http.ResponseWriter, r *http.Request) {
		q := n.find(r)
		run := q.runs - 1
		if r.URL.Query().Get("previous") == "true" {
			run--
		}
		text, err := os.ReadFile(q.log(run))
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		lines := strings.SplitAfter(string(text), "\n")
		if tail := r.URL.Query().Get("tailLines"); tail != "" {
			var count int
			_, _ = fmt.Sscan(tail, &count)
			lines = lines[max(0, len(lines)-1-count):]
		}
		_, _ = io.WriteString(w, strings.Join(lines, ""))
	})
	mux.HandleFunc("/exec/{namespace}/{pod}/{container}", func(w http.ResponseWriter, r *http.Request) {
		options, err := remotecommand.NewOptions(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		remotecommand.ServeExec(w, r, n.find(r), "", "", "", r.URL.Query()["command"], options, time.Hour, time.Minute, remotecommand.SupportedStreamingProtocols)
	})
	mux.HandleFunc("/portForward/{namespace}/{pod}", func(w http.ResponseWriter, r *http.Request) {
		options, err := portforward.NewV4Options(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		portforward.ServePortForward(w, r, n.find(r), "", "", options, time.Hour, time.Minute, portforward.SupportedProtocols)
	})
	check(http.ListenAndServeTLS(fmt.Sprint("127.0.0.1:", port), cert, key, mux))
}

// ExecInContainer runs a command with the volumes and the environment of the container.
func (q *pod) ExecInContainer(ctx context.Context, _, _, _ string, args []string, in io.Reader, out, stderr io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize, _ time.Duration) error {
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"--target", fmt.Sprint(q.cmd.Process.Pid), "--mount", "--"}, args...)...)
	cmd.Env = q.cmd.Env
	if in != nil {
		// Not as cmd.Stdin: the command would end when in ends, which at a terminal may be never.
		stdin, err := cmd.StdinPipe()
		if err != nil {
			return err
		}
		go func() {
			_, _ = io.Copy(stdin, in)
			_ = stdin.Close()
		}()
	}
	if out != nil {
		cmd.Stdout = out
	}
	if stderr != nil {
		cmd.Stderr = stderr
	}
	err := cmd.Run()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		return utilexec.CodeExitError{Err: err, Code: exit.ExitCode()}
	}
	return err
}

func (q *pod) PortForward(_ context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	conn, err := net.Dial("tcp", net.JoinHostPort(q.ip, fmt.Sprint(port)))
	if err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(conn, stream)
		_ = conn.(*net.TCPConn).CloseWrite()
	}()
	_, err = io.Copy(stream, conn)
	_ = conn.Close()
	return err
}
