//go:build go1.25

package mutex

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Whoever answers in place of etcd chooses the names in its certificate, which are part of the error before any of it is
// trusted.
func TestCauseIsOneLineOfText(t *testing.T) {
	desc := "transport: authentication handshake failed: tls: x509: certificate is valid for a\n\x1b[2J\u202eb, not \"c\""
	failed := status.Error(codes.Unavailable, fmt.Sprintf("connection error: desc = %q", desc))
	require.Equal(t, `authentication handshake failed: tls: x509: certificate is valid for a\n\x1b[2J\u202eb, not "c"`, new(outage).cause(failed))
	failed = status.Error(codes.Unavailable, fmt.Sprintf("connection error: desc = %q", strings.Repeat("x", 1<<16)))
	require.Less(t, len(new(outage).cause(failed)), 2000)
}
