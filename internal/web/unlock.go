package web

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/etcd-unlocker/unlocker/internal/api"
)

// Unlocker removes locks for users. It is called concurrently.
type Unlocker interface {
	// User returns who makes a request. Any error is answered with 401.
	User(r *http.Request) (string, error)
	// Unlock removes a lock if it is held under the uuid, and records who did that and why. The
	// error is ErrNoLock, a context's, or an Error: of 409 if the state of the lock does not allow it, of
	// 504 if the lock may have been removed. After any other nothing was removed.
	Unlock(ctx context.Context, name string, what api.Unlock, who string) (api.Forced, error)
	// Ask has the holder of a lock write what it does now into the lock. The error is ErrNoLock, a context's, or an Error:
	// of 409 if nobody holds the lock, of 504 if its holder does not answer.
	Ask(ctx context.Context, name, who string) error
}

// The verbs are the last segment of the path of a POST. A GET of the same path is of the lock whose name ends with it.
const (
	verb    = "/unlock"
	askVerb = "/ask"
)

const (
	maxBody   = 4 << 10 // bytes
	maxReason = 512     // as in a record
)

// unlock removes the lock whose name stands before the verb.
func (h *handler) unlock(r *http.Request, _ url.Values) (any, error) {
	who, err := h.user(r, "unlock")
	if err != nil {
		return nil, err
	}
	name, what, err := h.unlockRequest(r)
	if err != nil {
		return nil, err
	}
	removed, err := inTurn(h.turn, func(r *http.Request, _ url.Values) (any, error) {
		return h.Unlocker.Unlock(r.Context(), name, what, who)
	})(r, nil)
	outcome := "removed"
	if err != nil {
		outcome = errorBody(err).Error
	}
	h.Logger.Info(api.LogUnlockRequested, "lock", clip(name), "uuid", clip(what.UUID), "who", who, "reason", what.Reason,
		"client", r.RemoteAddr, "outcome", outcome)
	return removed, err
}

// user returns who makes a request that has an effect, if that is allowed.
func (h *handler) user(r *http.Request, command string) (string, error) {
	if h.Unlocker == nil {
		return "", failure(http.StatusForbidden, "web.allow_unlock is off: use the command unlocker "+command)
	}
	if err := h.origin.Check(r); err != nil {
		return "", failure(http.StatusForbidden, "only a page of the same origin may "+command+"; a proxy must pass on the Host of the browser")
	}
	who, err := h.Unlocker.User(r)
	if err != nil {
		return "", failure(http.StatusUnauthorized, err.Error())
	}
	return who, nil
}

// ask answers with the lock and the answer of its holder.
func (h *handler) ask(r *http.Request, _ url.Values) (any, error) {
	who, err := h.user(r, "ask")
	if err != nil {
		return nil, err
	}
	name, err := h.name(r, apiLock)
	if err != nil {
		return nil, err
	}
	name = strings.TrimSuffix(name, askVerb)
	if err := h.Unlocker.Ask(r.Context(), name, who); err != nil {
		return nil, err
	}
	return h.Source.Lock(r.Context(), name)
}

// unlockRequest returns what is asked for. It refuses whatever could be meant otherwise.
func (h *handler) unlockRequest(r *http.Request) (name string, what api.Unlock, err error) {
	if name, err = h.name(r, apiLock); err != nil {
		return "", what, err
	}
	name = strings.TrimSuffix(name, verb)
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/json" {
		return "", what, failure(http.StatusUnsupportedMediaType, "the Content-Type must be application/json")
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	if err != nil {
		return "", what, badRequest("cannot read the body")
	}
	if len(body) > maxBody {
		return "", what, failure(http.StatusRequestEntityTooLarge, fmt.Sprintf("the body must have at most %d bytes", maxBody))
	}
	if what, err = parseUnlock(body); err != nil {
		return "", what, badRequest("body: " + err.Error())
	}
	return name, what, nil
}

// parseUnlock reads one object token by token: json.Unmarshal would take the last of two uuids, and
// those of any case.
func parseUnlock(body []byte) (what api.Unlock, err error) {
	if !utf8.Valid(body) {
		return what, errors.New("is not UTF-8")
	}
	fields := map[string]*string{"uuid": &what.UUID, "reason": &what.Reason}
	d := json.NewDecoder(bytes.NewReader(body))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return what, errors.New("must be a JSON object")
	}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return what, errors.New("is not JSON")
		}
		key, _ := t.(string)
		place := fields[key]
		if place == nil {
			return what, fmt.Errorf("unknown or repeated field %q: want uuid and reason, once", clip(key))
		}
		delete(fields, key)
		t, err = d.Token()
		value, ok := t.(string)
		if err != nil || !ok {
			return what, fmt.Errorf("%s: must be a string", key)
		}
		*place = value
	}
	if _, err := d.Token(); err != nil {
		return what, errors.New("is not JSON")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return what, errors.New("must be one JSON object")
	}
	switch {
	case what.UUID == "":
		return what, errors.New("uuid: required, as GET shows it")
	case len(what.Reason) > maxReason:
		return what, fmt.Errorf("reason: must have at most %d bytes", maxReason)
	}
	return what, nil
}
