package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/app"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
	"github.com/etcd-unlocker/unlocker/internal/lock"
)

// stage is what the story plays on: a directory, an etcd and a daemon that is
// not yet running.
type stage struct {
	config  config.Config
	layout  lock.Layout
	dir     string
	log     *os.File
	cluster *localetcd.Cluster
	client  *clientv3.Client
	app     *app.App
}

// build builds the stage; close is due whether or not that succeeds. The
// daemon's log goes to a file and to tap, one line at a time.
func (s *stage) build(ctx context.Context, tap io.Writer) (err error) {
	if s.dir, err = os.MkdirTemp("", "unlocker-demo-"); err != nil {
		return err
	}
	if s.log, err = os.Create(filepath.Join(s.dir, "unlocker.log")); err != nil {
		return err
	}
	s.cluster, err = localetcd.Start(ctx, localetcd.Options{Dir: filepath.Join(s.dir, "etcd"), UnsafeNoFsync: true})
	if err != nil {
		return err
	}
	if s.client, err = s.cluster.Client(); err != nil {
		return err
	}
	s.config = config.Default()
	if s.layout, err = lock.NewLayout(s.config.Prefix); err != nil {
		return err
	}
	s.config.Etcd.Endpoints = s.cluster.Endpoints()
	s.config.Ops.Listen, s.config.Web.Listen = "127.0.0.1:0", "127.0.0.1:0"
	// Nothing here needs more time.
	s.config.Reaper.Settle, s.config.Reaper.Freshness = 2*time.Second, 3*time.Second
	s.app, err = app.New(s.config, slog.New(slog.NewJSONHandler(io.MultiWriter(s.log, tap), nil)))
	return err
}

// close ends etcd and removes all files; the daemon must have ended.
func (s *stage) close() error {
	var errs []error
	if s.cluster != nil {
		errs = append(errs, s.cluster.Close())
	}
	if s.log != nil {
		errs = append(errs, s.log.Close())
	}
	if s.dir != "" {
		errs = append(errs, os.RemoveAll(s.dir))
	}
	return errors.Join(errs...)
}

// places are the addresses and files one can look at.
type places struct {
	ops, web, etcd, log, prefix string
	grace                       time.Duration
}

func (s *stage) places() places {
	return places{
		ops:    "http://" + s.app.OpsAddr().String(),
		web:    "http://" + s.app.WebAddr().String(),
		etcd:   s.cluster.Addr(0),
		log:    s.log.Name(),
		prefix: s.config.Prefix,
		grace:  s.config.Reaper.Grace,
	}
}

// tell implements event.
func (p places) tell(n *narrator) {
	n.places = p
	n.page.say("demo", "etcd and unlocker run, and /readyz says ok. To look, from another terminal:", plain)
	n.page.detail("metrics", "curl -s "+p.ops+"/metrics | grep ^unlocker_")
	n.page.detail("ready", "curl -s "+p.ops+"/readyz")
	n.page.detail("API", "curl -s "+p.web+"/api/v1/locks")
	n.page.detail("etcd", "etcdctl --endpoints="+p.etcd+" get --prefix "+p.prefix)
	n.page.detail("log", "tail -f "+p.log)
	n.page.gap()
}
