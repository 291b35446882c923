package sim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

// What the etcd in memory does as 3.7 does, and some real ones do not.
var (
	// streams: RangeStream, and keys alone without their leases, are of 3.7.
	streams = true
	// nestedPuts: at NOSPACE a put in a branch of a nested transaction is refused, too. 3.6.8 does not look there.
	nestedPuts = true
)

const endpointKey = "MEMETCD_TEST_ETCD"

// dialer returns what connects to a real etcd: the one whose address MEMETCD_TEST_ETCD has, of any
// release, or a new one.
func dialer(t *testing.T) func(...func(*clientv3.Config)) (*clientv3.Client, error) {
	endpoint := os.Getenv(endpointKey)
	if endpoint == "" {
		return etcdtest.Start(t, localetcd.Options{}).Cluster.Client
	}
	return func(...func(*clientv3.Config)) (*clientv3.Client, error) {
		c, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop()})
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		release, err := c.Status(t.Context(), endpoint)
		require.NoError(t, err)
		streams = !strings.HasPrefix(release.Version, "3.5.") && !strings.HasPrefix(release.Version, "3.6.")
		nestedPuts = release.Version != "3.6.8"
		return c, nil
	}
}

// TestMemoryIsAsEtcd runs every script against a real etcd and against the one in memory, beginning at
// the same revision, and compares all that the client saw.
func TestMemoryIsAsEtcd(t *testing.T) {
	dial := dialer(t)
	for _, s := range scripts() {
		t.Run(s.name, func(t *testing.T) {
			truth := newRecording(t, connectReal(t, dial))
			truth.play(s.play)
			mem := playInMemory(t, truth.base, s.play)
			require.Equal(t, strings.Join(truth.seen, "\n"), strings.Join(mem.seen, "\n"))
		})
	}
}

// playInMemory plays a script in a bubble.
func playInMemory(t *testing.T, base int64, script func(*recording)) (r *recording) {
	synctest.Test(t, func(t *testing.T) {
		c := memetcd.New(memetcd.Options{Revision: base})
		link, err := c.Connect()
		require.NoError(t, err)
		r = newRecording(t, link.Client)
		r.play(script)
		closeAtRest(t, c)
	})
	return r
}

// closeAtRest closes a cluster once its clients wait for nothing that is under way: etcd's may ask for a refused watch once
// more, and leaves two goroutines behind if it is closed meanwhile.
func closeAtRest(t *testing.T, c *memetcd.Cluster) {
	synctest.Wait()
	require.NoError(t, c.Close())
}

// connectReal returns a client of an etcd without keys and alarms.
func connectReal(t testing.TB, dial func(...func(*clientv3.Config)) (*clientv3.Client, error)) *clientv3.Client {
	cli, err := dial()
	require.NoError(t, err)
	_, err = cli.Delete(t.Context(), "", clientv3.WithFromKey())
	require.NoError(t, err)
	return cli
}

// recording is what a client of one of the two sees.
type recording struct {
	t    testing.TB
	ctx  context.Context
	cli  *clientv3.Client
	base int64
	seen []string
}

func newRecording(t testing.TB, cli *clientv3.Client) *recording {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	t.Cleanup(cancel)
	resp, err := cli.Get(ctx, "head")
	require.NoError(t, err)
	return &recording{t: t, ctx: ctx, cli: cli, base: resp.Header.Revision}
}

func (r *recording) play(script func(*recording)) {
	script(r)
	for _, id := range []int64{1, 2, 3} {
		_, _ = r.cli.Revoke(r.ctx, r.lease(id))
	}
}

// lease returns the n-th lease id of this run, the same on both sides.
func (r *recording) lease(n int64) clientv3.LeaseID { return clientv3.LeaseID(r.base*100 + n) }

func (r *recording) note(what string, m proto.Message, err error) {
	if err != nil {
		r.seen = append(r.seen, fmt.Sprintf("%s: %s", what, describe(err)))
		return
	}
	m = proto.Clone(m)
	scrub(m.ProtoReflect())
	r.seen = append(r.seen, what+": "+prototext.MarshalOptions{}.Format(m))
}

// describe tells errors apart as callers can: by type, code and text.
func describe(err error) string {
	var known rpctypes.EtcdError
	if errors.As(err, &known) {
		return fmt.Sprintf("etcd %s: %s", known.Code(), known)
	}
	return fmt.Sprintf("%T %s: %s", err, status.Code(err), err)
}

// scrub drops what is the cluster's own from all headers.
func scrub(m protoreflect.Message) {
	if h, ok := m.Interface().(*pb.ResponseHeader); ok {
		h.ClusterId, h.MemberId, h.RaftTerm = 0, 0, 0
		return
	}
	if a, ok := m.Interface().(*pb.AlarmMember); ok {
		a.MemberID = 0
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsList() && f.Message() != nil:
			for i := range v.List().Len() {
				scrub(v.List().Get(i).Message())
			}
		case !f.IsList() && f.Message() != nil:
			scrub(v.Message())
		}
		return true
	})
}

// do carries out one operation.
func (r *recording) do(op clientv3.Op) {
	resp, err := r.cli.Do(r.ctx, op)
	switch {
	case err != nil:
		r.note("do", nil, err)
	case resp.Put() != nil:
		r.note("put", (*pb.PutResponse)(resp.Put()), nil)
	case resp.Get() != nil:
		r.note("get", (*pb.RangeResponse)(resp.Get()), nil)
	case resp.Del() != nil:
		r.note("delete", (*pb.DeleteRangeResponse)(resp.Del()), nil)
	default:
		r.note("txn", (*pb.TxnResponse)(resp.Txn()), nil)
	}
}

