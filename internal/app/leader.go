package app

import (
	"fmt"
	"os"

	"github.com/etcd-unlocker/unlocker/internal/elect"
	"github.com/etcd-unlocker/unlocker/internal/etcd"
)

func (a *App) newElector() (err error) {
	c := a.config
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("name of this host: %w", err)
	}
	a.identity = fmt.Sprintf("%s_%d", host, os.Getpid())
	if !c.Election.Enabled {
		return nil
	}
	a.elector, err = elect.New(elect.Options{
		Client:         a.client.Client,
		Key:            c.ElectionKey(),
		TTL:            c.Election.TTL,
		Identity:       a.identity,
		RequestTimeout: c.Etcd.RequestTimeout,
		Explain:        func(err error) error { return a.client.Explain(err, etcd.ReadWrite, c.ElectionPrefix()) },
		Logger:         a.logger,
	})
	return err
}

// leads reports whether this replica acts at due rather than after the standby delay.
// Without an election all replicas do.
func (a *App) leads() bool { return a.elector == nil || a.elector.Leader() }

// leading returns the identity of the leader that was seen last, or "" without an election.
func (a *App) leading() string {
	if a.elector == nil {
		return ""
	}
	return a.elector.Status().Holder
}
