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

func notFound() error {
	return &statusError{http.StatusNotFound, "no such path: want /api/v1/locks, /api/v1/locks/NAME, /api/v1/forced-unlocks and /api/v1/status"}
}

// fail answers with an error. Failures of etcd are logged and are part of the answer: the
// API is for those who look for the cause.
func (h *handler) fail(w http.ResponseWriter, r *http.Request, err error) {
	status := http.StatusBadGateway
	var known *statusError
	switch {
	case errors.As(err, &known):
		status = known.status
	case errors.Is(err, ErrNoLock):
		status = http.StatusNotFound
	case errors.Is(err, context.Canceled) && r.Context().Err() != nil:
		return // the client has gone
	case errors.Is(err, context.DeadlineExceeded):
		status = http.StatusGatewayTimeout
	}
	if status == http.StatusBadGateway || status == http.StatusGatewayTimeout {
		h.Logger.Warn("request failed", "path", clip(r.URL.EscapedPath()), "status", status, "error", errorBody(err).Error)
	}
	h.send(w, status, errorBody(err))
}
