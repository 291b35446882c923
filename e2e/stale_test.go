//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/mutex"
)

// A member before 3.6.9 may answer a linearizable read with old data after its process was stopped (etcd#20418). Each
// member in turn is stopped, while locks are renewed and others are removed, and resumed. No lock that is renewed is
// removed, and the daemon takes no answer for that of a restored etcd. It logs which members to upgrade.
func TestS3_StaleReadsOfAStoppedMember(t *testing.T) {
	const affected, stops = "3.6.8", 3
	members := startMembers(t, affected)
	var addrs []string
	for _, m := range members {
		addrs = append(addrs, m.addr)
	}
	d := startDaemon(t, strings.Join(addrs, ","))
	for _, addr := range addrs {
		require.Eventually(t, func() bool {
			return slices.ContainsFunc(d.log.Lines(api.LogStaleReads), func(line map[string]any) bool {
				return line["member"] == addr && line["version"] == affected && line["upgrade_to"] == "3.6.9"
			})
		}, soon, poll)
	}
	client, err := mutex.New(connect(t, addrs...))
	require.NoError(t, err)
	var locks []*mutex.Lock
	for i := range 20 {
		l, err := client.Lock(t.Context(), fmt.Sprintf("living/%d", i), mutex.Patience(30*time.Second), mutex.KeepAlive(time.Hour))
		require.NoError(t, err)
		locks = append(locks, l)
	}
	for i := range stops * len(members) {
		m := members[i%len(members)]
		m.suspend()
		pause(t, 6*time.Second)
		m.resume()
		m.awaitReady()
		dead := &dying{client: connect(t, addrs...)}
		dead.measure(t, fmt.Sprintf("dead-%d", i), time.Second) // until all are removed
	}
	for _, l := range locks {
		require.NoError(t, l.Held(), l.Name())
	}
	for _, line := range d.log.Lines(api.LogHoldBegins) {
		require.NotEqual(t, "regressed", line["reason"], line)
	}
	require.NoError(t, client.UnlockAll(t.Context(), locks...))
}
