package web

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
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
	// Pause stops automatic removals for a while, Resume ends the pause of a pattern, or of all locks. The error is an Error
	// of 400 or 404, or etcd's.
	Pause(ctx context.Context, what api.PauseRequest, who string) (api.Pause, error)
	Resume(ctx context.Context, match string) (api.Pause, error)
	// Select returns the locks that UnlockMany would remove. The error is an Error of 400 if there are too many, or the
	// pattern is not valid.
	Select(ctx context.Context, what api.UnlockMany) (api.Selection, error)
	// UnlockMany removes what Select returns, and records that. It calls report for each lock, one call at a time, and
	// then with the counts. The error is an Error of 409 if the digest is of another selection: then, as after any other
	// error, nothing was removed, and report was not called.
	UnlockMany(ctx context.Context, what api.UnlockMany, who string, report func(api.Unlocked)) error
}

// The verbs are the last segment of the path of a POST. A GET of the same path is of the lock whose name ends with it.
const (
	verb    = "/unlock"
	askVerb = "/ask"
)

const (
	maxBody   = 4 << 10 // bytes
	maxReason = 512     // as in a record
	// maxWrite is how long a client may take to read a line.
	maxWrite = 10 * time.Second
)

// unlock removes the lock whose name stands before the verb.
func (h *handler) unlock(r *http.Request, _ url.Values) (any, error) {
	name, who, err := h.asked(r, verb)
	if err != nil {
		return nil, err
	}
	var what api.Unlock
	if err := readBody(r, map[string]any{"uuid": &what.UUID, "reason": &what.Reason}); err != nil {
		return nil, err
	}
	if what.UUID == "" {
		return nil, badRequest("body: uuid: required, as GET shows it")
	}
	removed, err := inTurn(h.turn, func(r *http.Request, _ url.Values) (any, error) {
		return h.Unlocker.Unlock(r.Context(), name, what, who)
	})(r, nil)
	outcome := "removed"
	if err != nil {
		outcome = errorBody(err).Error
	}
	h.requested(r, name, what.UUID, who, what.Reason, outcome)
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

// asked returns the lock that stands before the verb of a request, and the user.
func (h *handler) asked(r *http.Request, verb string) (name, who string, err error) {
	if who, err = h.user(r, verb[1:]); err == nil {
		name, err = h.name(r, apiLock)
	}
	return strings.TrimSuffix(name, verb), who, err
}

func (h *handler) ask(r *http.Request, _ url.Values) (any, error) {
	name, who, err := h.asked(r, askVerb)
	if err != nil {
		return nil, err
	}
	if err := h.Unlocker.Ask(r.Context(), name, who); err != nil {
		return nil, err
	}
	return h.Source.Lock(r.Context(), name)
}

func (h *handler) requested(r *http.Request, name, uuid, who, reason, outcome string) {
	h.Logger.Info(api.LogUnlockRequested, "lock", clip(name), "uuid", clip(uuid), "who", who, "reason", reason,
		"client", r.RemoteAddr, "outcome", outcome)
}

func (h *handler) pauses(ctx context.Context) (api.PauseList, error) {
	status, err := h.Source.Status(ctx)
	return api.PauseList{Pauses: status.Pauses}, err
}

func (h *handler) pause(r *http.Request, _ url.Values) (any, error) {
	who, err := h.user(r, "pause")
	if err != nil {
		return nil, err
	}
	var what api.PauseRequest
	if err := readBody(r, map[string]any{"match": &what.Match, "for": &what.For, "reason": &what.Reason}); err != nil {
		return nil, err
	}
	return h.Unlocker.Pause(r.Context(), what, who)
}

// resume ends the pause of all locks only where the request says so.
func (h *handler) resume(r *http.Request, values url.Values) (any, error) {
	who, err := h.user(r, "resume")
	if err != nil {
		return nil, err
	}
	match := values.Get("match")
	if all := values.Get("all"); all != "" && all != "true" || (match == "") == (all == "") {
		return nil, badRequest("want either match, the pattern of the pause, or all=true for that of all locks")
	}
	ended, err := h.Unlocker.Resume(r.Context(), match)
	if err == nil {
		h.Logger.Info(api.LogResumed, "match", clip(match), "who", who, "client", r.RemoteAddr, "by", ended.By, "reason", ended.Reason)
	}
	return ended, err
}

// unlockMany answers which locks would be removed or, with the digest of these, removes them and sends a line for each.
// A client that closes the connection stops that.
func (h *handler) unlockMany(w http.ResponseWriter, r *http.Request) {
	if !h.allowed(w, r, h.send, http.MethodPost) {
		return
	}
	var what api.UnlockMany
	who, err := h.user(r, "unlock")
	if err == nil {
		_, err = known(r)
	}
	if err == nil {
		err = readBody(r, map[string]any{"match": &what.Match, "silent": &what.Silent, "reason": &what.Reason, "digest": &what.Digest})
	}
	if err == nil && what.Digest != "" && strings.TrimSpace(what.Reason) == "" {
		err = badRequest("body: reason: required with a digest")
	}
	switch {
	case err != nil:
		h.fail(w, r, h.send, err)
	case what.Digest == "":
		h.respond(h.unlockSlots, h.send, always(func(ctx context.Context) (api.Selection, error) { return h.Unlocker.Select(ctx, what) }))(w, r)
	case !h.many.TryAcquire(1):
		h.fail(w, r, h.send, ErrBusy)
	default:
		defer h.many.Release(1)
		unlimited(w)
		ctx, stop := context.WithCancel(r.Context())
		defer stop()
		if err := h.Unlocker.UnlockMany(ctx, what, who, func(l api.Unlocked) {
			if l.Name != "" {
				h.requested(r, l.Name, l.UUID, who, what.Reason, strings.TrimSuffix(l.Outcome+": "+l.Error, ": "))
			}
			if sendLine(w, l) != nil {
				stop()
			}
		}); err != nil {
			h.fail(w, r, h.send, err)
		}
	}
}

// unlimited ends the deadline for writing, at which HTTP/2 would reset the stream while etcd is awaited.
func unlimited(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
}

func sendLine(w http.ResponseWriter, line any) error {
	text, err := json.Marshal(line)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	out := http.NewResponseController(w)
	_ = out.SetWriteDeadline(time.Now().Add(maxWrite)) // where it is supported
	defer unlimited(w)
	if _, err := w.Write(append(terminal.EscapeJSON(text), '\n')); err != nil {
		return err
	}
	return out.Flush()
}

// readBody reads the body, which is one object with these fields: each a *string or a *bool. It refuses whatever could be
// meant otherwise.
func readBody(r *http.Request, fields map[string]any) error {
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/json" {
		return failure(http.StatusUnsupportedMediaType, "the Content-Type must be application/json")
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	if err != nil {
		return badRequest("cannot read the body")
	}
	if len(body) > maxBody {
		return failure(http.StatusRequestEntityTooLarge, fmt.Sprintf("the body must have at most %d bytes", maxBody))
	}
	if err := parseBody(body, fields); err != nil {
		return badRequest("body: " + err.Error())
	}
	return nil
}

// parseBody reads one object token by token: json.Unmarshal would take the last of two uuids, and
// those of any case.
func parseBody(body []byte, fields map[string]any) error {
	if !utf8.Valid(body) {
		return errors.New("is not UTF-8")
	}
	names := strings.Join(slices.Sorted(maps.Keys(fields)), ", ")
	d := json.NewDecoder(bytes.NewReader(body))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return errors.New("must be a JSON object")
	}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return errors.New("is not JSON")
		}
		key, _ := t.(string)
		place := fields[key]
		if place == nil {
			return fmt.Errorf("unknown or repeated field %q: want %s, each once", clip(key), names)
		}
		delete(fields, key)
		if err := parseField(d, key, place); err != nil {
			return err
		}
	}
	if _, err := d.Token(); err != nil {
		return errors.New("is not JSON")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("must be one JSON object")
	}
	return nil
}

func parseField(d *json.Decoder, key string, place any) error {
	t, err := d.Token()
	switch place := place.(type) {
	case *string:
		text, ok := t.(string)
		if err != nil || !ok {
			return fmt.Errorf("%s: must be a string", key)
		}
		if key == "reason" && len(text) > maxReason {
			return fmt.Errorf("reason: must have at most %d bytes", maxReason)
		}
		*place = text
	case *bool:
		value, ok := t.(bool)
		if err != nil || !ok {
			return fmt.Errorf("%s: must be true or false", key)
		}
		*place = value
	}
	return nil
}
