//go:build go1.25

package mutex

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The texts are those of gRPC with a real etcd, whose port uses TLS or does not, or that answers nothing.
func TestCauseSaysWhatMayBeWrong(t *testing.T) {
	for desc, want := range map[string]string{
		"error reading server preface: EOF":                                                             "error reading server preface: EOF: etcd may require TLS, or a client certificate",
		"error reading server preface: remote error: tls: certificate required":                         "error reading server preface: remote error: tls: certificate required",
		"error reading server preface: raw-read tcp 127.0.0.1:1->a:2: use of closed network connection": "no answer",
		"transport: Error while dialing: dial tcp 127.0.0.1:1: use of closed network connection":        "dial tcp 127.0.0.1:1: use of closed network connection",
		"transport: authentication handshake failed: EOF":                                               "authentication handshake failed: EOF: etcd may not use TLS",
		"transport: Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused":             "dial tcp 127.0.0.1:1: connect: connection refused",
	} {
		require.Equal(t, want, new(outage).cause(status.Error(codes.Unavailable, fmt.Sprintf("connection error: desc = %q", desc))))
	}
	require.Equal(t, "write tcp: broken pipe", new(outage).cause(status.Error(codes.Unavailable, "write tcp: broken pipe")))
}

// A request without an answer is one of an etcd that is unreachable, and any other is not.
func TestUnanswered(t *testing.T) {
	o := outage{etcd: clientv3.NewCtxClient(t.Context())}
	for last, want := range map[error]bool{
		status.Error(codes.Unavailable, "EOF"): true, context.DeadlineExceeded: true, context.Canceled: true,
		rpctypes.ErrTooManyRequests: false, errors.ErrUnsupported: false,
	} {
		err := o.unanswered(io.EOF, last)
		require.ErrorIs(t, err, io.EOF)
		require.ErrorIs(t, err, last)
		require.Equal(t, want, errors.Is(err, ErrUnreachable), last)
	}
}

// Whoever answers in place of etcd chooses the names in its certificate, which are part of the error before any of it is
// trusted.
func TestCauseIsOneLineOfText(t *testing.T) {
	desc := "transport: authentication handshake failed: tls: x509: certificate is valid for a\n\x1b[2J\u202eb, not \"c\""
	failed := status.Error(codes.Unavailable, fmt.Sprintf("connection error: desc = %q", desc))
	require.Equal(t, `authentication handshake failed: tls: x509: certificate is valid for a\n\x1b[2J\u202eb, not "c"`, new(outage).cause(failed))
	failed = status.Error(codes.Unavailable, fmt.Sprintf("connection error: desc = %q", strings.Repeat("x", 1<<16)))
	require.Less(t, len(new(outage).cause(failed)), 2000)
}
