package admin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/etcd"
)

// Attempt is one thing that was tried.
type Attempt struct {
	// What was tried, as a verb with its object.
	What string
	// Answer is what etcd answered, if Err is nil.
	Answer string
	// Err is the error of etcd, with what to change if that is known.
	Err error
}

// TryAccess tries what the daemon needs of etcd with this configuration: the certificates, each
// endpoint, the login and each right. It writes and deletes no key: the right to do so is tried by a
// transaction whose condition is never true, since etcd checks the rights of all its operations
// first. It calls report after each attempt, in the order in which the daemon depends on them, and
// each attempt ends after etcd.request_timeout. It stops if no endpoint answers, or if etcd refuses
// the login, since nothing else could succeed. It returns an error only if its context ended.
//
// A later change of a role is not seen, and one member may have answered for all of them.
func (a *Admin) TryAccess(ctx context.Context, report func(Attempt)) error {
	t := trial{a, report}
	t.certificates(a.now())
	if t.connect(ctx) && t.login(ctx) {
		t.rights(ctx)
	}
	if ctx.Err() != nil {
		return ErrInterrupted
	}
	return nil
}

type trial struct {
	*Admin
	report func(Attempt)
}

// try reports one attempt, unless the context ended. permission on prefix is what it needs.
func (t *trial) try(ctx context.Context, what, permission, prefix string, use func(context.Context) (string, error)) (succeeded bool) {
	limited, cancel := context.WithTimeout(ctx, t.config.Etcd.RequestTimeout)
	defer cancel()
	answer, err := use(limited)
	if ctx.Err() != nil {
		return false
	}
	explained := t.client.Explain(err, permission, prefix)
	if errors.Is(err, context.DeadlineExceeded) && !errors.As(explained, new(*etcd.NoConnection)) {
		explained = fmt.Errorf("no answer within %s", t.config.Etcd.RequestTimeout)
	}
	t.report(Attempt{what, answer, explained})
	return err == nil
}

// certificates reports when the certificates in the files of the configuration expire.
func (t *trial) certificates(now time.Time) {
	files := t.config.Etcd.TLS
	what := map[string]string{"etcd_ca": "trust etcd.tls.ca_file " + files.CAFile, "etcd_client": "use etcd.tls.cert_file " + files.CertFile}
	for _, c := range t.client.Certificates() {
		a, end := Attempt{What: what[c.Name]}, c.Expires.Format(time.RFC3339)
		if a.Answer = "expires at " + end; now.After(c.Expires) {
			a.Err = errors.New("expired at " + end)
		}
		t.report(a)
	}
}

func (t *trial) connect(ctx context.Context) (answers bool) {
	for _, endpoint := range t.config.Etcd.Endpoints {
		answers = t.try(ctx, "connect to "+endpoint, "", "", func(ctx context.Context) (string, error) {
			return t.connectTo(ctx, endpoint)
		}) || answers
	}
	return answers
}

// connectTo requires any answer of etcd: that it refuses the user is the error of the login. The answer names a
// version that has a known fault.
func (t *trial) connectTo(ctx context.Context, endpoint string) (answer string, err error) {
	c := t.config
	c.Etcd.Endpoints = []string{endpoint}
	client, err := dial(c, t.logger)
	if err != nil {
		return "", err
	}
	defer func() { _ = client.Close() }()
	if _, err = client.AlarmList(ctx); err != nil && !errors.As(err, new(rpctypes.EtcdError)) {
		return "", client.Explain(err, "", "")
	}
	answer = "answers"
	if status, err := client.Status(ctx, endpoint); err == nil {
		if upgrade := etcd.StaleReads(status.Version); upgrade != "" {
			answer = fmt.Sprintf("answers, but etcd %s may read old data after a pause of its process: upgrade it to %s or later", status.Version, upgrade)
		}
	}
	return answer, nil
}

func (t *trial) login(ctx context.Context) bool {
	what, answer := "use etcd without a user", "answers"
	switch e := t.config.Etcd; {
	case e.Username != "":
		what, answer = fmt.Sprintf("log in as user %q", e.Username), "accepted"
	case e.TLS.CertFile != "":
		what = "use etcd with the client certificate and no password"
	}
	return t.try(ctx, what, "", "", func(ctx context.Context) (string, error) {
		_, err := t.client.AlarmList(ctx) // needs no permission
		if t.client.CredentialsIgnored() {
			answer = "etcd has authentication disabled: etcd.username is ignored"
		}
		return answer, err
	})
}

func (t *trial) rights(ctx context.Context) {
	c := t.config
	permission := etcd.LockPermission(c)
	t.read(ctx, permission, c.Prefix)
	t.watch(ctx, permission, c.Prefix)
	if permission == etcd.ReadWrite {
		t.write(ctx, "delete", c.Prefix)
	}
	for _, prefix := range []string{c.AuditKeys(), c.PauseKeys(), c.WaitersKeys()} {
		t.read(ctx, etcd.Read, prefix)
		t.watch(ctx, etcd.Read, prefix)
	}
	for _, prefix := range c.NativePrefixes {
		t.read(ctx, etcd.Read, prefix)
	}
	if c.Web.AllowUnlock || permission == etcd.ReadWrite {
		t.write(ctx, "write", c.AuditKeys())
	}
	if c.Web.AllowUnlock {
		t.write(ctx, "write", c.AskKeys())
		t.write(ctx, "write and delete", c.PauseKeys())
	}
	if election := c.ElectionPrefix(); c.Election.Enabled {
		t.read(ctx, etcd.ReadWrite, election)
		t.watch(ctx, etcd.ReadWrite, election)
		t.write(ctx, "write and delete", election)
		t.try(ctx, "get a lease for the election", etcd.ReadWrite, election, t.lease)
	}
}

func (t *trial) read(ctx context.Context, permission, prefix string) {
	t.try(ctx, "read below "+prefix, permission, prefix, func(ctx context.Context) (string, error) {
		resp, err := t.client.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("%d keys at revision %d", resp.Count, resp.Header.Revision), nil
	})
}

func (t *trial) watch(ctx context.Context, permission, prefix string) {
	t.try(ctx, "watch below "+prefix, permission, prefix, func(ctx context.Context) (string, error) {
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
	})
}

// write tries the permission to write, which is also that to delete: it sends a deletion in a
// transaction whose condition is never true.
func (t *trial) write(ctx context.Context, verb, prefix string) {
	t.try(ctx, verb+" below "+prefix, etcd.ReadWrite, prefix, func(ctx context.Context) (string, error) {
		_, err := t.client.Txn(ctx).If(etcd.Never(prefix)).Then(clientv3.OpDelete(prefix, clientv3.WithPrefix())).Commit()
		return "permitted, nothing changed", err
	})
}

func (t *trial) lease(ctx context.Context) (string, error) {
	granted, err := t.client.Grant(ctx, int64(t.config.Election.TTL/time.Second))
	if err == nil {
		_, err = t.client.Revoke(ctx, granted.ID)
	}
	return "granted and revoked", err
}
