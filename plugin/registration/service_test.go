// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"testing"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/proto"

	"github.com/rdma-spec/rdma-spec/plugin/wire"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
)

// A method gets the fields that the program reads, and no others.
func TestDecodePart(t *testing.T) {
	sent, err := proto.Marshal(&api.CreateContainerRequest{
		Pod: &api.PodSandbox{Id: "pod"}, Container: &api.Container{Id: "container", Name: "main"},
	})
	must.Succeed(t, err)
	got := &api.CreateContainerRequest{}
	fields := wire.New(got, wire.Paths{"container.name": nil})
	must.Succeed(t, decodePart(func(to any) error { return proto.Unmarshal(sent, to.(proto.Message)) }, fields, got))
	if want := (&api.CreateContainerRequest{Container: &api.Container{Name: "main"}}); !proto.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
