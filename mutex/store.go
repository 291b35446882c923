package mutex

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

const (
	// maxTxnOps is the default limit of etcd on the operations of a transaction. Those of
	// nested transactions add to those of the level above.
	maxTxnOps = 128
	// maxTxnBytes keeps a transaction of several locks below 1.5 MiB, etcd's default.
	maxTxnBytes = 1 << 20
	// maxInFlight is how many transactions of a batch are sent at a time.
	maxInFlight = 4

	firstPause     = 20 * time.Millisecond
	longestPause   = 2 * time.Second
	attemptTimeout = 5 * time.Second
)

// store sends all transactions of a client. etcd's client does not repeat a transaction
// whose answer was lost, so this does: a step is such that it does no harm twice.
type store struct {
	kv     clientv3.KV
	layout protocol.Layout
	outage outage
}

// step is what a transaction does to one lock.
type step struct {
	compares        []clientv3.Cmp
	then, otherwise []clientv3.Op
}

func (s step) cost() int { return max(len(s.compares), len(s.then), len(s.otherwise)) }

func (s step) size() (n int) {
	for _, op := range s.then {
		n += len(op.KeyBytes()) + len(op.ValueBytes()) + 16
	}
	for _, op := range s.otherwise {
		n += len(op.KeyBytes()) + 16
	}
	return n
}

// answer is that of etcd to one step. found has the keys that it read.
type answer struct {
	succeeded bool
	cluster   uint64
	revision  int64
	found     map[string]*mvccpb.KeyValue
}

// request is a step that is repeated until it is answered.
type request interface {
	// step is called for each attempt.
	step() step
	// answered reports whether the request is done.
	answered(answer) bool
	result() *outcome
}

// outcome is how a request ended.
type outcome struct {
	// err is nil if it was answered.
	err error
	// unsure counts the attempts that were not answered, and may have been committed or may be.
	unsure int
	// key is one that an attempt without an answer compared, and so may read.
	key string
}

func (o *outcome) result() *outcome { return o }

// settle repeats the requests until each is answered or refused, or ctx ends. An attempt
// lasts at most for the timeout.
func (st *store) settle(ctx context.Context, timeout time.Duration, requests ...request) {
	began := time.Now()
	for pause := firstPause; ctx.Err() == nil; pause = min(2*pause, longestPause, timeout) {
		if requests = st.round(ctx, timeout, requests); len(requests) == 0 {
			return
		}
		first := requests[0].result()
		last := first.err
		if last != nil && time.Since(began) > sayAfter {
			st.outage.say(last)
		}
		if errors.Is(last, context.DeadlineExceeded) {
			st.outage.login(ctx, timeout, first.key)
		}
		_ = rest(ctx, jitter(pause))
	}
	for _, r := range requests {
		o := r.result()
		if ended := context.Cause(ctx); o.err == nil {
			o.err = ended
		} else {
			o.err = st.outage.unanswered(ended, o.err)
		}
	}
}

// rest waits. The error is the cause of ctx if that ends before.
func rest(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// round sends each request once, in as few transactions as possible, and returns those that
// are to be repeated.
func (st *store) round(ctx context.Context, timeout time.Duration, requests []request) (again []request) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	chunks := chunk(requests)
	if len(chunks) == 1 {
		return st.send(ctx, chunks[0])
	}
	var sending sync.WaitGroup
	slots, left := make(chan struct{}, maxInFlight), make([][]request, len(chunks))
	for i, chunk := range chunks {
		slots <- struct{}{}
		sending.Add(1)
		go func() {
			defer sending.Done()
			left[i] = st.send(ctx, chunk)
			<-slots
		}()
	}
	sending.Wait()
	return slices.Concat(left...)
}

// planned is a request with the step of this attempt.
type planned struct {
	request
	step step
}

// chunk distributes the steps of the requests over transactions.
func chunk(requests []request) (chunks [][]planned) {
	cost, size := 0, 0
	for _, r := range requests {
		p := planned{r, r.step()}
		last := len(chunks) - 1
		if last >= 0 && len(chunks[last])+1+max(cost, p.step.cost()) <= maxTxnOps && size+p.step.size() <= maxTxnBytes {
			chunks[last] = append(chunks[last], p)
			cost, size = max(cost, p.step.cost()), size+p.step.size()
			continue
		}
		chunks = append(chunks, []planned{p})
		cost, size = p.step.cost(), p.step.size()
	}
	return chunks
}

