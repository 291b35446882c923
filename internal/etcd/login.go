package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const authenticate = "/etcdserverpb.Auth/Authenticate"

// login intercepts the calls of clientv3 to etcd's Authenticate. With a user, clientv3.New logs in
// at once and fails if etcd is down, but the daemon must start anyway. Therefore login answers
// Authenticate with an empty token until New has made the client. Then it refuses the first call
// with "user name is empty", as etcd would, and the retry interceptor of clientv3 logs in and
// repeats the call. Expired tokens are renewed in the same way. A new stream always logs in.
//
// etcd would not always refuse that first call: without a token it takes the common name
// of the client certificate as the user, who may have other permissions.
type login struct {
	user    string
	initial string
	file    string
	logger  *slog.Logger
	begun   atomic.Bool
	state   atomic.Int32

	mu      sync.Mutex
	refused refusedLogin
}

// refusedLogin is the last password that etcd refused, and its error.
type refusedLogin struct {
	password string
	err      error
	until    time.Time
}

// loginPause is the time for which a refused password is not tried again: every call would
// try it, and checking one takes some 50 ms of etcd's CPU time.
const loginPause = 5 * time.Second

// States of a login.
const (
	loggedOut int32 = iota
	// authDisabled means that etcd had authentication disabled, which may change.
	authDisabled
	loggedIn
)

func newLogin(o Options) (*login, error) {
	l := &login{user: o.Username, initial: o.Password.Reveal(), file: o.PasswordFile, logger: o.Logger}
	if l.file == "" {
		return l, nil
	}
	var err error
	l.initial, err = l.read()
	return l, err
}

func (l *login) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if method != authenticate {
		return l.call(func() error { return invoke(ctx, method, req, reply, cc, opts...) })
	}
	if !l.begun.Load() {
		return nil // reply is zero: the empty token
	}
	ctx = context.WithValue(ctx, departureKey{}, nil) // which is for the request that needs the login
	asked := req.(*pb.AuthenticateRequest)
	password := asked.GetPassword()
	if l.file != "" {
		var err error
		if password, err = l.read(); err != nil {
			return err
		}
	}
	if err := l.recentlyRefused(password); err != nil {
		return err
	}
	err := invoke(ctx, method, &pb.AuthenticateRequest{Name: asked.GetName(), Password: password}, reply, cc, opts...)
	l.record(password, err)
	return err
}

// call makes a call other than Authenticate, if there is a token or none is needed.
func (l *login) call(invoke func() error) error {
	if l.user == "" {
		return invoke()
	}
	state := l.state.Load()
	if state == loggedOut {
		return rpctypes.ErrGRPCUserEmpty
	}
	err := invoke()
	if status.Code(err) == codes.PermissionDenied && state == authDisabled {
		l.state.CompareAndSwap(authDisabled, loggedOut)
		return rpctypes.ErrGRPCUserEmpty // authentication was enabled: see login
	}
	return err
}

// recentlyRefused returns the error with which etcd refused this password within the last
// loginPause, or nil.
func (l *login) recentlyRefused(password string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refused.err != nil && l.refused.password == password && time.Now().Before(l.refused.until) {
		return l.refused.err
	}
	return nil
}

// record takes the state of the login from the answer of etcd.
func (l *login) record(password string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refused = refusedLogin{}
	switch known := rpctypes.Error(err); {
	case known == nil:
		l.state.Store(loggedIn)
	case errors.Is(known, rpctypes.ErrAuthNotEnabled):
		if l.state.Swap(authDisabled) != authDisabled {
			l.logger.Warn("etcd has authentication disabled: etcd.username is ignored", "username", l.user)
		}
	case errors.Is(known, rpctypes.ErrAuthFailed):
		l.refused = refusedLogin{password, err, time.Now().Add(loginPause)}
	}
}

// read returns the password in the file without one trailing newline, which editors add.
func (l *login) read() (string, error) {
	content, err := os.ReadFile(l.file)
	if err != nil {
		return "", fmt.Errorf("etcd.password_file: %w", err)
	}
	password := strings.TrimSuffix(strings.TrimSuffix(string(content), "\n"), "\r")
	if password == "" {
		return "", fmt.Errorf("etcd.password_file: %s is empty", l.file)
	}
	return password, nil
}
