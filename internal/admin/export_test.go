package admin

import (
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// SetNow sets the clock of an Admin that nothing uses yet.
func (a *Admin) SetNow(now func() time.Time) { a.now, a.manual.Now = now, now }

// Use replaces the client of the Admin, which Close closes.
func (a *Admin) Use(client *clientv3.Client) {
	_ = a.client.Client.Close()
	a.client.Client, a.store.KV, a.manual.Store.KV = client, client.KV, client.KV
}
