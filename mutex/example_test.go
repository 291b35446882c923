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

// dial stands for clientv3.New(clientv3.Config{Endpoints: …}) in the examples.
func dial() *clientv3.Client {
	link, err := inMemory().Connect()
	if err != nil {
		log.Fatal(err)
	}
	return link.Client
}

// newLocker returns a client as each process has one.
func newLocker(opts ...mutex.Option) *mutex.Client {
	client, err := mutex.New(dial(), opts...)
	if err != nil {
		log.Fatal(err)
	}
	return client
}

// Run a function while a lock is held, and report its progress with each renewal.
func Example_runAFunctionUnderALock() {
	client, err := mutex.New(dial(), mutex.Owner("billing"))
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

// A cron job that every host starts runs on one of them. The lock of a period is not released
// after success: it stays until its deadline, so that a host whose clock is late does not repeat it.
func Example_cronJobOncePerPeriod() {
	const period = time.Hour
	var locks []*mutex.Lock
	night := time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)
	for _, host := range []string{"web-1", "web-2", "web-3"} {
		client := newLocker(mutex.Owner(host))
		l, err := client.TryLock(context.Background(), "cron/report/"+night.Format("2006-01-02T15"),
			mutex.Patience(period), mutex.Expect(period))
		switch {
		case errors.Is(err, mutex.ErrHeld):
			fmt.Println(host, "has nothing to do")
		case err != nil:
			fmt.Println(err)
		default:
			fmt.Println(host, "writes the report")
			locks = append(locks, l)
		}
	}
	for _, l := range locks { // instead of the end of the period
		fmt.Println(l.Unlock(context.Background()))
	}
	// Output:
	// web-1 writes the report
	// web-2 has nothing to do
	// web-3 has nothing to do
	// <nil>
}

// A command that does not wait says who runs it already.
func Example_sayWhoHoldsTheLock() {
	first, err := newLocker(mutex.Owner("report")).TryLock(context.Background(), "report",
		mutex.Purpose("figures of October"), mutex.KeepAlive(time.Hour))
	if err != nil {
		log.Fatal(err)
	}
	_, err = newLocker().TryLock(context.Background(), "report")
	var held *mutex.HeldError
	if errors.As(err, &held) {
		minutes := int(time.Since(held.Holder.LockedAt).Minutes())
		fmt.Printf("%s has run for %d minutes: %s\n", held.Holder.Owner, minutes, held.Holder.Purpose)
	}
	fmt.Println(first.Unlock(context.Background()))
	// Output:
	// report has run for 0 minutes: figures of October
	// <nil>
}

// A deployment waits for the one before it, but not for ever.
func Example_waitAtMost() {
	first, err := newLocker(mutex.Owner("deploy-41")).Lock(context.Background(), "deploy/shop")
	if err != nil {
		log.Fatal(err)
	}
	_, err = newLocker().Lock(context.Background(), "deploy/shop", mutex.Wait(500*time.Millisecond))
	fmt.Println(errors.Is(err, mutex.ErrHeld), errors.Is(err, context.DeadlineExceeded))
	fmt.Println(first.Unlock(context.Background()))
	// Output:
	// true true
	// <nil>
}

