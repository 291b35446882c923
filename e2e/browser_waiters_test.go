//go:build e2e

package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Three hundred wait for one lock: how many is on the dashboard, and the first are on its page, which both change as they
// come and go.
func TestWaitersOnPages(t *testing.T) {
	s := startSite(t)
	s.hold(time.Hour, 2*time.Hour)
	key := func(i int) string { return fmt.Sprintf("/unlocker/waiters%s%s//%03d", s.Prefix, billing, i) }
	var tickets []clientv3.Op
	for i := range 300 {
		ticket := protocol.Ticket{UUID: fmt.Sprintf("u-%d", i), Hostname: fmt.Sprintf("worker-%03d.example.org", i), Owner: "billing", PID: "4711",
			Purpose: "invoices of November", Since: time.Now().Add(-time.Minute)}
		if i%3 == 0 {
			ticket.Slots, ticket.Holds = 4, []string{"u-a", "u-b"}
		}
		tickets = append(tickets, clientv3.OpPut(key(i), ticket.Value()))
	}
	s.Put(tickets...)
	s.awaitMetric(300, "unlocker_waiters")
	s.fits("waiters", "/locks/"+billing, "Waiters: 300", "and 200 more", "worker-", "holds other locks meanwhile: 2")
	s.fits("waiters-dashboard", "/", "300 wait for it")

	b, all := s.open("/locks/"+billing), s.open("/")
	b.awaitText("#waiters", "Waiters: 300")
	require.Equal(t, 100, eval[int](b, `document.querySelectorAll("#waiters tbody tr").length`))
	for i := range 299 {
		s.Put(clientv3.OpDelete(key(i)))
	}
	b.awaitText("#waiters", "Waiters: 1")
	b.awaitText("#waiters", "worker-299.example.org")
	all.awaitText("#rows", "1 waits for it")
	s.Put(clientv3.OpDelete(key(299)))
	b.await(`document.querySelector("#waiters").hidden`)
	all.await(`!document.querySelector("#rows .waits")`)
}

// Three that wait for each other are in the banner of every page, in words.
func TestDeadlockOnPages(t *testing.T) {
	s := startSite(t)
	locks := []string{"billing/invoices", "billing/ledger", "deploy/<b>web\u202e"}
	for i, lock := range locks {
		s.Put(s.Lock(lock, time.Now().Add(time.Hour), time.Now().Add(2*time.Hour))...)
		ticket := protocol.Ticket{UUID: "u", Hostname: "worker-17.example.org\x1b[2J", Owner: "billing", PID: "4711", Holds: []string{"u-" + lock}}
		s.Put(clientv3.OpPut("/unlocker/waiters"+s.Prefix+locks[(i+1)%3]+"//1", ticket.Value()))
	}
	s.awaitMetric(1, "unlocker_deadlocks")
	for name, path := range map[string]string{"deadlock": "/", "deadlock-lock": "/locks/billing/ledger"} {
		s.fits(name, path, "Deadlock:", "3 wait for each other", "holds billing/invoices and waits for billing/ledger", `and waits for "deploy/<b>web\u202e"`, "the first of their locks is due")
	}
	b := s.open("/")
	b.awaitText("#notices", "Deadlock:")
	s.Put(clientv3.OpDelete("/unlocker/waiters" + s.Prefix + locks[0] + "//1"))
	b.await(`!document.querySelector("#notices li")`)
}
