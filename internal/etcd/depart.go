package etcd

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Departure permits one request to go on a connection, once. gRPC waits for a connection before it sends a
// request, and repeats what a server has not processed; etcd's client repeats it after a login.
type Departure struct {
	// Open is asked in the instant in which the request goes on a connection.
	Open func() bool

	asked, refused atomic.Bool
}

// Refused reports whether the request was not sent, or not a second time after nothing was executed. It is for
// after the request.
func (d *Departure) Refused() bool { return d.refused.Load() }

type departureKey struct{}

// With returns the context of the request.
func (d *Departure) With(ctx context.Context) context.Context {
	return context.WithValue(ctx, departureKey{}, d)
}

// Departs returns an error if the request of a context must not go on a connection now. The clients of New call
// it by themselves.
func Departs(ctx context.Context) error {
	d, ok := ctx.Value(departureKey{}).(*Departure)
	if !ok {
		return nil
	}
	if d.asked.Swap(true) || !d.Open() {
		d.refused.Store(true)
		return status.Error(codes.Canceled, "not sent: it was withdrawn")
	}
	return nil
}

// departures asks Departs for each request that goes on a connection, as credentials of the call can.
type departures struct{}

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (departures) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	return nil, Departs(ctx)
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (departures) RequireTransportSecurity() bool { return false }