// A worker takes what is free of several shards, and comes back for the rest.
func Example_distributeShards() {
	client := newLocker()
	other, err := client.Lock(context.Background(), "shard/2")
	if err != nil {
		log.Fatal(err)
	}
	taken, held, err := client.TryLockAll(context.Background(), []string{"shard/1", "shard/2", "shard/3"})
	fmt.Println(err) // locks that were taken are held also if there is an error
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

// No more than two renderings run at a time, whichever process they are in.
func Example_atMostTwoAtATime() {
	for range 2 {
		l, err := newLocker().Lock(context.Background(), "render", mutex.Slots(2))
		if err != nil {
			log.Fatal(err)
		}
		defer func() { _ = l.Unlock(context.Background()) }()
	}
	_, err := newLocker().Lock(context.Background(), "render", mutex.Slots(2), mutex.Wait(time.Second))
	fmt.Println("a third:", errors.Is(err, mutex.ErrHeld))
	// Output: a third: true
}

// Three processes elect a leader. When it steps down, or crashes, another one leads.
func Example_electALeader() {
	ctx, stop := context.WithCancel(context.Background())
	leads, stepDown, ended := make(chan string), make(chan bool), make(chan error)
	for _, replica := range []string{"replica-0", "replica-1", "replica-2"} {
		client := newLocker(mutex.Owner(replica), mutex.Patience(15*time.Second))
		go func() {
			ended <- client.Lead(ctx, "scheduler", func(ctx context.Context) error {
				leads <- replica
				select {
				case <-stepDown:
					return nil
				case <-ctx.Done(): // also when it does not lead any more
					return context.Cause(ctx)
				}
			})
		}()
	}
	first := <-leads
	stepDown <- true
	fmt.Println("another leads:", first != <-leads)
	stop()
	fmt.Println(<-ended, <-ended, <-ended)
	// Output:
	// another leads: true
	// context canceled context canceled context canceled
}

// A write to the same etcd that a holder that has lost its lock cannot make.
func Example_fencedWriteToEtcd() {
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

// storage is a resource outside of etcd that refuses writes of earlier holders.
type storage struct{ newest int64 }

func (s *storage) write(token int64, _ string) error {
	if token < s.newest {
		return errors.New("refused: a later holder has written")
	}
	s.newest = token
	return nil
}

// A resource outside of etcd takes the fencing token with each write: it refuses the write of a
// holder that was suspended, and whose lock was taken by the next one meanwhile.
func Example_fencedWriteElsewhere() {
	ctx, client := context.Background(), newLocker()
	var disk storage
	slow, err := client.Lock(ctx, "disk")
	if err != nil {
		log.Fatal(err)
	}
	if err := slow.Unlock(ctx); err != nil { // stands for the loss of the lock
		log.Fatal(err)
	}
	next, err := client.Lock(ctx, "disk")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(disk.write(next.Token(), "new"))
	fmt.Println(disk.write(slow.Token(), "old"))
	fmt.Println(next.Unlock(ctx))
	// Output:
	// <nil>
	// refused: a later holder has written
	// <nil>
}

// Work that cannot call Alive is renewed in the background, for at most as long as it may take.
func Example_renewInTheBackground() {
	l, err := newLocker().Lock(context.Background(), "import", mutex.KeepAlive(2*time.Hour), mutex.Expect(time.Hour))
	if err != nil {
		log.Fatal(err)
	}
	// One call that takes an hour.
	fmt.Println(l.Held(), l.Unlock(context.Background()))
	// Output: <nil> <nil>
}

// Work stops when its lock is lost, and says why. Here an operator removes the lock.
func Example_stopWhenTheLockIsLost() {
	etcd := dial()
	client, err := mutex.New(etcd)
	if err != nil {
		log.Fatal(err)
	}
	err = client.WithLock(context.Background(), "migration", func(ctx context.Context) error {
		if _, err := etcd.Delete(ctx, "/mutexes/migration/", clientv3.WithPrefix()); err != nil {
			return err
		}
		for step := 0; ; step++ {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(10 * time.Millisecond): // a step of the migration
			}
		}
	})
	var lost *mutex.LostError
	fmt.Println(errors.As(err, &lost), lost.Name, errors.Is(err, mutex.ErrForced))
	// Output: true migration true
}

// A service that crashed takes its own lock again at once, by its identity. It must be sure that
// its former process has ended, as a StatefulSet is.
func Example_takeTheLockAgainAfterACrash() {
	crashed, err := newLocker(mutex.Identity("shop-0")).Lock(context.Background(), "queue/0")
	if err != nil {
		log.Fatal(err)
	}
	_, err = newLocker(mutex.Identity("shop-1")).TryLock(context.Background(), "queue/0")
	fmt.Println("shop-1:", errors.Is(err, mutex.ErrHeld))
	l, err := newLocker(mutex.Identity("shop-0")).TryLock(context.Background(), "queue/0")
	fmt.Println("shop-0:", err, l.Unlock(context.Background()))
	fmt.Println("the former process has lost it:", errors.Is(crashed.Unlock(context.Background()), mutex.ErrLost))
	// Output:
	// shop-1: true
	// shop-0: <nil> <nil>
	// the former process has lost it: true
}

// A job that has more to do than expected asks for more time. The alert is put off, too.
func Example_askForMoreTime() {
	ctx := context.Background()
	l, err := newLocker().Lock(ctx, "backup", mutex.Expect(time.Minute), mutex.Patience(2*time.Minute))
	if err != nil {
		log.Fatal(err)
	}
	before := l.Deadline()
	err = l.Alive(ctx, mutex.Expect(time.Hour), mutex.Patience(2*time.Hour), mutex.Status("the large table"))
	fmt.Println(err, l.Deadline().Sub(before) > time.Hour)
	fmt.Println(l.Unlock(ctx))
	// Output:
	// <nil> true
	// <nil>
}

// Two locks are always taken in the same order, so that two processes never wait for each other.
func Example_takeTwoLocks() {
	transfer := func(client *mutex.Client, from, to string) error {
		return client.WithLock(context.Background(), "account/"+min(from, to), func(ctx context.Context) error {
			return client.WithLock(ctx, "account/"+max(from, to), func(context.Context) error { return nil })
		})
	}
	errs := make(chan error)
	go func() { errs <- transfer(newLocker(), "alice", "bob") }()
	go func() { errs <- transfer(newLocker(), "bob", "alice") }()
	fmt.Println(<-errs, <-errs)
	// Output: <nil> <nil>
}

// A lock tells those who find it what they have to know: a ticket, a link to a runbook.
func Example_describeTheLock() {
	ctx := context.Background()
	l, err := newLocker(mutex.Owner("billing"), mutex.Metadata("runbook", "https://wiki.example/invoices")).
		Lock(ctx, "invoices", mutex.Purpose("invoices of November"), mutex.Metadata("ticket", "OPS-1"))
	if err != nil {
		log.Fatal(err)
	}
	resp, err := dial().Get(ctx, "/mutexes/invoices/", clientv3.WithPrefix())
	if err != nil {
		log.Fatal(err)
	}
	for _, kv := range resp.Kvs {
		switch field := string(kv.Key[len("/mutexes/invoices/"):]); field {
		case "owner", "purpose", "runbook", "ticket":
			fmt.Printf("%s: %s\n", field, kv.Value)
		}
	}
	fmt.Println(l.Unlock(ctx))
	// Output:
	// owner: billing
	// purpose: invoices of November
	// runbook: https://wiki.example/invoices
	// ticket: OPS-1
	// <nil>
}

// A shutdown by a signal cancels the context: the work stops, and its lock is released.
func Example_stopByASignal() {
	// ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, stop := context.WithCancelCause(context.Background())
	client := newLocker()
	err := client.WithLock(ctx, "consumer", func(ctx context.Context) error {
		stop(errors.New("terminated"))
		<-ctx.Done()
		return context.Cause(ctx)
	})
	fmt.Println(err)
	l, err := client.TryLock(context.Background(), "consumer")
	fmt.Println(err, l.Unlock(context.Background()))
	// Output:
	// terminated
	// <nil> <nil>
}
