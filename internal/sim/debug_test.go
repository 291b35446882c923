package sim

import (
	"fmt"
	"testing"
	"time"
)

func TestDebug(t *testing.T) {
	h := history{Replicas: 1, Lasts: 60 * time.Second, Holders: []holder{
		{Name: "c", Start: 1050 * time.Millisecond, Interval: 2 * time.Second, TTL: 9 * time.Second, Retry: 5 * time.Second, LockedAt: true, AliveAt: true, Stall: 2400 * time.Millisecond, StallsFor: 18400 * time.Millisecond},
		{Name: "c", Start: 1550 * time.Millisecond, Interval: 2100 * time.Millisecond, TTL: 5200 * time.Millisecond, Retry: 20 * time.Second, LockedAt: true, AliveAt: true, Dies: 8900 * time.Millisecond, Clock: clock{Offset: 90 * time.Second}},
	}, Faults: []fault{{Kind: unreachable, At: 1050 * time.Millisecond, For: 3450 * time.Millisecond}}}
	dbg = func(w *world) {
		for range 14 {
			time.Sleep(2 * time.Second)
			d := w.daemons[0]
			it, ok, _ := d.table.Get(w.ctx, "c")
			if !ok {
				fmt.Println(w.elapsed(), "gone")
				return
			}
			fmt.Printf("%s %+v allowance %s due %s\n", w.elapsed(), it.Observation, d.probe.Allowance(w.began.Add(time.Second/2)), it.Due.Sub(w.epoch))
		}
	}
	j := run(t, h, without{})
	fmt.Println(j.violations, j.removals)
}
