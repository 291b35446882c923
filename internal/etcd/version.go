package etcd

import (
	"context"
	"slices"

	"github.com/coreos/go-semver/semver"

	"github.com/etcd-unlocker/unlocker/internal/api"
)

// StaleReads returns the version to upgrade to if a member of a version may answer a linearizable read with old
// data after its process was stopped for a while (etcd#20418), and "" otherwise.
func StaleReads(version string) (upgrade string) {
	v, err := semver.NewVersion(version)
	if err != nil {
		return ""
	}
	for _, fixed := range []string{"3.6.9", "3.5.28", "3.4.43"} {
		f := semver.New(fixed)
		if v.Major == f.Major && v.Minor == f.Minor && v.LessThan(*f) {
			return fixed
		}
	}
	return ""
}

// LogStaleReads logs each endpoint for which StaleReads names an upgrade. It asks each until it has answered once,
// and returns nil when all have or ctx is done.
func (c *Client) LogStaleReads(ctx context.Context) error {
	silent := slices.Clone(c.options.Endpoints)
	for failures := 1; len(silent) > 0 && ctx.Err() == nil; failures++ {
		silent = slices.DeleteFunc(silent, func(endpoint string) bool {
			status, err := c.Status(ctx, endpoint)
			if err != nil {
				return false
			}
			if upgrade := StaleReads(status.Version); upgrade != "" {
				c.options.Logger.Warn(api.LogStaleReads, "member", endpoint, "version", status.Version, "upgrade_to", upgrade)
			}
			return true
		})
		if len(silent) > 0 {
			_ = Backoff(ctx, failures) // the error of ctx
		}
	}
	return nil
}
