package sim

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Histories of which the judge was wrong, and the daemon right.
func TestN_NobodyIsConvictedOf(t *testing.T) {
	fixed := lease("a", 12, 60)
	fixed.Clock, fixed.Fixed, fixed.Seconds = clock{Drift: 200, Steps: []step{{s(39), -24 * time.Hour}}}, true, true
	fixed.Interval = s(4)
	ahead := lease("a", 20, 15)
	ahead.Clock.Offset, ahead.AliveAt, ahead.Interval = 24*time.Hour, false, s(5)
	slow := lease("a", 37, 35).dies(60)
	slow.Interval = 0
	dead := lease("a", 20, 30).dies(32) // due at 62 s
	same := holder{Name: "a", Start: s(12.6), Interval: s(3.4), TTL: s(14.6), Retry: s(5), AliveAt: true, Seconds: true,
		Clock: clock{Offset: s(3), Steps: []step{{s(12.65), -s(3)}}}}
	back := lease("b", 10.65, 326.85)
	back.Interval, back.Releases, back.Clock = 0, s(31.85), clock{Offset: -s(3), Drift: -450}
	left := lease("d", 6.45, 25.2)
	left.Releases, left.Note = s(15.6), s(3.5)
	lateAlready := holder{Name: "a", Start: s(17), Interval: s(7.25), TTL: s(30), Retry: s(5), LockedAt: true, AliveAt: true, Clock: clock{Offset: -s(3), Drift: -450}, Dies: s(40.8), Renews: "a-"}
	orphaned := holder{Name: "a", Start: s(0.15), TTL: s(30), Retry: s(20), LockedAt: true, Note: s(3.9), Releases: s(12)}
	blind := holder{Name: "a", Start: s(17), TTL: s(9.6), Retry: s(20), LockedAt: true, Releases: s(17.65)}
	unseen := holder{Name: "d", Start: s(0.3), Interval: s(9.85), TTL: s(40.4), Retry: s(20), Fixed: true, Dies: s(34.7)}
	var each5900ms []holder
	for i := range 13 {
		start := 2 + 5.9*float64(i)
		each5900ms = append(each5900ms, holder{Name: fmt.Sprint(i), Start: s(start), TTL: s(20), Retry: s(1), LockedAt: true, Dies: s(start + 1)})
	}
	for name, h := range map[string]history{
		"a storm to which a lock counts that came due before an outage was known": {Replicas: 1, Lasts: s(130), Holders: each5900ms,
			Faults: []fault{{Kind: refused, Who: hosts, At: s(19.05), For: s(2.05), On: atWatch, Waits: s(1.2), Seen: true},
				{Kind: lateWatch, Who: replicas, At: s(15.65173), For: s(27.45), By: s(8)}, {Kind: slowDisk, At: s(23.3987), For: s(6.5)}}},
		"a read of what a restore brought back, before the watch shows it": {Replicas: 1, Lasts: s(80),
			Holders: []holder{{Name: "a", Start: s(17.2), Interval: s(6.7), TTL: s(21.1), Retry: s(5), AliveAt: true, Clock: clock{Offset: -s(3.9)}, Dies: s(40.05), Fixed: true}},
			Faults:  []fault{{Kind: rolledBack, At: s(37.55), By: s(15.95), Writes: 100}, {Kind: logFull, Who: replicas, At: s(37.55), For: s(0.001), On: atRevision, Waits: s(3), After: true}}},
		"a renewal right before the end of an outage in which all is carried out": {Replicas: 3, Lasts: s(70), Resync: s(5), Config: "long requests",
			Holders: []holder{{Name: "a", Start: s(17.15), Interval: s(6.55), TTL: s(7.05), Retry: s(5), AliveAt: true, Clock: clock{Offset: s(1)}, Dies: s(35)}},
			Faults:  []fault{{Kind: unanswered, At: s(22.85), For: s(11.2)}}},
		"a step within the tolerance that drift makes more long after": {Replicas: 1, Lasts: s(194), Clocks: []clock{{Drift: -450, Steps: []step{{s(8.45), -s(1.99)}}}},
			Holders: []holder{{Name: "a", Start: s(13.65), Interval: s(5.95), TTL: s(18.85), Retry: s(20), AliveAt: true, Seconds: true, Releases: s(43.2), Renews: "-a", Fixed: true}}},
		"a step within the tolerance that drift makes more": {Replicas: 2, Lasts: s(165), Clocks: []clock{{}, {Offset: -s(1.9), Drift: 100, Steps: []step{{s(1), s(1.99)}}}},
			Holders: []holder{{Name: "a", Start: s(27.85), TTL: s(308), Retry: s(1), LockedAt: true, Clock: clock{Offset: s(3.9), Drift: -450}}}},
		"an orphan that was taken and released unseen": {Replicas: 1, Lasts: s(80), Config: "no settle", Holders: []holder{orphaned, blind},
			Faults: []fault{{Kind: silentWatch, Who: replicas, At: s(13), For: s(30)}}},
		"a watch that was late already": {Replicas: 1, Lasts: s(110), Holders: []holder{lateAlready},
			Faults: []fault{{Kind: lateWatch, Who: replicas, At: s(2.7), For: s(60), By: s(8)}, {Kind: lateWatch, Who: replicas, At: s(38.687), For: s(1.95), By: s(8)}}},
		"a stamp that a late watch shows after its end": {Replicas: 2, Lasts: s(116), Holders: []holder{
			{Name: "d", Host: 1, Start: s(27.65), Interval: s(3.35), TTL: s(7.7), Retry: s(20), LockedAt: true, Releases: s(37)},
			{Name: "d", Host: 1, Start: s(36.35), Interval: s(8.9), TTL: s(27.7), Retry: s(1), LockedAt: true, AliveAt: true, Clock: clock{Offset: -s(91)}, Dies: s(40.95), Fixed: true}},
			Faults: []fault{{Kind: lateWatch, Who: replicas, N: 2, At: s(27.9), For: s(7.45), By: s(8)}}},
		"an alarm during a slow disk": {Replicas: 1, Lasts: s(99), Holders: []holder{{Name: "a", Start: s(38.35), TTL: s(26.8), Retry: s(20), LockedAt: true, Dies: s(39.65), Seconds: true}},
			Faults: []fault{{Kind: corrupt, At: s(66.238), For: s(1.20739)}, {Kind: slowDisk, At: s(66.46482), For: s(1)}}},
		"an alarm that ends before a slow disk has answered": {Replicas: 1, Lasts: s(78), Faults: []fault{
			{Kind: slowDisk, At: s(24.566), For: s(24.75)}, {Kind: latency, At: s(28.285), For: s(21.65), By: s(0.5)}, {Kind: noSpace, At: s(36), For: s(13.4)}}},
		"an alarm that only the last requests of a probe meet": {Replicas: 1, Lasts: s(60), Faults: []fault{
			{Kind: corrupt, At: s(37.80669), For: s(1.19221)}, {Kind: latency, At: s(26.7), For: s(14.05877), By: s(3)}}},
		"a deadline of before a clock was set": {Replicas: 1, Lasts: s(130), Holders: []holder{{Name: "a", Start: s(33.65), Interval: s(2.05), TTL: s(7.15), Retry: s(5), LockedAt: true, AliveAt: true,
			Clock: clock{Steps: []step{{s(34.45), -s(420)}, {s(38.45), s(420)}}}, Releases: s(51), Renews: "aal", Fixed: true}}},
		"a restore while a late watch is opened again and again": {Replicas: 2, Lasts: s(120), Config: "tight", Holders: []holder{lease("d", 29.3, 9.4).dies(67.9)},
			Faults: []fault{{Kind: newCluster, At: s(75.7313), By: s(3.7)}, {Kind: lateWatch, Who: replicas, At: s(15.75), For: s(60), By: s(8)}}},
		"slow disks, one in the other": {Replicas: 1, Lasts: s(145), Config: "tight", Holders: []holder{{Name: "a", Start: s(8.85), Interval: s(5.25), TTL: s(22), Retry: s(20), AliveAt: true, Clock: clock{Offset: -s(30)}, Renews: "a-", Fixed: true}},
			Faults: []fault{{Kind: slowDisk, At: s(32.8566), For: s(12.5)}, {Kind: slowDisk, At: s(63.4806), For: s(4.2)}, {Kind: slowDisk, At: s(63.83883), For: s(27.85)}, {Kind: refused, Who: hosts, At: s(92.2126), For: s(2.23)}, {Kind: slowDisk, At: s(88.4186), For: s(5.65)}, {Kind: slowDisk, At: s(93.2126), For: s(1.23)}}},
		"a restore that looks like the deletion of a field": {Replicas: 1, Lasts: s(90), Holders: []holder{unseen}, Faults: []fault{
			{Kind: noted, Who: replicas, N: 2, At: s(27.3)}, {Kind: bumped, At: s(30.7), By: s(27.2), Writes: 100}, {Kind: slowDisk, At: s(39.2), For: s(19.25)}}},
		"a lock that a restore brings back": {Replicas: 1, Lasts: s(88), Holders: []holder{back},
			Faults: []fault{{Kind: bumped, At: s(32.14), By: s(20.85), Writes: 100}, {Kind: lag, Who: replicas, At: s(35.3), For: s(14), By: s(3)}}},
		"a step back as a removal is on its way": {Replicas: 1, Lasts: s(80), Holders: []holder{dead}, Clocks: []clock{{Steps: []step{{s(62.5), -s(30)}}}},
			Faults: []fault{{Kind: compacted, At: s(61), On: atRemoval, Waits: s(1.2)}}},
		"a step back within the tolerance as a lock is read": {Replicas: 1, Lasts: s(80), Holders: []holder{dead}, Clocks: []clock{{Steps: []step{{s(62.5), -s(1.9)}}}},
			Faults: []fault{{Kind: compacted, At: s(61), On: atRead, Waits: s(1.2)}}},
		"the same deadline after a step":            {Replicas: 1, Lasts: s(60), Holders: []holder{same}, Clocks: []clock{{Steps: []step{{s(13.15), 24 * time.Hour}}}}},
		"the drift of a clock that is a day behind": {Replicas: 1, Lasts: s(90), Holders: []holder{fixed}},
		"an outage before a renewal that was heard of late": {Replicas: 1, Lasts: s(100), Holders: []holder{ahead},
			Faults: []fault{{Kind: slowDisk, At: s(28), For: s(12.7)}, {Kind: silentWatch, Who: replicas, At: s(27), For: s(21)}}},
		"a restore that a compaction hides": {Replicas: 1, Lasts: s(60), Resync: s(13), Holders: []holder{{Name: "a", Start: s(5), TTL: s(9), Retry: s(20), LockedAt: true, Releases: s(8)}},
			Faults: []fault{{Kind: rolledBack, At: s(0.001), Writes: 100, On: atCheck, Waits: s(0.06), Seen: true}, {Kind: compacted, At: s(25.75), On: atWatch, Seen: true}}},
		"a renewal after a deadline in whole seconds": {Replicas: 1, Lasts: s(40), Clocks: []clock{{Offset: s(1.99)}},
			Holders: []holder{{Name: "a", Start: s(17), Interval: s(4.65), TTL: s(5.15), Retry: s(20), LockedAt: true, Seconds: true}}},
		"an orphan that was taken and released as it was read": {Replicas: 1, Lasts: s(85), Holders: []holder{left}, Faults: []fault{
			{Kind: retaken, Who: everyone, N: 2, At: s(1), On: atRead, Seen: true, Again: true},
			{Kind: released, Who: everyone, At: s(1), On: atRead, Waits: s(1.2), Seen: true, Again: true},
			{Kind: released, Who: hosts, N: 1, At: s(1), On: atRead, Waits: s(0.06), Seen: true, Again: true}}},
		"an unstamped renewal that the watch shows long after an outage": {Replicas: 1, Lasts: s(70),
			Holders: []holder{{Name: "a", Start: s(7.6), Interval: s(6.9), TTL: s(6.95), Retry: s(1), LockedAt: true, Clock: clock{Offset: s(5)}, Dies: s(47.2)}},
			Faults:  []fault{{Kind: lateWatch, Who: replicas, At: s(18.05), For: s(60), By: s(8)}, {Kind: slowDisk, Who: everyone, At: s(41.55435), For: s(1.75)}}},
		"renewals without a stamp of a lock that a restore brings back as it is removed": {Replicas: 1, Lasts: s(155), Holders: []holder{
			{Name: "a", Start: s(27.65), Interval: s(7), TTL: s(29), Retry: s(1), LockedAt: true, Fixed: true}},
			Faults: []fault{{Kind: bumped, On: atRemoval, After: true, At: s(43.35), By: s(0.4)}, {Kind: noSpace, At: s(57.7625), For: s(2.25)}}},
		"a silence of the watch that begins in another one": {Replicas: 1, Lasts: s(60), Clocks: []clock{{Offset: s(1)}}, Holders: []holder{
			{Name: "a", Start: s(15.2), Interval: s(3.95), TTL: s(4.45), Retry: s(1), LockedAt: true, AliveAt: true, Dies: s(27.4)}},
			Faults: []fault{{Kind: silentWatch, Who: replicas, At: s(5.4), For: s(9.6)}, {Kind: silentWatch, Who: replicas, At: s(12.457), For: s(2.9)}}},
		"a restore that a late watch shows after a renewal": {Replicas: 1, Lasts: s(120),
			Holders: []holder{{Name: "a", Start: s(5.838), Interval: s(10), TTL: s(41), Retry: s(1), Seconds: true}},
			Faults: []fault{{Kind: lateWatch, Who: replicas, At: s(49.005), For: s(0.686), By: s(8), On: atRevision, Waits: s(1.2), After: true},
				{Kind: bumped, At: s(92.605), By: s(14.45), Writes: 100}}},
		"a storm of few locks that are renewed as they are removed": {Replicas: 1, Lasts: s(190), Holders: []holder{
			{Name: "a/b", Host: 1, Start: s(7.85), Interval: s(4.25), TTL: s(5.75), Retry: s(5), LockedAt: true, AliveAt: true, Seconds: true, Clock: clock{Offset: s(3)}, Dies: s(13.65)},
			{Name: "c", Host: 1, Start: s(8.2), TTL: s(7.9), Retry: s(20), LockedAt: true, AliveAt: true, Stall: s(9.65), StallsFor: s(9.7), Renews: "-"},
			{Name: "d", Host: 1, Start: s(20.5), Interval: s(6.7), TTL: s(8.2), Retry: s(20), AliveAt: true, Seconds: true, Dies: s(36.5), Note: s(3.1)}}, Faults: []fault{
			{Kind: renewed, Who: hosts, N: 1, At: s(1), On: atRemoval, Waits: s(1.2), Again: true},
			{Kind: renewed, Who: everyone, N: 3, At: s(1), On: atRemoval, Waits: s(1.2), Seen: true, Again: true},
			{Kind: renewed, Who: everyone, N: 3, At: s(1), On: atRead, Seen: true, Again: true}}},
		"a nested lock that a restore brings back as the lock around it is removed": {Replicas: 1, Lasts: s(88), Holders: []holder{
			{Name: "a", Host: 1, Start: s(15.05), Interval: s(9.5), TTL: s(39), Retry: s(1), LockedAt: true, Dies: s(21.5), Note: s(4.3), Fixed: true},
			{Name: "a/z", Host: 1, Start: s(0.6), Interval: s(5.3), TTL: s(22.2), Retry: s(5), Releases: s(25.3)}},
			Faults: []fault{{Kind: newCluster, Who: everyone, At: s(15.8111), By: s(25.4), On: atRemoval, Seen: true}}},
		"a storm of one lock whose holder renews with a clock that is a day behind": {Replicas: 1, Lasts: s(160), Rate: 0.2, Clocks: []clock{{Offset: -s(3.9)}}, Holders: []holder{
			{Name: "a", Host: 1, Start: s(14.7), Interval: s(5.4), TTL: s(17.2), Retry: s(1), LockedAt: true, Clock: clock{Offset: -s(1.9), Steps: []step{{s(31.65), -24 * time.Hour}}}, Note: s(1.3)},
			{Name: "b", Start: s(27.05), Interval: s(8.85), TTL: s(18.7), Retry: s(1), LockedAt: true, Seconds: true, Dies: s(44.9)}},
			Faults: []fault{{Kind: renewed, Who: hosts, N: 4, At: s(1), On: atRemoval, Again: true}}},
		"a locked_at that a restore brings back": {Replicas: 1, Lasts: s(138.2), Holders: []holder{
			{Name: "a", Start: s(21.6), Interval: s(3.55), TTL: s(8.1), Retry: s(5), LockedAt: true, Stall: s(32.9), StallsFor: s(7.44229), Renews: "a-l-"}},
			Faults: []fault{{Kind: lateAnswers, Who: everyone, At: s(42.226), For: s(13.05), By: s(3)}, {Kind: bumped, Who: everyone, At: s(54.582), By: s(30), Writes: 3}}},
		"an alarm of which the only answer is lost with its connection": {Replicas: 1, Lasts: s(163.7), Holders: []holder{{Name: "a", Host: 1, Start: s(1.25), Interval: s(5.1), TTL: s(16.3), Retry: s(5), LockedAt: true, AliveAt: true, Stall: s(20.55), StallsFor: s(23.25), Note: s(3.65), Renews: "a", Fixed: true}}, Faults: []fault{
			{Kind: lag, Who: replicas, N: 1, At: s(14.038), For: s(21.4), By: s(3)}, {Kind: noSpace, At: s(18.301), For: s(0.226)}, {Kind: broken, At: s(19.15)}}},
		"a silence of the watch that begins with what was late": {Replicas: 1, Lasts: s(60), Holders: []holder{
			{Name: "a", Start: s(18), TTL: s(90), Retry: s(1), LockedAt: true, Note: s(1)},
			{Name: "b", Start: s(17.2), Interval: s(7.1), TTL: s(15.8), Retry: s(5), LockedAt: true, Dies: s(27)}},
			Faults: []fault{{Kind: unanswered, At: s(23.05), For: s(2.2)}, {Kind: lateWatch, Who: replicas, At: s(19), For: s(3), By: s(3)}}},
		"a deletion from before a daemon started, which a restore takes back": {Replicas: 1, Lasts: s(80),
			Holders: []holder{{Name: "a", Start: s(23), TTL: s(10), Retry: s(1), LockedAt: true, Releases: s(29)}},
			Faults:  []fault{{Kind: rolledBack, At: s(53.5), By: s(26), Writes: 100}, {Kind: killed, Who: replicas, At: s(38), For: s(13)}}},
		"a restore in one of two outages, one after the other": {Replicas: 1, Lasts: s(95), Config: "no settle",
			Holders: []holder{{Name: "a", Start: s(19.25), Interval: s(6.7), TTL: s(14.4), Retry: s(5), AliveAt: true, Dies: s(41), Renews: "la--"}},
			Faults: []fault{{Kind: refused, At: s(53.7), For: s(25.78)}, {Kind: rolledBack, At: s(48.8), By: s(22.6), Writes: 3},
				{Kind: refused, Who: replicas, At: s(33.1), For: s(22.5)}}},
		"a storm of one lock of which a late watch shows each renewal after due": {Replicas: 1, Lasts: s(121.1), Holders: []holder{
			{Name: "d", Start: s(33.9), Interval: s(2), TTL: s(9), Retry: s(20), LockedAt: true, AliveAt: true, Dies: s(72.25)},
			{Name: "c", Start: s(2.45), Interval: s(4.5), TTL: s(10), Retry: s(1), LockedAt: true}},
			Faults: []fault{{Kind: lateWatch, Who: replicas, At: s(20), For: s(60), By: s(8)}}},
		"a deadline that was long on its way, and is over when its holder renews": {Replicas: 1, Lasts: s(40),
			Holders: []holder{{Name: "a", Host: 1, Start: s(9.35), Interval: s(5.1), TTL: s(5.6), Retry: s(20), LockedAt: true}},
			Faults: []fault{{Kind: latency, Who: hosts, At: s(12.45289), For: s(2.5), By: s(3)},
				{Kind: renewed, At: s(1), On: atRead, Waits: s(1.2), Seen: true, Again: true}}},
		"a removal on its way, as a restore is found that did not change its lock": {Replicas: 1, Lasts: s(60), Resync: s(2), Holders: []holder{
			{Name: "a/b", Start: s(38.9), Interval: s(8.4), TTL: s(9.9), Retry: s(1), Seconds: true, Clock: clock{Offset: -s(420), Drift: -100}, Releases: s(52.9), Note: s(2.3), Blind: true},
			{Name: "a", Start: s(19.15), Interval: s(3.15), TTL: s(7.3), Retry: s(1), AliveAt: true, Seconds: true, Dies: s(45.75)}},
			Faults: []fault{{Kind: latency, At: s(51.60304), For: s(2.04741), By: s(0.05)},
				{Kind: rolledBack, At: s(52.899), By: s(22.7), Writes: 100, On: atProbe, Seen: true, After: true}}},
		"a stamp that was long on its way": {Replicas: 2, Lasts: s(85), Holders: []holder{slow},
			Faults: []fault{{Kind: lateAnswers, Who: replicas, N: 2, At: s(25.7), For: s(11.2), By: s(4)}}},
	} {
		t.Run(name, func(t *testing.T) { judged(t, h) })
	}
}

