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