// send sends one transaction, or two halves of it if etcd refuses it, be it for its size or for one
// of its locks.
func (st *store) send(ctx context.Context, all []planned) (again []request) {
	resp, err := st.commit(ctx, all)
	kind := classify(err)
	if (kind == tooBig || kind == refused) && len(all) > 1 {
		return append(st.send(ctx, all[:len(all)/2]), st.send(ctx, all[len(all)/2:])...)
	}
	for i, p := range all {
		o := p.result()
		if o.err = st.outage.refused(err); err == nil {
			if !p.answered(pick(resp, len(all), i)) {
				again = append(again, p.request)
			}
			continue
		}
		// Without space etcd refuses a transaction, or answers so after it has executed it.
		if kind == noSpace || kind == ambiguous && !errors.Is(err, rpctypes.ErrTooManyRequests) { // refused before the log of etcd
			o.unsure++
		}
		if kind == ambiguous {
			if len(p.step.compares) > 0 {
				o.key = string(p.step.compares[0].KeyBytes())
			}
			again = append(again, p.request)
		}
	}
	return again
}

func (st *store) commit(ctx context.Context, all []planned) (*clientv3.TxnResponse, error) {
	txn := st.kv.Txn(ctx)
	if s := all[0].step; len(all) == 1 {
		return txn.If(s.compares...).Then(s.then...).Else(s.otherwise...).Commit()
	}
	nested := make([]clientv3.Op, len(all))
	for i, p := range all {
		nested[i] = clientv3.OpTxn(p.step.compares, p.step.then, p.step.otherwise)
	}
	return txn.Then(nested...).Commit()
}

// pick returns the answer to one of n steps of a transaction.
func pick(resp *clientv3.TxnResponse, n, i int) answer {
	a := answer{succeeded: resp.Succeeded, cluster: resp.Header.ClusterId, revision: resp.Header.Revision, found: map[string]*mvccpb.KeyValue{}}
	responses := resp.Responses
	if n > 1 {
		nested := resp.Responses[i].GetResponseTxn()
		a.succeeded, responses = nested.Succeeded, nested.Responses
	}
	a.find(responses)
	return a
}

func (a answer) find(responses []*etcdserverpb.ResponseOp) {
	for _, op := range responses {
		for _, kv := range op.GetResponseRange().GetKvs() {
			a.found[string(kv.Key)] = kv
		}
		a.find(op.GetResponseTxn().GetResponses())
	}
}

// is compares the uuid of a lock.
func (st *store) is(name, uuid string) clientv3.Cmp {
	return clientv3.Compare(clientv3.Value(st.key(name, protocol.FieldUUID)), "=", uuid)
}

func (st *store) key(name string, f protocol.Field) string { return st.layout.Key(name, f.String()) }

// deadline returns the auto_unlock_at of a lock and its revision, as an answer shows them, or zeros.
func (st *store) deadline(name string, a answer) (value string, modified int64) {
	if kv := a.found[st.key(name, protocol.FieldAutoUnlockAt)]; kv != nil {
		return string(kv.Value), kv.ModRevision
	}
	return "", 0
}

// read reads the fields of a lock that describe its holder.
func (st *store) read(name string) []clientv3.Op {
	gets := []clientv3.Op{clientv3.OpGet(st.layout.Key(name, fieldIdentity))}
	for _, f := range []protocol.Field{
		protocol.FieldUUID, protocol.FieldHostname, protocol.FieldPID, protocol.FieldOwner, protocol.FieldPurpose, protocol.FieldStatus,
		protocol.FieldLockedAt, protocol.FieldAlertAt, protocol.FieldAutoUnlockAt, protocol.FieldAliveAt,
	} {
		gets = append(gets, clientv3.OpGet(st.key(name, f)))
	}
	return gets
}

// holder returns the holder from the keys that were found, without those that an earlier
// one has left. ok is false if there is none.
func (st *store) holder(name string, found map[string]*mvccpb.KeyValue) (h Holder, ok bool) {
	uuid, ok := found[st.key(name, protocol.FieldUUID)]
	if !ok {
		return Holder{}, false
	}
	text := func(field string) string {
		kv := found[st.layout.Key(name, field)]
		if kv == nil || kv.ModRevision < uuid.CreateRevision {
			return ""
		}
		return protocol.Clip(kv.Value, maxText)
	}
	at := func(f protocol.Field) time.Time {
		t, err := protocol.ParseTimestamp([]byte(text(f.String())))
		if err != nil {
			return time.Time{}
		}
		return t.Time()
	}
	return Holder{
		UUID: string(uuid.Value), Token: uuid.CreateRevision,
		Hostname: text("hostname"), PID: text("pid"), Owner: text("owner"), Purpose: text("purpose"), Status: text("status"),
		LockedAt: at(protocol.FieldLockedAt), AlertAt: at(protocol.FieldAlertAt),
		AutoUnlockAt: at(protocol.FieldAutoUnlockAt), AliveAt: at(protocol.FieldAliveAt),
		identity: text(fieldIdentity),
	}, true
}
