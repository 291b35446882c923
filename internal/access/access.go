package access

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcd-unlocker/unlocker/internal/config"
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

// ErrInterrupted is the error of Try if its context ended.
var ErrInterrupted = errors.New("interrupted")

// Try calls report after each attempt, in the order in which the daemon depends on them. It
// stops if no endpoint can be connected to, or if etcd refuses the login, since nothing else
// could succeed. It returns the error of a file that the configuration names.
func Try(ctx context.Context, c config.Config, logger *slog.Logger, report func(Attempt)) (err error) {
	t := trial{config: c, logger: logger, report: report}
	if t.client, err = t.open(c.Etcd.Endpoints); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.client.Close()) }()
	t.certificates(time.Now())
	if t.connect(ctx) && t.login(ctx) {
		for _, r := range t.rights() {
			t.try(ctx, r.what, r.permission, r.prefix, r.use)
		}
	}
	if ctx.Err() != nil {
		return ErrInterrupted
	}
	return nil
}

type trial struct {
	config config.Config
	logger *slog.Logger
	report func(Attempt)
	client *etcd.Client
}

func (t *trial) open(endpoints []string) (*etcd.Client, error) {
	o := etcd.FromConfig(t.config.Etcd, t.logger)
	o.Endpoints, o.FailFast = endpoints, true
	return etcd.New(o)
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
	ends := t.client.Certificates()
	for _, name := range slices.Sorted(maps.Keys(ends)) {
		a, end := Attempt{What: what[name]}, ends[name].UTC().Format(time.RFC3339)
		if a.Answer = "expires at " + end; now.After(ends[name]) {
			a.Err = errors.New("expired at " + end)
		}
		t.report(a)
	}
}

// connect tries each endpoint, and reports whether one answers.
func (t *trial) connect(ctx context.Context) (answers bool) {
	for _, endpoint := range t.config.Etcd.Endpoints {
		answers = t.try(ctx, "connect to "+endpoint, "", "", func(ctx context.Context) (string, error) {
			return "answers", t.connectTo(ctx, endpoint)
		}) || answers
	}
	return answers
}

// connectTo requires any answer of etcd: that it refuses the user is the error of the login.
func (t *trial) connectTo(ctx context.Context, endpoint string) error {
	client, err := t.open([]string{endpoint})
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	if _, err = client.AlarmList(ctx); errors.As(err, new(rpctypes.EtcdError)) {
		return nil
	}
	return client.Explain(err, "", "")
}

// login tries whether etcd accepts the user.
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
