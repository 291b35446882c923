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
}

// verb is the last segment of the path of an unlock. A GET of the same path is of the lock whose name
// ends with it.
const verb = "/unlock"

const (
	maxBody   = 4 << 10 // bytes
	maxReason = 512     // as in a record
)

// unlock removes the lock whose name stands before the verb.
func (h *handler) unlock(r *http.Request, _ url.Values) (any, error) {
	if h.Unlocker == nil {
		return nil, failure(http.StatusForbidden, "web.allow_unlock is off: use the command unlocker unlock")
	}
	if err := h.origin.Check(r); err != nil {
		return nil, failure(http.StatusForbidden, "only a page of the same origin may unlock; a proxy must pass on the Host of the browser")
	}
	who, err := h.Unlocker.User(r)
	if err != nil {
		return nil, failure(http.StatusUnauthorized, err.Error())
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
