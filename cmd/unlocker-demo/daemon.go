package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/app"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

const (
	prefix = "/mutexes/"
	grace  = 2 * time.Second
)

// daemon is the unlocker daemon with an etcd and a log file of its own.
type daemon struct {
	log     *os.File
	cluster *localetcd.Cluster
	client  *clientv3.Client
	app     *app.App
}

// start starts etcd and makes the daemon, whose Run is left to the caller. close must
// be called even if start fails.
func (d *daemon) start(ctx context.Context, r *report) (err error) {
	if d.log, err = os.CreateTemp("", "unlocker-demo-*.log"); err != nil {
		return err
	}
	if d.cluster, err = localetcd.Start(ctx, localetcd.Options{UnsafeNoFsync: true}); err != nil {
		return err
	}
	if d.client, err = d.cluster.Client(); err != nil {
		return err
	}
	c := config.Default()
	c.Prefix, c.Reaper.Grace = prefix, grace
	c.Etcd.Endpoints = d.cluster.Endpoints()
	c.Ops.Listen, c.Web.Listen = "127.0.0.1:0", "127.0.0.1:0"
	// Shorter than the defaults, as this etcd is in the same process.
	c.Reaper.Settle, c.Reaper.Freshness = 2*time.Second, 3*time.Second
	log := io.MultiWriter(d.log, logReader{r})
	if r.verbose {
		log = io.MultiWriter(log, r.errs)
	}
	d.app, err = app.New(c, slog.New(slog.NewJSONHandler(log, nil)))
	return err
}

// close stops etcd and removes all files. The daemon must have stopped.
func (d *daemon) close() (err error) {
	if d.cluster != nil {
		err = d.cluster.Close()
	}
	if d.log != nil {
		err = errors.Join(err, d.log.Close(), os.Remove(d.log.Name()))
	}
	return err
}

// logReader reads the daemon's log, which is written line by line: one line before each
// removal, and one with its outcome. The daemon continues when the report has the line.
type logReader struct{ *report }

// Write implements io.Writer.
func (r logReader) Write(b []byte) (int, error) {
	var l struct {
		Msg, Lock   string
		KeysDeleted int `json:"keys_deleted"`
		Verdict     struct{ Due time.Time }
		Record      struct{ Hostname, PID, Purpose, Backtrace string }
	}
	if err := json.Unmarshal(b, &l); err != nil {
		return 0, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch l.Msg {
	case api.LogRemoving:
		r.seen[l.Msg+l.Lock] = true
		r.say("unlocker", bad, "REMOVES %s. It logs the whole lock first:", l.Lock)
		for _, field := range [][2]string{
			{"hostname", l.Record.Hostname}, {"pid", l.Record.PID}, {"purpose", l.Record.Purpose}, {"backtrace", l.Record.Backtrace},
			{"due", fmt.Sprintf("at %.1f, after a grace period of %v", l.Verdict.Due.Sub(r.start).Seconds(), grace)},
		} {
			if field[1] != "" {
				r.say("", plain, "  %-9s  %s", field[0], field[1])
			}
		}
	case api.LogRemoved:
		r.say("unlocker", bad, "removed %s: %d keys in one transaction", l.Lock, l.KeysDeleted)
		if l.Lock == deployAPI && r.seen[api.LogRemoving+deployAPI] {
			r.first(apiLogged)
		}
	}
	return len(b), nil
}
