package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/client"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// clocks are what a daemon has observed: by how much its clock is ahead of that of this host, and by how much those
// of holders' hosts are ahead of the daemon's.
type clocks struct {
	apart time.Duration
	hosts map[string]time.Duration
}

// Observe asks a daemon for the clocks that it has observed. List, Watch and History then go by its clock.
func (a *Admin) Observe(ctx context.Context, from client.Daemon) error {
	status, err := from.Status(ctx)
	if err != nil {
		return ofDaemon(from, err)
	}
	if status.Prefix != a.config.Prefix {
		return ofDaemon(from, fmt.Errorf("watches %s, not %s", status.Prefix, a.config.Prefix))
	}
	a.clocks.Store(&clocks{status.Now.Sub(a.now()), status.Clock.Ahead()})
	return nil
}

// instant is a time, and by how much the clocks of holders are known to be ahead of it, by the names of their locks.
type instant struct {
	time.Time
	ahead map[string]time.Duration
}

// instant returns the present time according to the clock of the daemon, or by ours if none was asked.
func (a *Admin) instant() instant {
	return instant{a.now().UTC().Add(a.clocks.Load().apart), make(map[string]time.Duration)}
}

// note notes by how much the clock of a holder is ahead: as a daemon has observed it or, if none was asked, as is given
// if it is known. Otherwise a lock that its holder renewed may have lived until now, if its deadline has passed by less
// than its patience: the clock is slow by that much, or the holder is dead.
func (a *Admin) note(now instant, l *protocol.Lock, ahead time.Duration, known bool) {
	late := protocol.TimestampOf(now.Time) - l.AutoUnlockAt()
	if c := a.clocks.Load(); c.hosts != nil {
		ahead = c.hosts[l.Hostname()]
	} else if alive := l.AliveAt(); !known && alive != 0 && late >= 0 && late < l.AutoUnlockAt()-alive {
		ahead = -time.Duration(late) - 1
	}
	if ahead != 0 {
		now.ahead[l.Name] = ahead
	}
}

// of returns the time according to the clock of the holder of a lock.
func (i instant) of(l *protocol.Lock) protocol.Timestamp {
	return protocol.TimestampOf(i.Time) + protocol.Timestamp(i.ahead[l.Name])
}
