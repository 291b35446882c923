package verdict

import "log/slog"

// LogValue implements slog.LogValuer with the keys of the verdict's JSON. Without it, logfmt
// would write the verdict as one value with the names of the Go fields.
func (v Verdict) LogValue() slog.Value {
	attrs := make([]slog.Attr, 0, 29)
	attrs = append(attrs, slog.Time("now", v.Now))
	attrs = given(attrs, "locked_at", v.LockedAt)
	attrs = given(attrs, "auto_unlock_at", v.AutoUnlockAt)
	attrs = given(attrs, "alive_at", v.AliveAt)
	attrs = given(attrs, "renewed", v.Renewed)
	attrs = given(attrs, "orphan_due", v.OrphanDue)
	attrs = append(attrs, slog.Bool("removable", v.Removable))
	attrs = given(attrs, "token", v.Token)
	attrs = append(attrs, slog.Int64("revision", v.Revision), slog.Bool("measured", v.Measured))
	attrs = given(attrs, "offset", v.Offset)
	attrs = given(attrs, "late", v.Late)
	attrs = append(attrs, slog.Duration("age", v.Age))
	attrs = given(attrs, "stale", v.Stale)
	attrs = given(attrs, "not_before", v.NotBefore)
	attrs = given(attrs, "storm_delay", v.StormDelay)
	attrs = given(attrs, "allowance", v.Allowance)
	attrs = given(attrs, "policy", v.Policy)
	attrs = append(attrs,
		slog.String("mode", string(v.Mode)), slog.Duration("grace", v.Grace), slog.Duration("tolerance", v.Tolerance),
		slog.Duration("standby_delay", v.StandbyDelay), slog.Bool("leader", v.Leader))
	attrs = given(attrs, "paused_until", v.PausedUntil)
	attrs = given(attrs, "pause", v.Pause)
	attrs = append(attrs, slog.String("action", string(v.Action)))
	attrs = given(attrs, "trigger", string(v.Trigger))
	attrs = given(attrs, "due", v.Due)
	attrs = given(attrs, "remaining", v.Remaining)
	return slog.GroupValue(given(attrs, "reason", string(v.Reason))...)
}

// given appends an attribute unless its value is zero.
func given[T comparable](attrs []slog.Attr, key string, value T) []slog.Attr {
	var zero T
	if value == zero {
		return attrs
	}
	return append(attrs, slog.Any(key, value))
}
