package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/app"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
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
			logger, err := newLogger(cmd.ErrOrStderr(), c.Log)
			if err != nil {
				return usageError(err)
			}
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

// newLogger returns a logger that writes to w in the configured format.
func newLogger(w io.Writer, c config.Log) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.Level)); err != nil {
		return nil, fmt.Errorf("log.level: %w", err)
	}
	options := &slog.HandlerOptions{Level: level}
	if c.Format == "logfmt" {
		return slog.New(slog.NewTextHandler(w, options)), nil
	}
	return slog.New(slog.NewJSONHandler(safeLines{w}, options)), nil
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