// A real etcd carries out what a client sent and gave up, as soon as the network carries it: its clock seems slow by that.
func TestN_NobodyIsConvictedOfAStampThatTheNetworkKept(t *testing.T) {
	for name, h := range map[string]history{
		"of an acquisition": {Replicas: 1, Lasts: s(90),
			Holders: []holder{{Name: "a", Host: 1, Start: s(27.7), TTL: s(17.5), Retry: s(5), LockedAt: true, Seconds: true, Releases: s(57.05)}},
			Faults:  []fault{{Kind: unreachable, Who: hosts, At: s(24.359), For: s(25.35)}}},
		"of a renewal, with the deadline of those after it": {Replicas: 1, Lasts: s(50),
			Holders: []holder{{Name: "a", Start: s(0.4), Interval: s(5.9), TTL: s(358.5), Retry: s(1), Stall: s(15.85), StallsFor: s(8.3), Renews: "aa-", Fixed: true}},
			Faults:  []fault{{Kind: unreachable, Who: hosts, At: s(11.05), For: s(21.5)}}},
	} {
		t.Run(name, func(t *testing.T) { require.Empty(t, runReal(t, h, without{}).violations) })
	}
}

// A real etcd answers no request with a token of before its restore, until its log is as long again. Until requests time
// out, or a silent watch does, a daemon knows nothing of the restore.
func TestN_NobodyIsConvictedOfATokenFromBeforeARestore(t *testing.T) {
	for name, h := range map[string]history{
		"with long requests": {Replicas: 1, Lasts: s(113), Resync: s(2), Config: "long requests", Faults: []fault{{Kind: newCluster, Who: everyone, N: 1, At: s(51.283), By: s(22.8)}},
			Holders: []holder{{Name: "a", Start: s(31.3), Interval: s(3.45), TTL: s(11.35), Retry: s(1), LockedAt: true, AliveAt: true, Renews: "--", Dies: s(59.65), Host: 1, Fixed: true}}},
		"right after the login of a new process": {Replicas: 1, Lasts: s(128.584),
			Holders: []holder{{Name: "a", Host: 1, Start: s(24.8), Interval: s(6.5), TTL: s(96.45), Retry: s(1), LockedAt: true}},
			Faults:  []fault{{Kind: newCluster, Who: everyone, At: s(53.50995), By: s(17.8), Writes: 100, On: atWatch, Waits: s(0.06)}, {Kind: killed, Who: replicas, N: 1, At: s(74.43395), For: s(10.25)}}},
	} {
		t.Run(name, func(t *testing.T) { require.Empty(t, runReal(t, h, without{}).violations) })
	}
}
