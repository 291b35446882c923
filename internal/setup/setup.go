// Package setup says in the words of the parts what the configuration says: the
// parts do not know it, and the daemon and the commands must not read it in two
// ways. It opens nothing.
package setup

import (
	"log/slog"

	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/reaper"
)

// Etcd returns how to reach etcd, with the need for the locks' prefix. The logger
// gets what the client has to say.
func Etcd(c config.Config, logger *slog.Logger) etcd.Options {
	e := c.Etcd
	return etcd.Options{
		Endpoints:      e.Endpoints,
		DialTimeout:    e.DialTimeout,
		RequestTimeout: e.RequestTimeout,
		Username:       e.Username,
		Password:       e.Password.Reveal(),
		PasswordFile:   e.PasswordFile,
		TLS: etcd.TLS{
			CAFile: e.TLS.CAFile, CertFile: e.TLS.CertFile, KeyFile: e.TLS.KeyFile, ServerName: e.TLS.ServerName,
		},
		Needs:  []etcd.Need{etcd.ReadWrite(c.Prefix)},
		Logger: logger,
	}
}

// Rules returns what verdicts depend on.
func Rules(c config.Config) reaper.Rules {
	r := reaper.Rules{
		Mode:         reaper.Mode(c.Reaper.Mode),
		Grace:        c.Reaper.Grace,
		Tolerance:    c.Reaper.ClockTolerance,
		Settle:       c.Reaper.Settle,
		StandbyDelay: c.Reaper.StandbyDelay,
	}
	for _, p := range c.Policies {
		r.Policies = append(r.Policies, reaper.Policy{Match: p.Match, Mode: reaper.Mode(p.Mode), Grace: p.Grace})
	}
	return r
}
