package etcd

import (
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Permissions of etcd's roles.
const (
	Read      = "read"
	Write     = "write"
	ReadWrite = "readwrite"
)

// Never is a condition that is never true, as no key has a negative version. etcd checks the rights
// and the space that a transaction with it needs, and executes nothing of it. The user must be
// permitted to read the key.
func Never(key string) clientv3.Cmp { return clientv3.Compare(clientv3.Version(key), "<", 0) }

// Explain adds what to change to an error about a missing permission, a user that etcd does
// not accept, and returns a NoConnection if there was no connection. permission is what the failed request
// needs on prefix; the error of etcd names neither. Other errors, and nil, are returned as
// they are.
func (c *Client) Explain(err error, permission, prefix string) error {
	if err == nil {
		return nil
	}
	if failed := c.noConnection(err); failed != nil {
		return failed
	}
	text := err.Error()
	switch {
	case strings.Contains(text, rpctypes.ErrorDesc(rpctypes.ErrGRPCPermissionDenied)):
		return fmt.Errorf("%w: %s needs %s on [%s, %s) (prefix %s)", err, c.user(), permission, prefix, clientv3.GetPrefixRangeEnd(prefix), prefix)
	case strings.Contains(text, rpctypes.ErrorDesc(rpctypes.ErrGRPCAuthFailed)):
		return fmt.Errorf("%w: etcd.username %q with the password of %s", err, c.options.Username, c.passwordKey())
	case strings.Contains(text, rpctypes.ErrorDesc(rpctypes.ErrGRPCUserEmpty)):
		return fmt.Errorf("%w: etcd has authentication on: set etcd.username, or etcd.tls.cert_file to a certificate whose common name is a user", err)
	}
	return err
}

// CredentialsIgnored reports whether etcd last answered a login with a user that it has
// authentication disabled.
func (c *Client) CredentialsIgnored() bool { return c.login.state.Load() == authDisabled }

// user names the user by which etcd knows the client. A user from a certificate need not
// exist: etcd then answers only "permission denied".
func (c *Client) user() string {
	if c.options.Username != "" {
		return fmt.Sprintf("user %q", c.options.Username)
	}
	if leaf := leafOf(c.options.TLS.CertFile); leaf != nil {
		return fmt.Sprintf("user %q (the client certificate's common name, if there is such a user)", leaf.Subject.CommonName)
	}
	return "the user"
}

// passwordKey returns the configuration key of the password.
func (c *Client) passwordKey() string {
	if c.options.PasswordFile != "" {
		return "etcd.password_file " + c.options.PasswordFile
	}
	return "etcd.password"
}
