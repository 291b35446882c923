package verdict

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// Explanation says in a sentence what will happen to the lock: whether it is removed at all and,
// where it waits, until when and why. It does not know of holds. Times of day are UTC.
func (v Verdict) Explanation() string {
	switch {
	case v.Trigger == "":
		return "is never removed automatically: " + cmp.Or(v.Fault, "there is no auto_unlock_at")
	case v.Mode == Off:
		return "is not removed automatically: " + v.mode()
	case v.Reason == ByBrake:
		return fmt.Sprintf("is kept by the brake until unlocker unlock or unlocker resume --brake: the last %d locks of this name expired and were removed",
			v.Forced)
	case v.Reason == ByPause:
		return v.kept()
	case v.Remaining <= 0 && v.Mode == DryRun:
		return "would be removed, but " + v.mode()
	case v.Remaining <= 0:
		return "is due and is being removed"
	case v.Mode == DryRun:
		return fmt.Sprintf("would be removed at %s, but %s: %s", v.instant(), v.mode(), v.why())
	case v.Trigger == Expiry && v.Now.Add(v.Ahead(v.Tolerance)).Before(v.AutoUnlockAt):
		return fmt.Sprintf("is removed at %s unless its holder renews it: %s", v.instant(), v.why())
	}
	return fmt.Sprintf("waits until %s: %s", v.instant(), v.why())
}

// kept says what a pause delays.
func (v Verdict) kept() string {
	paused := fmt.Sprintf("paused until %s %s", Instant(v.Now, v.PausedUntil), v.Pause)
	if v.Now.Before(v.Due) {
		return "is not removed before the pause ends: " + paused
	}
	return "is due, but " + paused
}

// mode names the mode and the policy that matched, which may have asked for more than
// reaper.mode allows.
func (v Verdict) mode() string {
	if v.Policy == "" {
		return fmt.Sprintf("its mode is %s", v.Mode)
	}
	return fmt.Sprintf("its mode is %s (policy %q)", v.Mode, v.Policy)
}

// instant is when this replica acts, rounded up to a second.
func (v Verdict) instant() string {
	return Instant(v.Now, v.Now.Add(v.Remaining).Add(time.Second-1).Truncate(time.Second))
}

// Instant formats the time of day in UTC, with the date where it is another day's than now.
func Instant(now, at time.Time) string {
	now, at = now.UTC(), at.UTC()
	if at.YearDay() != now.YearDay() || at.Year() != now.Year() {
		return at.Format(time.DateTime)
	}
	return at.Format(time.TimeOnly)
}

// why names the rule that decides, and what is added to it.
func (v Verdict) why() string {
	why := []string{v.decides()}
	if outages := v.outages(); outages > 0 {
		why = append(why, fmt.Sprintf("outages of etcd add %s", tenths(outages)))
	}
	if drift := v.drift(); drift >= time.Second && v.Trigger == Expiry {
		why = append(why, fmt.Sprintf("drift of its holder's clock may add %s", tenths(drift)))
	}
	if v.StormDelay > 0 {
		why = append(why, fmt.Sprintf("many locks came due at once, which adds %s", v.StormDelay))
	}
	if !v.Leader && v.StandbyDelay > 0 {
		why = append(why, fmt.Sprintf("this replica acts %s after the leader", v.StandbyDelay))
	}
	return strings.Join(why, "; ")
}

// outages is what outages add to the instant that decides.
func (v Verdict) outages() time.Duration {
	switch v.Reason {
	case ByDeadline, BySlow:
		return v.Allowance
	case ByPatience, ByStep:
		return v.PatienceAllowance
	}
	return 0
}

func (v Verdict) decides() string {
	switch v.Reason {
	case BySlow:
		return fmt.Sprintf("its holder's clock is %s slow", tenths(-v.Offset))
	case ByPatience:
		return fmt.Sprintf("%s, patience %s", v.notObserved(), tenths(v.Patience()))
	case ByStep:
		return fmt.Sprintf("the clock of this replica was set, patience %s", tenths(v.Patience()))
	case ByOrphan:
		return "leftover fields must stay unmodified for reaper.orphan_grace"
	}
	if ahead := v.Ahead(v.Tolerance); ahead > 0 {
		return fmt.Sprintf("grace %s after auto_unlock_at according to the clock of this replica; its holder's clock is %s fast", v.Grace, tenths(ahead))
	}
	return fmt.Sprintf("grace %s after auto_unlock_at", v.Grace)
}

func (v Verdict) notObserved() string {
	switch {
	case v.Late && v.Renewed && v.AliveAt.IsZero():
		return "its last renewal was learned late, or has no timestamp"
	case v.Late && v.Renewed:
		return "its last renewal was learned late"
	case v.Late:
		return "its acquisition was learned late"
	}
	return "its holder's clock was never observed"
}

func tenths(d time.Duration) time.Duration { return d.Round(time.Second / 10) }
