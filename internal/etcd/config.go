package etcd

import (
	"log/slog"

	"github.com/etcd-unlocker/unlocker/internal/config"
)

// FromConfig returns the options that the configuration describes, without a
// Registerer.
func FromConfig(c config.Etcd, logger *slog.Logger) Options {
	return Options{
		Endpoints:      c.Endpoints,
		DialTimeout:    c.DialTimeout,
		RequestTimeout: c.RequestTimeout,
		Username:       c.Username,
		Password:       c.Password.Reveal(),
		PasswordFile:   c.PasswordFile,
		TLS:            TLS{CAFile: c.TLS.CAFile, CertFile: c.TLS.CertFile, KeyFile: c.TLS.KeyFile, ServerName: c.TLS.ServerName},
		Logger:         logger,
	}
}

// LockPermission returns the permission that the daemon needs on the prefix of the locks.
func LockPermission(c config.Config) string {
	if c.Reaper.Mode == "enforce" || c.Web.AllowUnlock {
		return ReadWrite
	}
	return Read
}
