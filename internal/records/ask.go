package records

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

const (
	// questionTTL is how long a question stays, answered or not.
	questionTTL = 10 * time.Second
	// answerTime is how long an answer may take. Where there was a question before, the holder may owe itself a pause of
	// as long, and gets answerSlack more.
	answerTime, answerSlack = 5 * time.Second, time.Second
	// answerInterval is between two looks for it.
	answerInterval = 200 * time.Millisecond
)

// ErrReleased is the error of a question whose lock was released or removed before an answer.
var ErrReleased = errors.New("released or removed while its holder was asked")

// NoAnswer is the error of a question that the holder has not answered in time.
type NoAnswer struct {
	// Renewed is when it last renewed or took the lock, according to its clock; zero if it does not say.
	Renewed time.Time
}

func (e *NoAnswer) Error() string {
	last := "it has never said when it renewed"
	if !e.Renewed.IsZero() {
		last = fmt.Sprintf("last renewed at %s (%s ago, by its clock)", e.Renewed.UTC().Format(time.RFC3339), time.Since(e.Renewed).Round(time.Second))
	}
	return fmt.Sprintf("its process does not answer within %s; %s; a client that does not support questions never answers", answerTime, last)
}

// Ask asks the holder of a lock what it does, and returns nil once its answer is in the lock. by is user@host. The errors
// are those of lockstore.Store.ReadOne, ErrNoUUID, ErrReleased, a *NoAnswer, and those of etcd.
func (u Unlocker) Ask(ctx context.Context, name, by string) error {
	l, err := u.Store.ReadOne(ctx, name)
	switch {
	case err != nil:
		return err
	case l.UUID() == "":
		return lockstore.ErrNoUUID
	}
	asked, within, err := u.question(ctx, name, l.UUID(), by)
	if err != nil {
		return err
	}
	key := func(f protocol.Field) clientv3.Op { return clientv3.OpGet(u.Store.Layout.Key(name, f.String())) }
	for end := time.Now().Add(within); ; {
		now, err := u.Store.Get(ctx, []clientv3.Op{key(protocol.FieldUUID), key(protocol.FieldAnsweredAt)})
		switch late := time.Now().After(end); {
		case err != nil && late:
			return err
		case err != nil: // etcd may answer in time
		case len(now[0].Kvs) == 0 || now[0].Kvs[0].CreateRevision != l.Token:
			return ErrReleased
		case len(now[1].Kvs) > 0 && now[1].Kvs[0].ModRevision > asked:
			return nil
		case late:
			return &NoAnswer{cmp.Or(l.AliveAt(), l.LockedAt()).Time()}
		}
		select {
		case <-time.After(answerInterval):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// question writes one, and returns its revision, and how long its answer may take.
func (u Unlocker) question(ctx context.Context, name, uuid, by string) (revision int64, within time.Duration, err error) {
	lease, err := grant(ctx, u.Client, questionTTL, u.Config.Etcd.RequestTimeout)
	if err != nil {
		return 0, 0, err
	}
	value, err := json.Marshal(map[string]string{"by": protocol.Clip([]byte(by), MaxText), "at": u.Now().UTC().Format(time.RFC3339)})
	if err != nil {
		return 0, 0, err
	}
	sending, cancel := context.WithTimeout(ctx, u.Config.Etcd.RequestTimeout)
	defer cancel()
	put, err := u.Client.Put(sending, protocol.QuestionKey(u.Config.AskKeys(), name, uuid), string(value), clientv3.WithLease(lease), clientv3.WithPrevKV())
	if err != nil {
		u.Client.Abandon(ctx, lease)
		return 0, 0, fmt.Errorf("ask the holder: %w", err)
	}
	if within = answerTime; put.PrevKv != nil {
		within += answerSlack
	}
	return put.Header.Revision, within, nil
}
