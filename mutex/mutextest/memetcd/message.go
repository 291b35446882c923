package memetcd

import (
	"reflect"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
)

// Message is a request or an answer of etcd's API. Until etcd 3.6 those are of gogo/protobuf, which
// implement no more than this.
type Message = protoadapt.MessageV1

// The code that etcd's releases generate names these differently, or not at all.
const (
	methodRangeStream = "/etcdserverpb.KV/RangeStream" // since 3.7
	methodKeepAlive   = "/etcdserverpb.Lease/LeaseKeepAlive"
	methodWatch       = "/etcdserverpb.Watch/Watch"
)

func clone(m Message) Message {
	return protoadapt.MessageV1Of(proto.Clone(protoadapt.MessageV2Of(m)))
}

// merge adds the answer to that which a caller waits for. The chunk of a stream of ranges is
// wrapped there, in a type that only the caller's etcd has.
func merge(reply, answer Message) {
	if wrapped := reflect.TypeOf(reply) != reflect.TypeOf(answer); wrapped {
		reflect.ValueOf(reply).Elem().FieldByName("RangeResponse").Set(reflect.ValueOf(clone(answer)))
		return
	}
	proto.Merge(protoadapt.MessageV2Of(reply), protoadapt.MessageV2Of(answer))
}

func size(m Message) int {
	if own, gogo := m.(interface{ Size() int }); gogo {
		return own.Size()
	}
	return proto.Size(protoadapt.MessageV2Of(m))
}
