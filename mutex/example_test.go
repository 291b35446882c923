package mutex_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/mutex"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

// inMemory returns the etcd of the examples.
var inMemory = sync.OnceValue(func() *memetcd.Cluster { return memetcd.New(memetcd.Options{}) })

func dial() *clientv3.Client {
	link, err := inMemory().Connect()
	if err != nil {
		log.Fatal(err)
	}
	return link.Client
}

// A function that runs while a lock is held, and says how far it is.
func ExampleClient_WithLock() {
	etcd := dial() // clientv3.New(clientv3.Config{Endpoints: …})
	client, err := mutex.New(etcd, mutex.Owner("billing"))
	if err != nil {
		log.Fatal(err)
	}
	err = client.WithLock(context.Background(), "billing/invoices", func(ctx context.Context) error {
		l, _ := mutex.FromContext(ctx)
		for i := range 1_000 {
			if ctx.Err() != nil {
				return context.Cause(ctx) // why the lock is lost
			}
			// Write invoice i.
			if i%100 == 0 {
				if err := l.Alive(ctx, mutex.Status(fmt.Sprintf("invoice %d of 1,000", i))); err != nil {
					return err
				}
			}
		}
		return nil
	}, mutex.Expect(time.Minute), mutex.Patience(5*time.Minute), mutex.Purpose("invoices of November"))
	fmt.Println(err, errors.Is(err, mutex.ErrLost))
	// Output: <nil> false
}

// A job that does nothing if another host runs it.
func ExampleClient_TryLock() {
	client, err := mutex.New(dial(), mutex.Owner("report"))
	if err != nil {
		log.Fatal(err)
	}
	first, err := client.TryLock(context.Background(), "cron/report", mutex.KeepAlive(time.Hour))
	if err != nil {
		log.Fatal(err)
	}
	_, err = client.TryLock(context.Background(), "cron/report")
	var held *mutex.HeldError
	if errors.As(err, &held) {
		fmt.Printf("%s runs it since %d minutes\n", held.Holder.Owner, int(time.Since(held.Holder.LockedAt).Minutes()))
	}
	fmt.Println(first.Unlock(context.Background()))
	// Output:
	// report runs it since 0 minutes
	// <nil>
}

// A worker that takes what is free of several locks, and comes back for the rest.
func ExampleClient_TryLockAll() {
	client, err := mutex.New(dial())
	if err != nil {
		log.Fatal(err)
	}
	other, err := client.Lock(context.Background(), "shard/2")
	if err != nil {
		log.Fatal(err)
	}
	taken, held, err := client.TryLockAll(context.Background(), []string{"shard/1", "shard/2", "shard/3"})
	fmt.Println(err) // what was taken beside an error is held all the same
	for _, l := range taken {
		fmt.Println("works on", l.Name())
	}
	for _, h := range held {
		fmt.Println("later:", h.Name)
	}
	fmt.Println(client.UnlockAll(context.Background(), append(taken, other)...))
	// Output:
	// <nil>
	// works on shard/1
	// works on shard/3
	// later: shard/2
	// <nil>
}

// A write to the same etcd that a holder that has lost its lock cannot make.
func ExampleLock_Cmp() {
	etcd := dial()
	client, err := mutex.New(etcd)
	if err != nil {
		log.Fatal(err)
	}
	l, err := client.Lock(context.Background(), "result")
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		resp, err := etcd.Txn(context.Background()).If(l.Cmp()).Then(clientv3.OpPut("/result", "42")).Commit()
		fmt.Println(err, resp.Succeeded)
		if err := l.Unlock(context.Background()); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// <nil> true
	// <nil> false
}
