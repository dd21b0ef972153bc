// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package podresources

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/rdma-spec/rdma-spec/test/testing/expect"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
)

// verbatim lets a server answer with bytes.
type verbatim struct{}

func (verbatim) Name() string                         { return "proto" }
func (verbatim) Unmarshal(mem.BufferSlice, any) error { return nil }
func (verbatim) Marshal(answer any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(answer.([]byte))}, nil
}

// ask asks a kubelet that answers every question with the same bytes.
func ask(t *testing.T, text []byte, getless bool) (answer, error) {
	t.Helper()
	listener := bufconn.Listen(1 << 16)
	server := grpc.NewServer(grpc.ForceServerCodecV2(verbatim{}),
		grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
			return stream.SendMsg(text)
		}))
	ended := make(chan error)
	go func() { ended <- server.Serve(listener) }()
	defer func() {
		server.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	c := New(Options{})
	c.dial = listener.DialContext
	c.getless.Store(getless)
	return c.lookUp(context.Background(), "ml", "trainer")
}

// TestAnswers: what the kubelet answers is read, or refused, whether it is asked for the pod or for all.
func TestAnswers(t *testing.T) {
	encoded := func(pods ...*podresources.PodResources) []byte {
		text, err := proto.Marshal(&podresources.ListPodResourcesResponse{PodResources: pods})
		must.Succeed(t, err)
		return text
	}
	trainer := pod("ml", "trainer", map[string][]string{"main": {"rdma/a"}})
	good := encoded(trainer) // a Get's answer has the same form
	// The same container twice, with an entry that allots nothing.
	double := pod("ml", "trainer", map[string][]string{"main": {"rdma/b", "rdma/a"}})
	double.Containers = append(double.Containers, pod("", "", map[string][]string{"main": {"rdma/a"}}).Containers...)
	double.Containers[0].Devices = append(double.Containers[0].Devices,
		&podresources.ContainerDevices{ResourceName: "rdma/none"})
	// A message with fields that a later kubelet might add, before and after: a number, and bytes.
	later := slices.Concat([]byte{0xf8, 0x07, 0x01}, good, []byte{0xfa, 0x07, 0x03, 1, 2, 3})
	const unknown, malformed = "the kubelet does not know pod ml/trainer",
		"the call to the kubelet failed: grpc: failed to unmarshal the received message"

	for name, tt := range map[string]struct {
		text  []byte
		want  answer
		fails string
	}{
		"one pod":      {text: good, want: answer{"main": {devices: map[string][]string{"rdma/a": {"0"}}}}},
		"later fields": {text: later, want: answer{"main": {devices: map[string][]string{"rdma/a": {"0"}}}}},
		"twice": {text: encoded(double), want: answer{"main": {devices: map[string][]string{
			"rdma/a": {"0", "0"}, "rdma/b": {"0"}}}}},
		"nothing":         {text: nil, fails: unknown},
		"another pod":     {text: encoded(pod("ml", "x", nil)), fails: unknown},
		"another place":   {text: encoded(pod("x", "trainer", nil)), fails: unknown},
		"cut short":       {text: good[:len(good)-1], fails: malformed},
		"a name no UTF-8": {text: []byte{0x0a, 0x03, 0x0a, 0x01, 0xff}, fails: malformed},
		"no message":      {text: []byte("HTTP/1.1 400 Bad Request"), fails: malformed},
	} {
		for how, getless := range map[string]bool{"Get": false, "List": true} {
			t.Run(name+"/"+how, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					got, err := ask(t, tt.text, getless)
					if tt.fails != "" {
						if err == nil || !strings.HasPrefix(err.Error(), tt.fails) {
							t.Errorf("got %v, %v; want the error %q", got, err, tt.fails)
						}
						return
					}
					must.Succeed(t, err)
					expect.Equal(t, "answer", tt.want, got, cmp.AllowUnexported(held{}))
				})
			})
		}
	}
}
