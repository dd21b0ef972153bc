// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"sync"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/runtime/protoiface"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/rdma-spec/rdma-spec/plugin/wire"
)

// Reads specifies the fields that a plugin reads from the runtime's messages about containers. All other fields of the
// messages are left empty.
type Reads struct {
	Pod        wire.Paths // fields of api.PodSandbox
	Container  wire.Paths // fields of api.Container
	Adjustment wire.Paths // fields of api.ContainerAdjustment, which a validator receives
}

// pluginService is the service's name in NRI's API (pkg/api/api.proto).
const pluginService = "nri.pkg.api.v1alpha1.Plugin"

// serve registers NRI's plugin service with a server, for the events to which a plugin of this package can subscribe.
// The service decodes only the fields that the plugin reads from requests about containers.
func serve(server *ttrpc.Server, service api.PluginService, reads Reads) {
	about := []wire.Paths{reads.Pod.Below("pod"), reads.Container.Below("container")}
	server.RegisterService(pluginService, &ttrpc.ServiceDesc{Methods: map[string]ttrpc.Method{
		"Configure": wholeMethod(service.Configure),
		"Shutdown":  wholeMethod(service.Shutdown),
		"Synchronize": partialMethod(service.Synchronize, wire.New(&api.SynchronizeRequest{},
			reads.Pod.Below("pods"), reads.Container.Below("containers"), wire.Paths{"more": nil})),
		"CreateContainer": partialMethod(service.CreateContainer, wire.New(&api.CreateContainerRequest{}, about...)),
		"PostCreateContainer": partialMethod(service.PostCreateContainer,
			wire.New(&api.PostCreateContainerRequest{}, about...)),
		"StateChange": partialMethod(service.StateChange, // NRI before 0.12 sends PostCreateContainer as a StateChange
			wire.New(&api.StateChangeEvent{}, append(about, wire.Paths{"event": nil})...)),
		"ValidateContainerAdjustment": partialMethod(service.ValidateContainerAdjustment,
			wire.New(&api.ValidateContainerAdjustmentRequest{}, append(about, reads.Adjustment.Below("adjust"))...)),
	}})
}

// request is the type constraint for NRI's messages.
type request[T any] interface {
	*T
	proto.Message
}

// wholeMethod returns a method that decodes all fields of its requests.
func wholeMethod[T, Answer any, Request request[T]](
	answer func(context.Context, Request) (Answer, error)) ttrpc.Method {
	return func(ctx context.Context, unmarshal func(any) error) (any, error) {
		decoded := Request(new(T))
		if err := unmarshal(decoded); err != nil {
			return nil, err
		}
		return answer(ctx, decoded)
	}
}

// partialMethod returns a method that decodes only the given fields of its requests.
func partialMethod[T, Answer any, Request request[T]](
	answer func(context.Context, Request) (Answer, error), fields *wire.Fields) ttrpc.Method {
	return func(ctx context.Context, unmarshal func(any) error) (any, error) {
		decoded := Request(new(T))
		if err := decodePart(unmarshal, fields, decoded); err != nil {
			return nil, err
		}
		return answer(ctx, decoded)
	}
}

// mostBuffer is the size, in bytes, of the largest buffer that is kept for later requests. Buffers can be reused,
// because decoding copies the fields. The list of a node's containers is larger than mostBuffer, but the runtime sends
// the list only once for each registration.
const mostBuffer = 64 << 10

var buffers = sync.Pool{New: func() any { return new([]byte) }}

// decodePart decodes only the given fields of a request.
func decodePart(unmarshal func(any) error, fields *wire.Fields, decoded proto.Message) error {
	var request undecoded
	if err := unmarshal(&request); err != nil {
		return err
	}
	buffer := buffers.Get().(*[]byte)
	kept, err := fields.Keep((*buffer)[:0], request)
	if err != nil {
		return err
	}
	err = proto.Unmarshal(kept, decoded)
	if cap(kept) <= mostBuffer {
		*buffer = kept
		buffers.Put(buffer)
	}
	return err
}

// undecoded is a message without fields that stores its encoded bytes, because ttrpc passes the bytes only to a
// message.
type undecoded []byte

func (*undecoded) Reset() {}

func (u *undecoded) ProtoReflect() protoreflect.Message {
	return undecodedReflection{(*emptypb.Empty)(nil).ProtoReflect(), u}
}

type undecodedReflection struct {
	protoreflect.Message
	into *undecoded
}

func (r undecodedReflection) Interface() protoreflect.ProtoMessage { return r.into }

func (undecodedReflection) ProtoMethods() *protoiface.Methods { return takesBytes }

var takesBytes = &protoiface.Methods{
	Unmarshal: func(in protoiface.UnmarshalInput) (protoiface.UnmarshalOutput, error) {
		*in.Message.(undecodedReflection).into = in.Buf
		return protoiface.UnmarshalOutput{Flags: protoiface.UnmarshalInitialized}, nil
	},
}
