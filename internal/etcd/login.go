package etcd

import (
	"context"
	"errors"
	"fmt"
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

// login stands between clientv3 and etcd's Authenticate. clientv3.New logs in at once
// when it has a user, and fails where etcd is absent; the daemon has to start all the
// same. So until begin is called a login is answered here, with an empty token. The
// first call is then refused here for want of a user, as etcd would do, upon which
// clientv3's retry interceptor logs in and repeats the call; each new stream logs in
// anyway. The same path renews expired tokens later on.
//
// etcd itself would not always refuse it: without a token it takes the common name of
// the client certificate for the user, and denies that one what ours may do.
type login struct {
	user    string
	initial string
	file    string
	begun   atomic.Bool
	state   atomic.Int32

	mu      sync.Mutex
	refused refusedLogin
}

// refusedLogin is the newest password that etcd refused, and how.
type refusedLogin struct {
	password string
	err      error
	until    time.Time
}

// loginPause is for how long a password that was refused is not offered again: to check
// one costs etcd some 50 ms of CPU, and each of our calls would ask for it.
const loginPause = 5 * time.Second

// States of a login.
const (
	loggedOut int32 = iota
	// needless: etcd said that it has no authentication, which may change.
	needless
	loggedIn
)

func newLogin(o Options) (*login, error) {
	l := &login{user: o.Username, initial: o.Password, file: o.PasswordFile}
	if l.file == "" {
		return l, nil
	}
	var err error
	l.initial, err = l.read()
	return l, err
}

func (l *login) begin() { l.begun.Store(true) }

func (l *login) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if method != authenticate {
		return l.call(func() error { return invoke(ctx, method, req, reply, cc, opts...) })
	}
	if !l.begun.Load() {
		return nil // reply is zero: the empty token
	}
	asked := req.(*pb.AuthenticateRequest)
	password := asked.GetPassword()
	if l.file != "" {
		var err error
		if password, err = l.read(); err != nil {
			return err
		}
	}
	if err := l.known(password); err != nil {
		return err
	}
	err := invoke(ctx, method, &pb.AuthenticateRequest{Name: asked.GetName(), Password: password}, reply, cc, opts...)
	l.note(password, err)
	return err
}

// call makes a call that is no login, where there is a token or no need of one.
func (l *login) call(invoke func() error) error {
	if l.user == "" {
		return invoke()
	}
	state := l.state.Load()
	if state == loggedOut {
		return rpctypes.ErrGRPCUserEmpty
	}
	err := invoke()
	if status.Code(err) == codes.PermissionDenied && state == needless {
		l.state.CompareAndSwap(needless, loggedOut)
		return rpctypes.ErrGRPCUserEmpty // authentication was turned on: see login
	}
	return err
}

// known returns the error with which etcd refused this password a moment ago.
func (l *login) known(password string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refused.err != nil && l.refused.password == password && time.Now().Before(l.refused.until) {
		return l.refused.err
	}
	return nil
}

func (l *login) note(password string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refused = refusedLogin{}
	switch known := rpctypes.Error(err); {
	case known == nil:
		l.state.Store(loggedIn)
	case errors.Is(known, rpctypes.ErrAuthNotEnabled):
		l.state.Store(needless)
	case errors.Is(known, rpctypes.ErrAuthFailed):
		l.refused = refusedLogin{password, err, time.Now().Add(loginPause)}
	}
}

// read drops one trailing newline, as an editor leaves it, and nothing else.
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
