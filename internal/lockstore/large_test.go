package lockstore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

func TestS6_PagesFollowTheSizeOfValues(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		keys int64
		size int
		want int64
	}{
		"grows":                 {4, 100, 16},
		"grows up to a bound":   {surveyPage / 2, 100, surveyPage},
		"stays there":           {surveyPage, 100, surveyPage},
		"as many bytes as fit":  {4, pageBytes, 16},
		"more than fit":         {4, pageBytes + 1, 3},
		"far more than fit":     {surveyPage, 64 * pageBytes, 1},
		"one that does not fit": {1, 3 * pageBytes, 1},
		"empty values":          {4, 0, 16},
	} {
		require.Equal(t, c.want, nextPage(c.keys, c.size), name)
	}
}

// big is more than a page is to have.
var big = strings.Repeat("x", pageBytes*14/10)

// No answer has many more bytes than a page is to have: known fields come one by one, and
// after a page of big values the next has one.
func TestS6_AnswersAreBoundedByBytes(t *testing.T) {
	h := newHarness(t)
	h.expired("a")
	h.set("a", "backtrace", big)
	for i := range 20 {
		h.set("a", fmt.Sprintf("x%02d", i), big)
	}
	var limits []int64
	h.afterRead = func(r *etcdserverpb.TxnRequest, resp *etcdserverpb.TxnResponse) error {
		require.Len(t, r.Success, 1)
		if get := r.Success[0].GetRequestRange(); len(get.RangeEnd) > 0 {
			limits = append(limits, get.Limit)
			require.LessOrEqual(t, proto.Size(resp), surveyPage*len(big)+10_000)
		} else {
			require.LessOrEqual(t, proto.Size(resp), len(big)+10_000)
		}
		return nil
	}
	r, err := h.readLarge(h.ctx, h.listed("a"))
	require.NoError(t, err)
	require.EqualValues(t, 26, r.Keys)
	require.EqualValues(t, firstPage, limits[0])
	require.Equal(t, []int64{firstPage, 2}, limits[:2], "of the first page one is big")
	require.Equal(t, slices.Repeat([]int64{1}, 10), limits[len(limits)-10:], limits)
	h.remove("a")
	require.Empty(t, h.keys())
}

// Small values made the page large, and those that follow are too big to come in time.
func TestS6_APageThatFailsIsReadKeyByKey(t *testing.T) {
	h := newHarness(t)
	h.expired("a")
	h.crowd("a/a%03d", 30)
	for i := range 10 {
		h.set("a", fmt.Sprintf("x%02d", i), big)
	}
	failed := 0
	h.afterRead = func(_ *etcdserverpb.TxnRequest, resp *etcdserverpb.TxnResponse) error {
		if proto.Size(resp) > 4*len(big) {
			failed++
			return status.Error(codes.DeadlineExceeded, "too slow")
		}
		return nil
	}
	r, err := h.readLarge(h.ctx, h.listed("a"))
	require.NoError(t, err)
	require.EqualValues(t, 45, r.Keys)
	require.Equal(t, 1, failed)

	// Where one key cannot be read, the error is returned, and no more is asked for than
	// in vain once.
	h.reads = 0
	h.afterRead = func(r *etcdserverpb.TxnRequest, _ *etcdserverpb.TxnResponse) error {
		if len(r.Success[0].GetRequestRange().RangeEnd) > 0 {
			return status.Error(codes.DeadlineExceeded, "too slow")
		}
		return nil
	}
	_, err = h.readLarge(h.ctx, h.listed("a"))
	require.ErrorContains(t, err, "too slow")
	require.Equal(t, int(protocol.FieldUUID-protocol.FieldUnknown)+2, h.reads)
}

func TestAnEndedReadIsNotRepeated(t *testing.T) {
	h := newHarness(t)
	h.expired("a")
	ctx, cancel := context.WithCancel(h.ctx)
	h.afterRead = func(r *etcdserverpb.TxnRequest, _ *etcdserverpb.TxnResponse) error {
		if len(r.Success[0].GetRequestRange().RangeEnd) == 0 {
			return nil
		}
		cancel()
		return ctx.Err()
	}
	_, err := h.readLarge(ctx, h.listed("a"))
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, 2, h.reads)
}

