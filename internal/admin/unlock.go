package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/bmatcuk/doublestar/v4"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/pause"
	"github.com/etcd-unlocker/unlocker/internal/records"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// OtherHolder is the error of an unlock with a uuid that is not, or no longer, the uuid of
// the lock.
type OtherHolder struct {
	// Lock is the lock as it is held now.
	Lock Detail
}

func (e *OtherHolder) Error() string {
	return fmt.Sprintf("lock %s is held under another uuid: nothing was removed", quoted(e.Lock.Name))
}

func (e *OtherHolder) Unwrap() error { return lockstore.ErrOtherUUID }

// Unlock removes a lock if it is held under the given uuid, and leaves a record of that with the
// reason. First it passes the lock to confirm and returns its error, if any; unrecorded is why no
// record can be left. Renewals in the meantime do not matter. If the lock is then held under
// another uuid, nothing is removed and the error is OtherHolder. ErrAmbiguous means that etcd did
// not answer and the lock may or may not be removed.
func (a *Admin) Unlock(ctx context.Context, name, uuid, reason string, confirm func(d Detail, unrecorded error) error) (api.Forced, error) {
	shown, err := a.Show(ctx, name)
	if err != nil {
		return api.Forced{}, err
	}
	// No question is asked if the transaction, which compares the uuid again, could only fail. A lock with an invalid
	// uuid is left to the transaction.
	switch {
	case shown.Token == 0:
		return api.Forced{}, fmt.Errorf("lock %s: %w", quoted(shown.Name), lockstore.ErrNoUUID)
	case shown.UUID != "" && shown.UUID != uuid:
		return api.Forced{}, &OtherHolder{shown}
	}
	unrecorded, err := a.manual.TryRecord(ctx, name)
	if err != nil {
		return api.Forced{}, a.failed(ctx, err, etcd.ReadWrite)
	}
	if err := confirm(shown, unrecorded); err != nil {
		return api.Forced{}, err
	}
	removed, now, err := a.manual.Unlock(ctx, name, api.Unlock{UUID: uuid, Reason: reason}, Who(), unrecorded == nil)
	switch {
	case err == nil:
		return removed, nil
	case errors.Is(err, lockstore.ErrNoLock):
		return api.Forced{}, fmt.Errorf("%w: it was released or removed meanwhile", a.missing(ctx, name))
	case errors.Is(err, lockstore.ErrOtherUUID):
		if shown, err = a.detail(ctx, now); err == nil {
			return api.Forced{}, &OtherHolder{shown}
		}
		return api.Forced{}, a.failed(ctx, err, etcd.Read)
	}
	return api.Forced{}, a.failed(ctx, fmt.Errorf("lock %s: %w", quoted(name), err), etcd.ReadWrite)
}

// UnlockMany removes the locks that match a filter: each only if it is still held as it was listed and, if what.Silent is
// set, was not renewed since. First it passes them to confirm and returns its error, if any. report is called for each
// that was tried. The counts say what became of all, also where there is an error.
func (a *Admin) UnlockMany(ctx context.Context, f Filter, what api.UnlockMany, confirm func(s api.Selection, unrecorded error) error, report func(api.Unlocked)) (api.Unlocked, error) {
	found, err := a.List(ctx, f)
	if err != nil {
		return api.Unlocked{}, err
	}
	selected := records.Select(found.Locks(), what.Silent)
	if len(selected.Locks) == 0 {
		by := map[bool]string{true: " by a silent holder"}[what.Silent]
		return api.Unlocked{}, fmt.Errorf("none of the %d locks under %s matches and is held%s: nothing was removed", found.Total, a.Prefix(), by)
	}
	unrecorded, err := a.manual.TryRecord(ctx, selected.Locks[0].Name)
	if err != nil {
		return api.Unlocked{}, a.failed(ctx, err, etcd.ReadWrite)
	}
	if err := confirm(selected, unrecorded); err != nil {
		return api.Unlocked{}, err
	}
	counts := a.manual.UnlockSelected(ctx, selected.Locks, what, Who(), unrecorded == nil, report)
	switch {
	case counts.Error != "":
		err = fmt.Errorf("nothing was removed: %s", counts.Error)
	case counts.Removed < counts.Total:
		err = fmt.Errorf("%d of %d locks removed, %d refused, %d unknown as etcd did not answer, %d not tried",
			counts.Removed, counts.Total, counts.Refused, counts.Unknown, counts.NotTried)
	}
	return counts, err
}

// Who names the person that runs the command: the user of the operating system and the host.
func Who() string {
	name := fmt.Sprint("uid ", os.Getuid())
	if u, err := user.Current(); err == nil {
		name = cmp.Or(u.Username, name)
	}
	host, _ := os.Hostname()
	return name + "@" + cmp.Or(host, "unknown host")
}

// ValidatePause returns an error if a pause with these values would be refused. match is empty for
// a pause of all locks.
func ValidatePause(match string, lasts time.Duration, reason string) error {
	const minPause, maxPause = 10 * time.Second, 7 * 24 * time.Hour
	switch {
	case lasts < minPause, lasts > maxPause:
		return fmt.Errorf("--for: must be %s to 7d, such as 2h, not %s", minPause, lasts)
	case strings.TrimSpace(reason) == "":
		return errors.New("--reason: must say why")
	case len(reason) > pause.MaxReason:
		return fmt.Errorf("--reason: must be at most %d bytes", pause.MaxReason)
	case !utf8.ValidString(reason), strings.ContainsFunc(reason, unicode.IsControl):
		return errors.New("--reason: must be one line of text")
	}
	return ValidateMatch(match)
}

