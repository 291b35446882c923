package verdict

import (
	"fmt"
	"strings"
	"time"
)

// Explanation says in a sentence what becomes of the lock: whether it is removed at
// all and, where it waits, until when and why.
func (v Verdict) Explanation() string {
	switch {
	case v.Trigger == "" && v.Token == 0:
		return "is never removed automatically: it has keys that are not leftovers of a lock"
	case v.Trigger == "":
		return "is never removed automatically: it has no auto_unlock_at that can be read"
	case v.Mode == Off:
		return "is not removed automatically: its mode is off" + v.policy()
	}
	verb := "is removed"
	if v.Mode == DryRun {
		verb = "would be removed (its mode is dry-run" + v.policy() + ")"
	}
	switch {
	case v.Remaining <= 0 && v.Mode == DryRun:
		return verb
	case v.Remaining <= 0:
		return "is due and is being removed"
	case v.Trigger == Expiry && v.Now.Before(v.AutoUnlockAt):
		return fmt.Sprintf("%s at %s unless its holder renews it: %s", verb, v.instant(), v.why())
	case v.Mode == DryRun:
		return fmt.Sprintf("%s at %s: %s", verb, v.instant(), v.why())
	}
	return fmt.Sprintf("waits until %s: %s", v.instant(), v.why())
}

func (v Verdict) policy() string {
	if v.Policy == "" {
		return ""
	}
	return fmt.Sprintf(" by the policy %q", v.Policy)
}

// instant is when this replica acts: the time of day, with the date where that is
// not today.
func (v Verdict) instant() string {
	at := v.Now.Add(v.Remaining)
	if at.Sub(v.Now) > 12*time.Hour {
		return at.Format("2006-01-02 15:04:05")
	}
	return at.Format("15:04:05")
}

// why names the rule that decides, and what is added to it.
func (v Verdict) why() string {
	var why []string
	switch v.Reason {
	case ByDeadline:
		why = append(why, fmt.Sprintf("grace %s after auto_unlock_at", v.Grace))
	case BySlow:
		why = append(why, fmt.Sprintf("its holder's clock is %s slow", -v.Offset.Round(time.Second/10)))
	case ByPatience:
		learned := "no clock of its holder was observed"
		switch {
		case v.Late && v.Renewed:
			learned = "its last renewal was learned late"
		case v.Late:
			learned = "it was learned late"
		}
		why = append(why, fmt.Sprintf("%s, patience %s", learned, v.Patience()))
	case ByStep:
		why = append(why, fmt.Sprintf("our clock was set, patience %s", v.Patience()))
	case ByOrphan:
		why = append(why, "leftover fields must stay unmodified for reaper.orphan_grace")
	}
	if v.Allowance > 0 {
		why = append(why, fmt.Sprintf("outages of etcd add %s", v.Allowance.Round(time.Second/10)))
	}
	if v.StormDelay > 0 {
		why = append(why, fmt.Sprintf("many locks came due at once, which adds %s", v.StormDelay))
	}
	if !v.Leader && v.StandbyDelay > 0 {
		why = append(why, fmt.Sprintf("this replica acts %s after the leader", v.StandbyDelay))
	}
	return strings.Join(why, "; ")
}