// Several locks are read in one transaction, whatever they are: those that take more
// requests are not read at all.
func TestS6_ReadLeavesOutWhatTakesMoreThanOneRequest(t *testing.T) {
	h := newHarness(t)
	h.expired("first", "value", "keys", "nested", "few", "last")
	h.set("value", "backtrace", strings.Repeat("x", 64<<10))
	h.crowd("keys/%03d", 100)
	h.crowd("nested/%03d/uuid", 100)
	h.crowd("few/%03d/uuid", 2)
	var locks []protocol.Lock
	want := map[string]bool{"first": false, "value": true, "keys": true, "nested": true, "few": true, "last": false}
	for _, name := range []string{"first", "value", "keys", "nested", "few", "last"} {
		locks = append(locks, h.listed(name))
	}
	records, err := h.Read(h.ctx, locks)
	require.NoError(t, err)
	require.Equal(t, 1, h.reads)
	for i, r := range records {
		require.Equal(t, want[locks[i].Name], r.Unread(), locks[i].Name)
		if r.Unread() {
			r, err = h.readLarge(h.ctx, locks[i])
			require.NoError(t, err)
		}
		require.Equal(t, locks[i].Name, r.Name)
		require.Equal(t, locks[i].Keys, r.Keys)
	}
}

// Locks each of which is nearly large would together be a large answer.
func TestS6_ReadLeavesOutWhatIsTooMuchTogether(t *testing.T) {
	h := newHarness(t)
	locks := make([]protocol.Lock, 2*maxKeys/(readLimit-1))
	for i := range locks {
		name := fmt.Sprintf("a%03d", i)
		h.expired(name)
		h.crowd(name+"/%02d", readLimit-1-int(h.listed(name).Keys))
		locks[i] = h.listed(name)
	}
	records, err := h.Read(h.ctx, locks)
	require.NoError(t, err)
	for i, r := range records {
		require.Equal(t, i >= maxKeys/(readLimit-1), r.Unread(), i)
	}
}

// The known fields of a lock that has no big value come in one request.
func TestS6_SmallFieldsOfALockWithNestedNamesComeTogether(t *testing.T) {
	h := newHarness(t)
	h.expired("a", "a/b", "a/i", "a/x")
	r, err := h.ReadAlone(h.ctx, h.listed("a"))
	require.NoError(t, err)
	require.Equal(t, 4, h.reads, "its range, its fields, and two pages")
	require.Equal(t, []int64{5}, h.deleted(r))
}

// A lock that has known fields only is deleted key by key where much is nested in it.
func TestS6_KnownFieldsTakeFewRequestsWhateverIsNested(t *testing.T) {
	h := newHarness(t)
	h.set("a", "uuid", "u", "auto_unlock_at", past, "backtrace", strings.Repeat("x", 64<<10))
	h.crowd("a/%04d/uuid", surveyPage*optionalPages+100)
	r, err := h.readLarge(h.ctx, h.listed("a"))
	require.NoError(t, err)
	require.Equal(t, int(protocol.FieldUUID-protocol.FieldUnknown)+optionalPages, h.reads)
	require.Equal(t, []int64{3}, h.deleted(r))
	require.Len(t, h.keys(), surveyPage*optionalPages+100)
}

func TestLargeIsWhatTakesSeveralRequests(t *testing.T) {
	t.Parallel()
	var b protocol.Builder
	b.Add(protocol.KV{Field: protocol.FieldUUID, Value: []byte("u"), Create: 1, Mod: 1})
	b.Add(protocol.KV{Value: make([]byte, 64<<10), Create: 1, Mod: 1})
	bigValue := b.Lock("a")
	require.True(t, Large(&bigValue))
	require.False(t, Large(&protocol.Lock{Keys: readLimit - 1}))
	require.True(t, Large(&protocol.Lock{Keys: readLimit}))
}
