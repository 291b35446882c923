package web

import (
	"context"
	"errors"
	"net/http"
)

// statusError is an error of the client, or a temporary one. Its text is the answer.
type statusError struct {
	status int
	words  string
}

func (e *statusError) Error() string { return e.words }

func badRequest(words string) error { return &statusError{http.StatusBadRequest, words} }

func busy(words string) error { return &statusError{http.StatusServiceUnavailable, words} }

func notFound() error {
	return &statusError{http.StatusNotFound, "no such path: /api/v1/openapi.yaml has those of the API"}
}

// fail answers with an error. Failures of etcd are logged and are part of the answer: the
// API is for those who look for the cause.
func (h *handler) fail(w http.ResponseWriter, r *http.Request, send sender, err error) {
	status := http.StatusBadGateway
	var known *statusError
	switch {
	case errors.As(err, &known):
		status = known.status
	case errors.As(err, new(*Conflict)):
		status = http.StatusConflict
	case errors.Is(err, ErrAfter):
		status = http.StatusBadRequest
	case errors.Is(err, ErrNoLock):
		status = http.StatusNotFound
	case errors.Is(err, ErrBusy):
		status = http.StatusServiceUnavailable
	case errors.Is(err, context.Canceled) && r.Context().Err() != nil:
		return // the client has gone
	case errors.As(err, new(*Ambiguous)), errors.Is(err, context.DeadlineExceeded):
		status = http.StatusGatewayTimeout
	}
	if status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	if status == http.StatusBadGateway || status == http.StatusGatewayTimeout {
		h.Logger.Warn("request failed", "path", clip(r.URL.EscapedPath()), "status", status, "error", errorBody(err).Error)
	}
	send(w, r, status, errorBody(err))
}
