package etcd

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
)

const authenticate = "/etcdserverpb.Auth/Authenticate"

// login stands between clientv3 and etcd's Authenticate. clientv3.New logs in at once
// when it has a user, and fails where etcd is absent; the daemon has to start all the
// same. So until begin is called a login is answered here, with an empty token. etcd
// then refuses the first call for want of a user, before it does anything, upon which
// clientv3's retry interceptor logs in and repeats the call; each new stream logs in
// anyway. The same path renews expired tokens later on.
type login struct {
	initial string
	file    string
	begun   atomic.Bool
}

func newLogin(o Options) (*login, error) {
	l := &login{initial: o.Password, file: o.PasswordFile}
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
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	if !l.begun.Load() {
		return nil // reply is zero: the empty token
	}
	if l.file != "" {
		password, err := l.read()
		if err != nil {
			return err
		}
		req = &pb.AuthenticateRequest{Name: req.(*pb.AuthenticateRequest).GetName(), Password: password}
	}
	return invoke(ctx, method, req, reply, cc, opts...)
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
