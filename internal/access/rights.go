package access

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/etcd"
)

// right is something that the daemon does in etcd, and the permission that it takes.
type right struct {
	what               string
	permission, prefix string
	use                func(context.Context) (answer string, err error)
}

// rights returns what the daemon does with this configuration.
func (t *trial) rights() []right {
	locks := t.config.Prefix
	permission := etcd.LockPermission(t.config)
	all := []right{
		{"read below " + locks, permission, locks, t.read(locks)},
		{"watch below " + locks, permission, locks, t.watch(locks)},
	}
	if permission == etcd.ReadWrite {
		all = append(all, right{"delete below " + locks, permission, locks, t.remove(locks)})
	}
	for _, read := range []string{t.config.AuditKeys(), t.config.PauseKeys()} { // which people write
		all = append(all,
			right{"read below " + read, etcd.Read, read, t.read(read)},
			right{"watch below " + read, etcd.Read, read, t.watch(read)})
	}
	for _, native := range t.config.NativePrefixes {
		all = append(all, right{"read below " + native, etcd.Read, native, t.read(native)})
	}
	if t.config.Web.AllowUnlock {
		audit := t.config.AuditKeys()
		all = append(all, right{"write below " + audit, etcd.ReadWrite, audit, t.remove(audit)})
	}
	if !t.config.Election.Enabled {
		return all
	}
	election := t.config.ElectionPrefix()
	return append(all,
		right{"read below " + election, etcd.ReadWrite, election, t.read(election)},
		right{"watch below " + election, etcd.ReadWrite, election, t.watch(election)},
		right{"write and delete below " + election, etcd.ReadWrite, election, t.remove(election)},
		right{"get a lease for the election", etcd.ReadWrite, election, t.lease})
}

func (t *trial) read(prefix string) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		resp, err := t.client.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("%d keys at revision %d", resp.Count, resp.Header.Revision), nil
	}
}

func (t *trial) watch(prefix string) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		// It ends with ctx. Close of the client's own watcher might not return if etcd has just
		// refused a watch (etcd's client v3.7.3).
		watcher := clientv3.NewWatcher(t.client.Client)
		resp, open := <-watcher.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCreatedNotify())
		if !open {
			return "", ctx.Err()
		}
		if err := resp.Err(); err != nil {
			text := err.Error()
			if strings.HasPrefix(text, "rpc error: code = ") { // etcd cancels a watch with such a text
				_, text, _ = strings.Cut(text, " desc = ")
			}
			return "", errors.New(text)
		}
		return fmt.Sprintf("watching since revision %d", resp.Header.Revision), nil
	}
}

// remove tries the permission to write, which is also that to delete: it sends a deletion in a
// transaction whose condition is never true.
func (t *trial) remove(prefix string) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		_, err := t.client.Txn(ctx).If(etcd.Never(prefix)).Then(clientv3.OpDelete(prefix, clientv3.WithPrefix())).Commit()
		return "permitted, nothing changed", err
	}
}

func (t *trial) lease(ctx context.Context) (string, error) {
	granted, err := t.client.Grant(ctx, int64(t.config.Election.TTL/time.Second))
	if err != nil {
		return "", err
	}
	if _, err := t.client.Revoke(ctx, granted.ID); err != nil {
		return "", err
	}
	return "granted and revoked", nil
}
