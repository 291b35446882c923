package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/etcd-unlocker/unlocker/internal/admin"
	"github.com/etcd-unlocker/unlocker/internal/client"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
)

type drillFlags struct {
	admin.Drill
	daemons      client.Options
	alertmanager string
	timeout      time.Duration
	quiet        bool
}

func newDrill() *cobra.Command {
	f := &drillFlags{}
	cmd := &cobra.Command{
		Use:   "drill",
		Short: "Prove that alerts and removals work, with a lock that expires",
		Long: `Take the lock unlocker-drill/HOST, let it expire, and report what is seen of it and when:
each replica sees it, each shows it as overdue, Alertmanager has an alert about it, it is
removed, the record of that is in etcd, each replica lists it as a forced unlock, and a
waiter gets the lock. It is a real lock with a real alert; its purpose says what it is.

--unlock-after must be longer than Prometheus needs to scrape and to evaluate its rules.

If no replica would remove the lock (off, dry run, hold, pause, policy, brake), the
command says why and fails. Then, after --timeout and after Ctrl-C, it releases the lock.

The exit code is 0 if every step was seen, 1 if one is missing, the lock would not be
removed, or etcd failed, and 2 if the command line or the configuration is wrong.`,
		Example: `  unlocker drill --url http://unlocker-0:9481 --url http://unlocker-1:9481
  unlocker drill --alertmanager http://alertmanager:9093 --unlock-after 2m --timeout 5m
  unlocker drill --alert-after 5s --unlock-after 10s --quiet`,
		Args: noArguments(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.settle(); err != nil {
				return usageError(err)
			}
			return withAdmin(cmd, func(a *admin.Admin) error { return f.run(cmd, a) })
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringArrayVar(&f.daemons.URLs, "url", []string{"http://127.0.0.1:9481"},
		"`URL` of a daemon's web listener with its path prefix; repeat for each replica")
	flags.StringVar(&f.alertmanager, "alertmanager", "", "`URL` of the Alertmanager that should get the alert; it gets no password")
	config.DurationVar(flags, &f.AlertAfter, "alert-after", 10*time.Second, "the lock is overdue after this time")
	config.DurationVar(flags, &f.UnlockAfter, "unlock-after", time.Minute, "the lock expires after this time")
	config.DurationVar(flags, &f.timeout, "timeout", 3*time.Minute, "give up after this time")
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "print nothing if every step was seen, for cron")
	addClientFlags(flags, &f.daemons)
	addConfigFlags(flags, "audit-prefix")
	return cmd
}

// settle checks the flags and makes the clients.
func (f *drillFlags) settle() (err error) {
	if f.AlertAfter < time.Second || f.UnlockAfter <= f.AlertAfter || f.timeout <= f.UnlockAfter || f.timeout > time.Hour {
		return errors.New("--alert-after, --unlock-after and --timeout must be 1s to 1h, each longer than the one before")
	}
	o := f.daemons
	for _, url := range f.daemons.URLs {
		o.URLs, o.Timeout = []string{url}, explainTimeout
		c, err := client.New(o)
		if err != nil {
			return err
		}
		f.Replicas = append(f.Replicas, c)
	}
	if f.alertmanager != "" {
		o.URLs, o.Username, o.PasswordFile = []string{f.alertmanager}, "", ""
		f.Alertmanager, err = client.New(o)
	}
	return err
}

func (f *drillFlags) run(cmd *cobra.Command, a *admin.Admin) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), f.timeout)
	defer cancel()
	var mu sync.Mutex
	f.Report = func(s admin.Step) {
		mu.Lock()
		defer mu.Unlock()
		if !f.quiet {
			printStep(cmd.ErrOrStderr(), &s)
		}
	}
	steps, err := a.Drill(ctx, f.Drill)
	for _, s := range steps {
		if s.After == 0 && err == nil {
			err = exitCode(exitFailure)
		}
	}
	for _, s := range steps {
		if err != nil || !f.quiet {
			printStep(cmd.OutOrStdout(), s)
		}
	}
	return err
}

func printStep(w io.Writer, s *admin.Step) {
	line := fmt.Sprintf("✓ %6.1fs  %s", s.After.Seconds(), s.Name)
	if s.After == 0 {
		line = fmt.Sprintf("✗       -  %s: %s", s.Name, s.Why)
	}
	_, _ = fmt.Fprintln(w, terminal.Strip(line))
}
