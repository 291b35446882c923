package app

import (
	"fmt"
	"os"

	"github.com/etcd-unlocker/unlocker/internal/elect"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
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
		Explain:        func(err error) error { return a.client.Explain(err, c.ElectionPrefix()) },
		Logger:         a.logger,
	})
	return err
}

// leads reports whether this replica acts first. Without an election all do.
func (a *App) leads() bool { return a.elector == nil || a.elector.Leader() }

// leading returns the identity of the leader as last seen, "" without an election.
func (a *App) leading() string {
	if a.elector == nil {
		return ""
	}
	return a.elector.Status().Holder
}

// signals returns what the holds depend on.
func (a *App) signals() verdict.Signals {
	seen, probed := a.scanner.Status(), a.probe.Status()
	return verdict.Signals{
		ListedAt:  seen.Listed,
		History:   seen.History,
		Connected: seen.Connected,
		LastSign:  seen.Progress,
		Probed:    probed.OK,
		ProbeErr:  probed.Err,
		Alarms:    probed.Alarms,
		Overdue:   a.probe.Overdue(),
	}
}
