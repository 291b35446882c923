package verdict

import "github.com/etcd-unlocker/unlocker/internal/config"

// RulesFromConfig returns the rules that the configuration describes.
func RulesFromConfig(c config.Config) Rules {
	r := Rules{
		Mode:         Mode(c.Reaper.Mode),
		Grace:        c.Reaper.Grace,
		Tolerance:    c.Reaper.ClockTolerance,
		StandbyDelay: c.Reaper.StandbyDelay,
	}
	for _, p := range c.Policies {
		r.Policies = append(r.Policies, Policy{Match: p.Match, Mode: Mode(p.Mode), Grace: p.Grace})
	}
	return r
}

// HoldsFromConfig returns the rules of the holds that the configuration describes.
func HoldsFromConfig(c config.Reaper) HoldRules {
	return HoldRules{Settle: c.Settle, Freshness: c.Freshness, DryRun: Mode(c.Mode) == DryRun}
}

// StormFromConfig returns the rules of storms that the configuration describes.
func StormFromConfig(c config.Reaper) StormRules {
	s := c.Storm
	return StormRules{MinLocks: s.MinLocks, Fraction: s.Fraction, Window: s.Window, Delay: s.Delay}
}
