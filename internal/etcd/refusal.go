package etcd

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/status"
)

// Need is a permission that the program cannot do without, as `etcdctl role
// grant-permission ROLE PERMISSION --prefix PREFIX` gives it.
type Need struct{ Permission, Prefix string }

// ReadWrite is the need to read and write all keys below a prefix.
func ReadWrite(prefix string) Need { return Need{"readwrite", prefix} }

// String writes the range as `etcdctl role get` shows it.
func (n Need) String() string {
	return fmt.Sprintf("%s on [%s, %s) (prefix %s)", n.Permission, n.Prefix, clientv3.GetPrefixRangeEnd(n.Prefix), n.Prefix)
}

func (n Need) covers(key []byte) bool { return bytes.HasPrefix(key, []byte(n.Prefix)) }

// refusal is an error of etcd's with what it takes to mend it. clientv3 replaces an
// error by its own where it knows the status, so that this one has none: it comes
// through from below, as a stream's must.
type refusal struct {
	rpctypes.EtcdError
	mend string
}

func (r *refusal) Error() string { return r.EtcdError.Error() + ": " + r.mend }
func (r *refusal) Unwrap() error { return r.EtcdError }

// statusRefusal is for the way up from clientv3: whoever looks at the status finds etcd's.
type statusRefusal struct{ *refusal }

func (r statusRefusal) GRPCStatus() *status.Status {
	return status.New(r.Code(), r.EtcdError.Error())
}

// mender tells what to do about a refusal.
type mender struct {
	needs    []Need
	username string
	// secret names the option that has the password.
	secret string
	tls    TLS
}

func newMender(o Options) *mender {
	m := &mender{needs: o.Needs, username: o.Username, secret: "etcd.password", tls: o.TLS}
	if o.PasswordFile != "" {
		m.secret = "etcd.password_file " + o.PasswordFile
	}
	return m
}

// explain makes a refusal of an error where there is something to mend; ops are what
// was asked for.
func (m *mender) explain(err error, ops ...clientv3.Op) error {
	if r := m.refusal(err, ops...); r != nil {
		return statusRefusal{r}
	}
	return err
}

func (m *mender) refusal(err error, ops ...clientv3.Op) *refusal {
	var known rpctypes.EtcdError
	if !errors.As(rpctypes.Error(err), &known) {
		return nil
	}
	switch {
	case errors.Is(known, rpctypes.ErrPermissionDenied):
		return &refusal{known, m.user() + " needs " + m.missing(ops)}
	case errors.Is(known, rpctypes.ErrAuthFailed):
		return &refusal{known, fmt.Sprintf("etcd.username %q with the password of %s", m.username, m.secret)}
	case errors.Is(known, rpctypes.ErrUserEmpty):
		return &refusal{known, "etcd has authentication on: set etcd.username, or etcd.tls.cert_file to a certificate whose common name is a user"}
	}
	return nil
}

// user says who we are to etcd. A user that a certificate names may not exist: etcd
// says no more than "permission denied" then.
func (m *mender) user() string {
	if m.username != "" {
		return fmt.Sprintf("user %q", m.username)
	}
	if leaf := leafOf(m.tls.CertFile); leaf != nil {
		return fmt.Sprintf("user %q (the client certificate's common name, if there is such a user)", leaf.Subject.CommonName)
	}
	return "the user"
}

// maxTold bounds the needs that an error tells: one tells enough to go on.
const maxTold = 2

// missing tells the needs that cover what the operations touch, or what they touch
// where none does. etcd does not say which of them was refused.
func (m *mender) missing(ops []clientv3.Op) string {
	var told []string
	tell := func(key, end []byte, permission string) {
		words := fmt.Sprintf("%s on %s", permission, span(key, end))
		if i := slices.IndexFunc(m.needs, func(n Need) bool { return n.covers(key) }); i >= 0 {
			words = m.needs[i].String()
		}
		if len(told) < maxTold && !slices.Contains(told, words) {
			told = append(told, words)
		}
	}
	for _, op := range ops {
		touch(op, tell)
	}
	return strings.Join(told, ", ")
}

// maxShown bounds a key in an error.
const maxShown = 200

func span(key, end []byte) string {
	shown := fmt.Sprintf("%q", key[:min(len(key), maxShown)])
	if len(end) > 0 {
		return fmt.Sprintf("[%s, %q)", shown, end[:min(len(end), maxShown)])
	}
	return shown
}

// touch tells each range of keys that an operation reads or writes.
func touch(op clientv3.Op, tell func(key, end []byte, permission string)) {
	if !op.IsTxn() {
		permission := "write"
		if op.IsGet() {
			permission = "read"
		}
		tell(op.KeyBytes(), op.RangeBytes(), permission)
		return
	}
	compares, thens, elses := op.Txn()
	for i := range compares {
		tell(compares[i].KeyBytes(), compares[i].GetCompare().GetRangeEnd(), "read")
	}
	for _, nested := range slices.Concat(thens, elses) {
		touch(nested, tell)
	}
}
