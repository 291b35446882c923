package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"

	"github.com/etcd-unlocker/unlocker/internal/admin"
	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/app"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/records"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

func newServe() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the daemon",
		Long: `Run the daemon until SIGTERM or SIGINT. It starts whether or not etcd is reachable:
/livez succeeds while the process runs, /readyz once all locks have been listed.`,
		Args: noArguments(fileHint),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, source, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			logger := newLogger(cmd.ErrOrStderr(), c.Log)
			logger.Info(api.LogConfigurationRead, "file", source)
			if err := serve(cmd.Context(), c, logger); err != nil {
				logger.Error(api.LogFailed, "error", err)
				return exitCode(exitFailure)
			}
			return nil
		},
	}
	config.Flags(cmd.Flags())
	return cmd
}

func serve(ctx context.Context, c config.Config, logger *slog.Logger) error {
	a, err := app.New(c, logger)
	if err != nil {
		return err
	}
	// The unit of systemd counts as started: it listens. Does nothing elsewhere.
	if _, err := daemon.SdNotify(true, daemon.SdNotifyReady); err != nil {
		logger.Warn("systemd was not told of the start", "error", err)
	}
	return a.Run(ctx)
}

func newLogger(w io.Writer, c config.Log) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.Level)) // Load has checked it
	options := &slog.HandlerOptions{Level: level}
	if c.Format == "logfmt" {
		return slog.New(slog.NewTextHandler(w, options))
	}
	return slog.New(slog.NewJSONHandler(safeLines{w}, options))
}

// safeLines escapes what is not safe to print in lines of JSON, as the API does: slog leaves direction
// overrides as they are.
type safeLines struct{ w io.Writer }

func (s safeLines) Write(line []byte) (int, error) {
	if _, err := s.w.Write(terminal.EscapeJSON(line)); err != nil {
		return 0, err
	}
	return len(line), nil
}

func newConfig() *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Check or print the configuration"}
	cmd.AddCommand(newConfigCheck(), newConfigPrint())
	return cmd
}

func newConfigCheck() *cobra.Command {
	var connect bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check the configuration, and with --connect also etcd",
		Long: `Read the configuration as serve does, from the same flags, environment and file.
Exit with 0 and print which file was read, or with 2 and the first error.
No other file is opened: certificates and password files are not checked. The
exception is web.web_config_file where web.allow_unlock needs it to authenticate users.

With --connect, also try what the daemon needs of etcd: the certificates in the files,
a connection to each endpoint, the login, and each right that this configuration needs.
Print one line for each attempt: ok, what was tried and what etcd answered, or FAILED,
what was tried and why it failed. Exit with 1 if any attempt failed, or if a file that
a key names cannot be used. Nothing in etcd is changed, and no daemon is needed.`,
		Example: `  unlocker config check
  unlocker config check --config /etc/unlocker/unlocker.yaml --connect`,
		Args: noArguments(fileHint),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, source, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			if err := records.CheckUsers(c.Web); err != nil {
				return usageError(err)
			}
			if source == "" {
				source = "no file: flags, environment and defaults"
			}
			if _, err = fmt.Fprintf(cmd.OutOrStdout(), "ok (%s)\n", source); err != nil || !connect {
				return err
			}
			return tryAccess(cmd, c)
		},
	}
	cmd.Flags().BoolVar(&connect, "connect", false, "also try the connection to etcd, the login and each right that the daemon needs")
	config.Flags(cmd.Flags())
	return cmd
}

func tryAccess(cmd *cobra.Command, c config.Config) (err error) {
	a, err := admin.Open(c, clientLogger(cmd, c))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	tried, failed := 0, 0
	err = a.TryAccess(cmd.Context(), func(t admin.Attempt) {
		result, answer := "ok    ", t.Answer
		if tried++; t.Err != nil {
			failed++
			result, answer = "FAILED", t.Err.Error()
		}
		line := fmt.Sprintf("%s  %s: %s", result, t.What, answer)
		_, _ = fmt.Fprintln(cmd.OutOrStdout(), terminal.Text(protocol.Clip([]byte(line), maxError))) // it may quote a server
	})
	if err == nil && failed > 0 {
		err = fmt.Errorf("%d of %d attempts failed", failed, tried)
	}
	return err
}

func newConfigPrint() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "print",
		Short: "Print the effective configuration, without secrets",
		Long: `Print every key with the value that serve would use, as a configuration file.
The password is replaced by <redacted>: restore it before you use the output as
a configuration file. With --output, write to a new file: an existing one is never
overwritten, and the exit code is 1. A redirection by the shell would empty the
file before it is read.`,
		Example: `  unlocker config print
  unlocker config print --output unlocker.yaml`,
		Args: noArguments(fileHint),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, _, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			if cmd.Flags().Changed("output") {
				return writeNew(file, c.YAML())
			}
			_, err = cmd.OutOrStdout().Write(c.YAML())
			return err
		},
	}
	cmd.Flags().StringVar(&file, "output", "", "write to this new `FILE` instead of stdout; refused if it exists")
	config.Flags(cmd.Flags())
	return cmd
}

func writeNew(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("--output: %s exists and is not overwritten", path)
	}
	if err != nil {
		return fmt.Errorf("--output: %w", err)
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}
