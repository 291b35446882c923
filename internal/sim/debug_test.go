package sim

import (
	"fmt"
	"testing"
	"time"
)

func TestDebug(t *testing.T) {
	h := history{Replicas: 2, Lasts: 40 * time.Second, Holders: []holder{
		{Name: "a", Host: 1, Start: 1550 * time.Millisecond, Interval: 8500 * time.Millisecond, TTL: 18 * time.Second, Retry: 20 * time.Second, LockedAt: true, AliveAt: true, Stall: 3 * time.Second, StallsFor: 20800 * time.Millisecond, Note: 3350 * time.Millisecond},
	}, Faults: []fault{
		{Kind: killed, Who: replicas, N: 1, At: time.Second, For: time.Second},
		{Kind: unreachable, Who: replicas, N: 2, At: 1100 * time.Millisecond, For: 3250 * time.Millisecond}}}
	dbg = func(w *world) {
		for range 14 {
			time.Sleep(2 * time.Second)
			d := w.daemons[1]
			it, ok, _ := d.table.Get(w.ctx, "a")
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
