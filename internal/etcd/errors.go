package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcd-unlocker/unlocker/internal/config"
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
	switch {
	case is(err, rpctypes.ErrGRPCPermissionDenied):
		return fmt.Errorf("%w: %s needs %s on [%s, %s) (prefix %s)", err, c.user(), permission, prefix, clientv3.GetPrefixRangeEnd(prefix), prefix)
	case is(err, rpctypes.ErrGRPCAuthFailed):
		key := "etcd.password"
		if file := c.options.PasswordFile; file != "" {
			key = "etcd.password_file " + file
		}
		return fmt.Errorf("%w: etcd.username %q with the password of %s", err, c.options.Username, key)
	case is(err, rpctypes.ErrGRPCUserEmpty):
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

// NoConnection is the error of a call for which there was no connection.
type NoConnection struct {
	// Cause is in the words of the network or of TLS.
	Cause string
	// Advice says which key to change, or is "" if the cause says enough.
	Advice string
	err    error
}

func (e *NoConnection) Error() string {
	if e.Advice == "" {
		return "no connection: " + e.Cause
	}
	return "no connection: " + e.Cause + ": " + e.Advice
}

func (e *NoConnection) Unwrap() error { return e.err }

// noConnection returns nil if the call did not fail for that.
func (c *Client) noConnection(err error) *NoConnection {
	text := err.Error()
	if rpc, is := errors.AsType[interface {
		error
		GRPCStatus() *status.Status
	}](err); is {
		text = rpc.Error() // what wraps it may have another text
	}
	_, quoted, found := strings.Cut(text, "connection error: desc = ") // the text of gRPC
	if !found {
		return nil
	}
	quoted, _ = strconv.QuotedPrefix(quoted)
	cause, _ := strconv.Unquote(quoted)
	cause = strings.TrimPrefix(strings.TrimPrefix(cause, "transport: "), "Error while dialing: ")
	return &NoConnection{cause, c.advise(cause), err}
}

// advise returns the Advice for a cause. With TLS 1.3 a server refuses a client after the handshake of the client, and its
// alert may be lost: then the client only reads that the connection was closed.
func (c *Client) advise(cause string) string {
	o := c.options
	is := func(words string) bool { return strings.Contains(cause, words) }
	secure := o.TLS != config.TLS{} || strings.HasPrefix(o.Endpoints[0], "https:") || strings.HasPrefix(o.Endpoints[0], "unixs:")
	handshake, preface := is("handshake failed"), is("server preface")
	switch leaf := leafOf(o.TLS.CertFile); {
	case is("x509: certificate signed by unknown authority") && o.TLS.CAFile == "":
		return "set etcd.tls.ca_file to the authority of etcd's certificate: only those of the system are trusted"
	case is("x509: certificate signed by unknown authority"):
		return "etcd.tls.ca_file " + o.TLS.CAFile + " does not have the authority of etcd's certificate"
	case is("x509: certificate is valid for"), is("x509: certificate is not valid for"), is("IP SANs"):
		return "use an endpoint that etcd's certificate names, or set etcd.tls.server_name to a name in it"
	case is("x509:"), !handshake && !preface:
		return ""
	case is("use of closed network connection"): // by us, after the dial timeout
		return "it accepts connections and does not answer"
	case !secure:
		return "etcd may require TLS: begin etcd.endpoints with https://, and see etcd.tls.ca_file"
	case o.TLS.CertFile == "" && (c.asked.Load() || is("certificate required")):
		return "etcd asks for a client certificate: set etcd.tls.cert_file and etcd.tls.key_file"
	case leaf != nil && time.Now().After(leaf.NotAfter):
		return fmt.Sprintf("the client certificate of etcd.tls.cert_file %s expired at %s", o.TLS.CertFile, leaf.NotAfter.Format(time.RFC3339))
	case handshake && (is("EOF") || is("connection reset") || is("does not look like a TLS handshake")):
		return "etcd may not use TLS: begin etcd.endpoints with http://, and leave etcd.tls empty"
	case leaf != nil:
		return "etcd may not trust the client certificate of etcd.tls.cert_file " + o.TLS.CertFile
	}
	return ""
}

// Reason is why a request or a watch failed. Its value is a label of metrics.
type Reason string

// The reasons. With those from TooLarge to Rejected, etcd has refused a request: it has certainly
// not executed it. With all others it may have.
const (
	TooLarge         Reason = "too_large"         // more than etcd or gRPC takes at once
	PermissionDenied Reason = "permission_denied" // the role does not cover the keys
	Auth             Reason = "auth"              // token expired, authentication changed, credentials refused
	NoLeader         Reason = "no_leader"         // the member has no leader
	Busy             Reason = "busy"              // etcd is overloaded
	NoSpace          Reason = "no_space"          // the quota is full
	Compacted        Reason = "compacted"         // the revision has been compacted
	Rejected         Reason = "rejected"          // refused for another reason

	Stalled     Reason = "stalled"     // ErrSilent
	Ended       Reason = "ended"       // ErrEnded
	Timeout     Reason = "timeout"     // a request exceeded its deadline
	Unavailable Reason = "unavailable" // no member answers
	Other       Reason = "other"
)

// Temporary reports whether etcd may take the same request later: it did not refuse what was asked.
func (r Reason) Temporary() bool {
	return r == Timeout || r == Unavailable || r == NoLeader || r == Busy || r == Auth
}

// OfOneKey reports whether a single key of a request may be the cause, so that a request with fewer keys may succeed.
func (r Reason) OfOneKey() bool { return r == TooLarge || r == PermissionDenied }

var (
	// ErrSilent is the error of a watch that shows nothing for too long.
	ErrSilent = errors.New("no event and no progress notice from the watch")
	// ErrEnded is the error of a watch that ends without an error of etcd.
	ErrEnded = errors.New("watch closed by the server")
)

// Classify returns the reason of an error of the client or of a Watch.
func Classify(err error) Reason {
	switch {
	case errors.Is(err, ErrSilent):
		return Stalled
	case errors.Is(err, ErrEnded):
		return Ended
	case errors.Is(err, context.DeadlineExceeded) && strings.Contains(err.Error(), "connection error: "):
		return Unavailable // the text of gRPC if it had no connection
	case errors.Is(err, context.DeadlineExceeded):
		return Timeout
	case errors.Is(err, context.Canceled):
		return Other
	}
	for reason, all := range refusals() {
		if slices.ContainsFunc(all, func(known error) bool { return is(err, known) }) {
			return reason
		}
	}
	typed := errors.As(err, new(rpctypes.EtcdError))
	switch code := Code(err); {
	case code == codes.ResourceExhausted && !typed:
		return TooLarge // the limit of gRPC on the size of a message
	case code == codes.DeadlineExceeded:
		return Timeout
	case code == codes.Unavailable:
		return Unavailable
	}
	return Other
}

// refusals are the errors of etcd for each reason; none is the end of another.
func refusals() map[Reason][]error {
	return map[Reason][]error{
		Compacted:        {rpctypes.ErrGRPCCompacted},
		NoLeader:         {rpctypes.ErrGRPCNoLeader},
		PermissionDenied: {rpctypes.ErrGRPCPermissionDenied},
		Auth: {rpctypes.ErrGRPCInvalidAuthToken, rpctypes.ErrGRPCAuthOldRevision, rpctypes.ErrGRPCUserEmpty,
			rpctypes.ErrGRPCUserNotFound, rpctypes.ErrGRPCAuthFailed},
		TooLarge: {rpctypes.ErrGRPCTooManyOps, rpctypes.ErrGRPCRequestTooLarge},
		Busy:     {rpctypes.ErrGRPCRequestTooManyRequests},
		NoSpace:  {rpctypes.ErrGRPCNoSpace},
		Rejected: {rpctypes.ErrGRPCCorrupt, rpctypes.ErrGRPCDuplicateKey, rpctypes.ErrGRPCEmptyKey},
	}
}

// is reports whether err is a known error of etcd. It compares texts, since the errors of a watch
// lose their type: errors.Is(err, ErrInvalidAuthToken) is false for a canceled watch (etcd#17623).
func is(err, known error) bool {
	text := rpctypes.ErrorDesc(err)
	if typed, is := errors.AsType[rpctypes.EtcdError](err); is {
		text = typed.Error()
	}
	return strings.HasSuffix(text, rpctypes.ErrorDesc(known))
}

// Code returns the gRPC code of an error, also if it is a rpctypes.EtcdError.
func Code(err error) codes.Code {
	if known, is := errors.AsType[rpctypes.EtcdError](err); is {
		return known.Code()
	}
	return status.Code(err)
}

// Levels say at which level a failure is logged that may come often: as a warning once a minute for each kind,
// otherwise for debugging. They are for one goroutine.
type Levels map[string]time.Time

// Of returns the level of a failure of a kind that has come now.
func (l Levels) Of(kind string) slog.Level {
	if time.Since(l[kind]) < time.Minute {
		return slog.LevelDebug
	}
	l[kind] = time.Now()
	return slog.LevelWarn
}

// perAttempt reports whether a warning of clientv3 is about one failed attempt of a call.
// There are one or two per call while etcd is down or refuses the client. They are logged
// at Debug: the caller gets the error, and logs it.
func perAttempt(message string) bool {
	return slices.ContainsFunc([]string{
		"retrying of unary invoker failed",
		"retry failed to fetch new auth token",
		"retrying RecvMsg",
		"clientv3/retry_interceptor: getToken failed",
		"streamer failed to create ClientStream",
		"failed reestablishStreamAndResendBuffer",
		"error occurred during lease keep alive",
	}, func(start string) bool { return strings.HasPrefix(message, start) })
}

// newZap returns a logger for clientv3 that writes to lg. The global logger of gRPC is not changed.
func newZap(lg *slog.Logger) *zap.Logger {
	return zap.New(&slogCore{handler: lg.With("component", "etcd_client").Handler()})
}

// slogCore is a zapcore.Core that writes to a slog.Handler: time, message and fields, but
// not the caller and the stack.
type slogCore struct{ handler slog.Handler }

func (c *slogCore) Enabled(l zapcore.Level) bool {
	return c.handler.Enabled(context.Background(), slogLevel(l))
}

func (c *slogCore) With(fields []zapcore.Field) zapcore.Core {
	return &slogCore{handler: c.handler.WithAttrs(attrs(fields))}
}

func (c *slogCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if perAttempt(e.Message) {
		e.Level = zapcore.DebugLevel
	}
	if !c.Enabled(e.Level) {
		return ce
	}
	return ce.AddCore(e, c)
}

func (c *slogCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	level := slogLevel(e.Level)
	r := slog.NewRecord(e.Time, level, e.Message, 0)
	r.AddAttrs(attrs(fields)...)
	return c.handler.Handle(context.Background(), r)
}

func (c *slogCore) Sync() error { return nil }

// slogLevel maps every level above Error to Error. zap itself panics or exits after it. The levels of slog are four apart.
func slogLevel(l zapcore.Level) slog.Level { return min(4*slog.Level(l), slog.LevelError) }

// attrs encodes one field at a time, to keep their order.
func attrs(fields []zapcore.Field) (out []slog.Attr) {
	for _, f := range fields {
		enc := zapcore.NewMapObjectEncoder()
		f.AddTo(enc)
		for k, v := range enc.Fields {
			out = append(out, slog.Any(k, v))
		}
	}
	return out
}
