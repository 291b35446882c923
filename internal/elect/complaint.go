package elect

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcd-unlocker/unlocker/internal/message"
)

// complaintInterval is the least time between two warnings for one reason.
const complaintInterval = time.Minute

// complaints holds when a reason was last warned of. The reasons are few: gRPC's
// codes and our own errors.
type complaints map[string]time.Time

// due tells whether a warning for the reason is in order at now, and notes it.
func (c complaints) due(reason string, now time.Time) bool {
	if last, known := c[reason]; known && now.Sub(last) < complaintInterval {
		return false
	}
	c[reason] = now
	return true
}

// complain logs why a term ended, or did not come about.
func (e *Elector) complain(ctx context.Context, err error) {
	reason, level := reasonOf(err), slog.LevelDebug
	if e.complained.due(reason, time.Now()) {
		level = slog.LevelWarn
	}
	e.Logger.Log(ctx, level, message.ElectionFailed, "reason", reason, "error", err)
}

// reasonOf tells an error's class.
func reasonOf(err error) string {
	for _, own := range []error{errExpired, errUnconfirmed, errDeposed, errUnseen} {
		if errors.Is(err, own) {
			return own.Error()
		}
	}
	var known rpctypes.EtcdError
	switch {
	case errors.As(err, &known):
		return known.Code().String()
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded.String()
	}
	return status.Code(err).String()
}
