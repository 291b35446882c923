package etcd

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

// Each cause for which there is no connection names the key to change: at once if the client
// fails fast, at the deadline otherwise.
func TestNoConnectionSaysWhatToChange(t *testing.T) {
	t.Parallel()
	s, plain := newSecure(t), etcdtest.Start(t, localetcd.Options{})
	bad := newCA(t, "bad")
	client, stranger, end := s.ca.issue(t, s.dir, "client"), bad.issue(t, s.dir, "stranger"), until(-time.Minute)
	expired := s.ca.issueUntil(t, filepath.Join(s.dir, "expired"), "expired", end)
	badCA := bad.file(t, s.dir)
	for name, tt := range map[string]struct {
		edit  func(*Options)
		cause string
		want  string
	}{
		"TLS to plain etcd": {func(o *Options) { o.Endpoints = []string{plain.Addr(0)} }, "authentication handshake failed: ",
			"etcd may not use TLS: begin etcd.endpoints with http://, and leave etcd.tls empty"},
		"https to plain etcd": {func(o *Options) { o.TLS, o.Endpoints = TLS{}, []string{"https://" + plain.Addr(0)} }, "authentication handshake failed: ",
			"etcd may not use TLS: begin etcd.endpoints with http://, and leave etcd.tls empty"},
		"plain to etcd with TLS": {func(o *Options) { o.TLS = TLS{} }, "error reading server preface: ",
			"etcd may require TLS: begin etcd.endpoints with https://, and see etcd.tls.ca_file"},
		"system's authorities": {func(o *Options) { o.TLS.CAFile = "" }, "x509: certificate signed by unknown authority",
			"set etcd.tls.ca_file to the authority of etcd's certificate: only those of the system are trusted"},
		"wrong authority": {func(o *Options) { o.TLS.CAFile = badCA }, "x509: certificate signed by unknown authority",
			"etcd.tls.ca_file " + badCA + " does not have the authority of etcd's certificate"},
		"wrong name": {func(o *Options) { o.TLS.ServerName = "elsewhere" }, "certificate is valid for etcd.example, not elsewhere",
			"use an endpoint that etcd's certificate names, or set etcd.tls.server_name to a name in it"},
		"no client certificate": {func(o *Options) { o.TLS.CertFile, o.TLS.KeyFile = "", "" }, "error reading server preface: ",
			"etcd asks for a client certificate: set etcd.tls.cert_file and etcd.tls.key_file"},
		"expired client certificate": {func(o *Options) { o.TLS.CertFile, o.TLS.KeyFile = expired.cert, expired.key }, "error reading server preface: ",
			"the client certificate of etcd.tls.cert_file " + expired.cert + " expired at " + end.Format(time.RFC3339)},
		"a stranger's certificate": {func(o *Options) { o.TLS.CertFile, o.TLS.KeyFile = stranger.cert, stranger.key }, "error reading server preface: ",
			"etcd may not trust the client certificate of etcd.tls.cert_file " + stranger.cert},
		"refused": {func(o *Options) { o.Endpoints = []string{"127.0.0.1:1"} }, "dial tcp 127.0.0.1:1: connect: connection refused", ""},
	} {
		t.Run(name, func(t *testing.T) {
			for _, fast := range []bool{false, true} {
				o := s.options(s.cluster.Addr(0), client)
				o.FailFast = fast
				if !fast {
					o.RequestTimeout = time.Second
				}
				tt.edit(&o)
				var got *NoConnection
				// With TLS 1.3 the first write may fail before the refusal is read.
				etcdtest.Eventually(t, func() bool {
					c := mustNew(t, o)
					began := time.Now()
					_, err := c.Put(t.Context(), "k", "v")
					require.Less(t, time.Since(began), 10*time.Second)
					if !fast {
						require.ErrorIs(t, err, context.DeadlineExceeded)
					}
					return errors.As(c.Explain(err, ReadWrite, prefix), &got) && strings.Contains(got.Cause, tt.cause)
				})
				require.Equal(t, tt.want, got.Advice)
			}
		})
	}
}

// A user that etcd ignores is reported once, and the client knows it.
func TestIgnoredCredentialsAreReported(t *testing.T) {
	t.Parallel()
	var log etcdtest.Log
	open, guarded := etcdtest.Start(t, localetcd.Options{}), guarded(t, 0)
	for endpoint, ignored := range map[string]bool{open.Addr(0): true, guarded.Addr(0): false} {
		o := asAda(endpoint)
		o.Logger = log.Logger()
		c := mustNew(t, o)
		for range 3 {
			_, err := c.Get(t.Context(), prefix)
			require.NoError(t, err)
		}
		require.Equal(t, ignored, c.CredentialsIgnored())
	}
	require.Len(t, log.Lines("etcd has authentication disabled: etcd.username is ignored"), 1)
}
