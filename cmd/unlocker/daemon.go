package main

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/pflag"

	"github.com/etcd-unlocker/unlocker/internal/client"
)

// addClientFlags adds the flags with which a command authenticates daemons and itself.
func addClientFlags(flags *pflag.FlagSet, o *client.Options) {
	flags.StringVar(&o.CAFile, "ca-file", "", "PEM `FILE` with the certificate authorities trusted for --url; default: those of the system")
	flags.StringVar(&o.CertFile, "cert-file", "", "PEM `FILE` with the client certificate for --url; requires --key-file")
	flags.StringVar(&o.KeyFile, "key-file", "", "PEM `FILE` with the key of that certificate; requires --cert-file")
	flags.StringVar(&o.ServerName, "server-name", "", "`NAME` expected in the server certificate; default: the host of --url")
	flags.StringVar(&o.Username, "username", "", "`USER` for basic auth at --url; requires --password-file")
	flags.StringVar(&o.PasswordFile, "password-file", "", "`FILE` that contains the password and nothing else")
}

// explainer asks one daemon for explanations, if the command line names one.
type explainer struct {
	url     string
	options client.Options
	client  *client.Client // nil if none is to be asked
}

func (e *explainer) add(flags *pflag.FlagSet, usage string) {
	flags.StringVar(&e.url, "url", "", usage)
	addClientFlags(flags, &e.options)
}

// explainTimeout bounds what asking a daemon takes. Answering for one lock, the daemon
// waits for etcd.
const explainTimeout = 10 * time.Second

// prepare checks the flags and reads the files that they name.
func (e *explainer) prepare() (err error) {
	o := &e.options
	if e.url == "" {
		if o.CAFile+o.CertFile+o.KeyFile+o.ServerName+o.Username+o.PasswordFile != "" {
			return usageError{errors.New("--ca-file, --cert-file, --key-file, --server-name, --username and --password-file require --url; for etcd there are --etcd-… flags")}
		}
		return nil
	}
	o.URLs, o.Timeout = []string{e.url}, explainTimeout
	if e.client, err = client.New(*o); err != nil {
		return usageError{err}
	}
	return nil
}

// ask calls f with the daemon, if there is one.
func (e *explainer) ask(ctx context.Context, f func(context.Context, client.Daemon) error) (err error) {
	if e.client != nil {
		e.client.Each(ctx, func(ctx context.Context, _ int, d client.Daemon) { err = f(ctx, d) })
	}
	return err
}
