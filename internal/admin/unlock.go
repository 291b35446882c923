package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/records"
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
	if err != nil {
		return api.Forced{}, a.notRemoved(ctx, name, now, err)
	}
	return removed, nil
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
		return api.Unlocked{}, fmt.Errorf("none of the %d locks under %s matches and is held: nothing was removed", found.Total, a.Prefix())
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

// notRemoved returns the error of an unlock that failed. entry is the lock under another uuid.
func (a *Admin) notRemoved(ctx context.Context, name string, entry lockstore.Record, err error) error {
	switch {
	case errors.Is(err, lockstore.ErrNoLock):
		return fmt.Errorf("%w: it was released or removed meanwhile", a.missing(ctx, name))
	case errors.Is(err, lockstore.ErrOtherUUID):
		now, err := a.detail(ctx, entry)
		if err != nil {
			return a.failed(ctx, err, etcd.Read)
		}
		return &OtherHolder{now}
	}
	return a.failed(ctx, fmt.Errorf("lock %s: %w", quoted(name), err), etcd.ReadWrite)
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
