//go:build hunt

package hunt

import (
	"slices"
	"time"
)

// noticed is the maximum time from the beginning of an outage until a daemon has a hold: the
// probe in flight ends, and the next one fails.
const noticed = daemonTimeout + probeInterval + 500*time.Millisecond

// staleLeader is the maximum time for which a daemon that runs believes that it leads.
const staleLeader = electionTTL + 2*daemonTimeout

// checkRemover checks what the daemon that removed a lock must have known. It sent the removal
// after the beginning of sent, and before the end.
func (w *world) checkRemover(n *lifetime, d *daemon, a *announcement) {
	sent := span{a.from, n.ended}
	if sent.to.Before(d.started.Add(settle)) {
		w.convict("S3", n, "within %s of the start of its daemon, hold starting", sent.to.Sub(d.started))
	}
	w.checkHolds(n, d, sent)
	w.checkOverdue(n, d, a)
	w.checkHeadStart(n, d, sent)
}

// checkHolds checks that the daemon waited for the settle after a time in which etcd accepted no
// write, or in which it had no connection.
func (w *world) checkHolds(n *lifetime, d *daemon, sent span) {
	for _, o := range slices.Concat(w.outages, d.group.cutOff()) {
		// The last look at the signals may have been a while before the end of the outage.
		hold := span{o.from.Add(noticed), o.to.Add(settle - time.Second)}
		if hold.from.Before(o.to) && hold.contains(sent) && d.started.Before(o.from) && !d.suspended(span{o.from.Add(-noticed), sent.to}) {
			w.convict("S3", n, "%s after an outage of %s, within the settle", sent.to.Sub(o.to), o.to.Sub(o.from))
		}
	}
}

// checkOverdue checks that nothing was sent while no probe can have been answered for longer than
// the grace.
func (w *world) checkOverdue(n *lifetime, d *daemon, a *announcement) {
	const slack = 500 * time.Millisecond
	for _, o := range w.outages {
		overdue := span{o.from.Add(grace + slack), o.to.Add(-slack)}
		if overdue.contains(a.span) && !d.suspended(span{o.from, n.ended}) {
			w.convict("S3", n, "sent %s after the last write before an outage of %s", a.from.Sub(o.from), o.to.Sub(o.from))
		}
	}
}

// checkHeadStart checks that the clock of the daemon had passed the deadline and the grace and,
// if another one led, the standby delay.
func (w *world) checkHeadStart(n *lifetime, d *daemon, sent span) {
	delay := grace
	if !w.replay.election.led(d.cmd.Process.Pid, n.end, n.ended.Add(-staleLeader)) && !d.suspended(span{n.ended.Add(-maxLag - staleLeader), n.ended}) {
		delay += standby
	}
	_, ahead := d.clock.within(span{sent.from.Add(-maxLag), sent.to})
	if left := n.deadline().Add(delay).Sub(sent.to.Add(ahead)); left > 0 {
		w.convict("S6", n, "%s before the clock of its daemon passed the deadline and %s", left, delay)
	}
}