// ValidateMatch returns an error if match is neither empty nor a pattern for names of locks.
func ValidateMatch(match string) error {
	if match == "" {
		return nil
	}
	if err := pause.CheckMatch(match); err != nil {
		return fmt.Errorf("--match: %w", err)
	}
	return nil
}

// Pause stops the automatic removal of the locks that match, or of all, for a user, who is user@host. It replaces an earlier
// pause of the same.
func (a *Admin) Pause(ctx context.Context, who, match string, lasts time.Duration, reason string) (api.Pause, error) {
	// The lease may end a second after Until, and never before it.
	lease, err := a.client.Grant(ctx, int64(lasts/time.Second)+1)
	if errors.Is(err, rpctypes.ErrNoSpace) {
		return api.Pause{}, fmt.Errorf("%w: nothing was paused, since etcd grants no lease; while the alarm NOSPACE lasts, and for reaper.settle after it, "+
			"no lock is removed anyway: pause as soon as it is disarmed", a.pausing(ctx, err))
	}
	if err != nil {
		return api.Pause{}, a.pausing(ctx, err)
	}
	now := a.now().UTC().Truncate(time.Second)
	r := api.Pause{Match: match, By: who, Reason: reason, Since: now, Until: now.Add(lasts)}
	value, err := pause.Value(r)
	if err != nil {
		return r, err
	}
	_, err = a.client.Put(ctx, a.config.PauseKeys()+pause.Key(match), value, clientv3.WithLease(lease.ID))
	if a.unanswered(ctx, err) { // an earlier pause may be replaced: a revoked lease would leave none
		return r, fmt.Errorf("%w: it may be paused or not: repeat the command", a.pausing(ctx, err))
	}
	if err != nil {
		a.client.Abandon(ctx, lease.ID)
	}
	return r, a.pausing(ctx, err)
}

// unanswered reports whether a request failed that may have been executed.
func (a *Admin) unanswered(ctx context.Context, err error) bool {
	return err != nil && lockstore.Classify(err) == lockstore.ReasonAmbiguous && !errors.As(a.pausing(ctx, err), new(*etcd.NoConnection))
}

// pausing is failedOn for a request on the prefix of the pauses.
func (a *Admin) pausing(ctx context.Context, err error) error {
	return a.failedOn(ctx, err, etcd.ReadWrite, a.config.PauseKeys())
}

// ErrNoPause is the error of Resume if there is no such pause.
var ErrNoPause = errors.New("there is no such pause")

// Resume ends the pause of a pattern or, if match is empty, that of all locks: where there are others, only if all is
// set. It returns the pause that ended, and those that are in force then, or that did not end as it is not clear which one
// is meant.
func (a *Admin) Resume(ctx context.Context, match string, all bool) (ended api.Pause, remaining []api.Pause, err error) {
	remaining, err = a.Pauses(ctx)
	i := slices.IndexFunc(remaining, func(p api.Pause) bool { return p.Match == match && !p.Until.IsZero() })
	switch {
	case err != nil:
		return ended, nil, err
	case i < 0:
		return ended, remaining, ErrNoPause
	case match == "" && !all && len(remaining) > 1:
		return ended, remaining, errors.New("there are several pauses: --all ends that of all locks, --match PATTERN another")
	}
	ended = remaining[i]
	_, err = a.client.Delete(ctx, a.config.PauseKeys()+pause.Key(match))
	switch {
	case a.unanswered(ctx, err):
		return ended, nil, fmt.Errorf("%w: it may be resumed or not: repeat the command", a.pausing(ctx, err))
	case err != nil:
		return ended, nil, a.pausing(ctx, err)
	}
	return ended, slices.Delete(remaining, i, i+1), nil
}

// EndBrake has the locks of a name removed again that a brake keeps, now and until it counts enough again.
func (a *Admin) EndBrake(ctx context.Context, name string) error {
	now, w := a.now().UTC(), records.Writer{Config: a.config, Client: a.client, Full: func() bool { return false }}
	// The revision makes its key: each is another record.
	_, _, err := w.Write(ctx, []api.Forced{{At: now, Name: name, Trigger: verdict.Ended, Who: Who(), Revision: now.UnixNano()}})
	return a.failedOn(ctx, err, etcd.ReadWrite, a.config.AuditKeys())
}

// paused returns a sentence for each pause that keeps a lock.
func (a *Admin) paused(ctx context.Context, name string) (sentences []string) {
	list, err := a.Pauses(ctx)
	if err != nil {
		return []string{fmt.Sprintf("It is not known whether its removal is paused: %s.", err)}
	}
	for _, p := range list {
		switch {
		case p.Until.IsZero():
			sentences = append(sentences, "All locks are kept: "+p.Reason+".")
		case p.Match == "" || doublestar.MatchUnvalidated(p.Match, name):
			sentences = append(sentences, fmt.Sprintf("Its removal is paused until %s %s.", terminal.Time(p.Until), pause.Words(p)))
		}
	}
	return sentences
}

// Pauses returns the pauses in force, also those that no daemon can read.
func (a *Admin) Pauses(ctx context.Context) ([]api.Pause, error) {
	all, root := []api.Pause{}, a.config.PauseKeys()
	end, timeout := clientv3.GetPrefixRangeEnd(root), a.config.Etcd.RequestTimeout
	err := etcd.Pages(ctx, a.client, root, end, 0, etcd.SmallPage, timeout, func(page *clientv3.GetResponse) error {
		for _, kv := range page.Kvs {
			p, err := pause.Parse(string(kv.Key[len(root):]), kv.Value)
			if err != nil {
				p = pause.Unreadable(string(kv.Key))
			}
			all = append(all, p)
		}
		if len(all) >= pause.MaxRecords {
			return etcd.ErrEnough
		}
		return nil
	})
	return all, a.pausing(ctx, err)
}