func (r *recording) puts(pairs ...string) {
	for _, pair := range pairs {
		key, value, _ := strings.Cut(pair, "=")
		r.do(clientv3.OpPut(key, value))
	}
}

func (r *recording) get(key string, opts ...clientv3.OpOption) { r.do(clientv3.OpGet(key, opts...)) }
func (r *recording) delete(key string, opts ...clientv3.OpOption) {
	r.do(clientv3.OpDelete(key, opts...))
}

func (r *recording) txn(ifs []clientv3.Cmp, then, or []clientv3.Op) {
	r.do(clientv3.OpTxn(ifs, then, or))
}

func (r *recording) compact(rev int64) {
	resp, err := r.cli.Compact(r.ctx, rev, clientv3.WithCompactPhysical())
	r.note("compact", (*pb.CompactionResponse)(resp), err)
}

func (r *recording) grant(n, ttl int64) {
	resp, err := pb.NewLeaseClient(r.cli.ActiveConnection()).LeaseGrant(r.ctx, &pb.LeaseGrantRequest{ID: int64(r.lease(n)), TTL: ttl})
	r.note("grant", resp, rpctypes.Error(err))
}

func (r *recording) revoke(n int64) {
	resp, err := r.cli.Revoke(r.ctx, r.lease(n))
	r.note("revoke", (*pb.LeaseRevokeResponse)(resp), err)
}

func (r *recording) keepAlive(n int64) {
	resp, err := r.cli.KeepAliveOnce(r.ctx, r.lease(n))
	if err == nil {
		r.seen = append(r.seen, fmt.Sprintf("keep-alive: %d for %d at %d", resp.TTL, resp.ID, resp.ResponseHeader.Revision))
		return
	}
	r.note("keep-alive", nil, err)
}

func (r *recording) timeToLive(n int64) {
	resp, err := r.cli.TimeToLive(r.ctx, r.lease(n), clientv3.WithAttachedKeys())
	require.NoError(r.t, err)
	keys := make(map[string]bool)
	for _, key := range resp.Keys {
		keys[string(key)] = true
	}
	r.seen = append(r.seen, fmt.Sprintf("time to live: %d of %d, alive %t, keys %v", resp.ID, resp.GrantedTTL, resp.TTL >= 0, keys))
}

func (r *recording) alarm(action pb.AlarmRequest_AlarmAction, alarm pb.AlarmType) {
	resp, err := pb.NewMaintenanceClient(r.cli.ActiveConnection()).Alarm(r.ctx, &pb.AlarmRequest{Action: action, Alarm: alarm, MemberID: 7})
	r.note("alarm", resp, rpctypes.Error(err))
}

// list lists in chunks, on both unless the real etcd is of a release before 3.7, which cannot.
func (r *recording) list(key string, opts ...clientv3.OpOption) {
	if !streams {
		return
	}
	chunks, err := r.cli.GetStream(r.ctx, key, opts...)
	require.NoError(r.t, err)
	for chunk := range chunks {
		r.note("chunk", chunk.RangeResponse, chunk.Err())
	}
}

// watching records a watch.
type watching struct {
	*recording
	name   string
	cancel context.CancelFunc
	watchC clientv3.WatchChan
	watch  clientv3.Watcher
	ctx    context.Context
}

func (r *recording) watch(name, key string, opts ...clientv3.OpOption) *watching {
	w := &watching{recording: r, name: name, watch: clientv3.NewWatcher(r.cli)}
	w.ctx, w.cancel = context.WithCancel(r.ctx)
	w.watchC = w.watch.Watch(w.ctx, key, opts...)
	return w
}

// next records the next response, or that there is none for a while.
func (w *watching) next(patience time.Duration) (more bool) {
	select {
	case resp, ok := <-w.watchC:
		if !ok {
			w.seen = append(w.seen, w.name+": closed")
			return false
		}
		w.seen = append(w.seen, fmt.Sprintf("%s: at %d created %t canceled %t compacted %d progress %t", w.name,
			resp.Header.GetRevision(), resp.Created, resp.Canceled, resp.CompactRevision, resp.IsProgressNotify()))
		if resp.Err() != nil {
			w.note(w.name, nil, resp.Err())
		}
		for _, ev := range resp.Events {
			w.note(w.name, ev, nil)
		}
		return true
	case <-time.After(patience):
		return false
	}
}

// expect records the next n responses.
func (w *watching) expect(n int) {
	for range n {
		if !w.next(20 * time.Second) {
			w.seen = append(w.seen, w.name+": no more")
			return
		}
	}
}

// silent records whether nothing comes.
func (w *watching) silent() {
	if !w.next(150 * time.Millisecond) {
		w.seen = append(w.seen, w.name+": silent")
	}
}

// progress asks until there is an answer, which there is at once where the watch has
// caught up.
func (w *watching) progress() {
	for range 5 {
		<-time.After(200 * time.Millisecond) // a watcher that starts in the past waits for 100 ms
		require.NoError(w.t, w.watch.RequestProgress(w.ctx))
		if w.next(10 * time.Second) {
			return
		}
	}
	w.seen = append(w.seen, w.name+": no progress")
}

// rest records all events that the watch has shown, in a bubble, and closes it.
func (w *watching) rest() {
	for shown := true; shown; {
		synctest.Wait()
		select {
		case resp, ok := <-w.watchC:
			shown = ok
			for _, ev := range resp.Events {
				w.note(w.name, ev, nil)
			}
			if resp.Err() != nil {
				w.note(w.name, nil, resp.Err())
			}
		default:
			shown = false
		}
	}
	w.close()
}

func (w *watching) close() {
	w.cancel()
	require.NoError(w.t, w.watch.Close())
	w.next(time.Second)
}
