// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package storedspec

import (
	"context"
	"errors"
	"strings"
	"testing"

	containers "github.com/containerd/containerd/api/services/containers/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/rdma-spec/rdma-spec/plugin/breaker"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec/storedspectest"
)

// What is wrong with one container says nothing of containerd: it must not cost the others.
func TestApplyFaultsOfOneContainer(t *testing.T) {
	server := storedspectest.NewServer(t)
	server.Put("k8s.io", "sound", storedspectest.TrainingSpec())
	server.Put("moby", "elsewhere", storedspectest.TrainingSpec())
	server.Put("k8s.io", "no-json", []byte(`{"process":`))
	server.Put("k8s.io", "no-object", []byte(`{"process":{"capabilities":[]}}`))
	server.Put("k8s.io", "empty", nil)
	server.PutContainer("k8s.io", &containers.Container{ID: "no-spec"})
	server.PutContainer("k8s.io", &containers.Container{ID: "foreign",
		Spec: &anypb.Any{TypeUrl: "types.example/vm", Value: []byte(`{}`)}})
	client := newClient(t, Options{Address: server.Socket})
	tests := []struct {
		id, want string
		is       error
	}{
		{"nobody", "stored spec of container nobody: containerd keeps no such container", ErrNotFound},
		{"elsewhere", "no such container", ErrNotFound},
		{"no-json", "stored spec of container no-json: the spec is not JSON: it ends in the middle", nil},
		{"no-object", "process.capabilities is not a JSON object", nil},
		{"empty", "the spec is empty", nil},
		{"no-spec", `it is of type "", not an OCI runtime spec`, nil},
		{"foreign", `it is of type "types.example/vm", not an OCI runtime spec`, nil},
	}
	for _, test := range tests {
		before := server.Container("k8s.io", test.id)
		found, err := client.Confirm(t.Context(), test.id, ipcLock)
		if found.Wrote || err == nil || !strings.Contains(err.Error(), test.want) || test.is != nil && !errors.Is(err, test.is) {
			t.Errorf("%s: Confirm gives %v, %v", test.id, found, err)
		}
		if server.Updates(test.id) != 0 || !proto.Equal(before, server.Container("k8s.io", test.id)) {
			t.Errorf("%s was written", test.id)
		}
	}
	if found, err := client.Confirm(t.Context(), "sound", ipcLock); !found.Wrote || err != nil {
		t.Errorf("the sound container: Confirm gives %v, %v", found, err)
	}
}

// Containers that come and go are not a sign of a sick containerd, however many there are in a row.
func TestApplyToManyThatAreGone(t *testing.T) {
	client := newClient(t, Options{Address: storedspectest.NewServer(t).Socket})
	for range 2 * breaker.Failures {
		if _, err := client.Confirm(t.Context(), "nobody", ipcLock); !errors.Is(err, ErrNotFound) {
			t.Errorf("Confirm gives %v", err)
		}
	}
}

// mixedUp is a containerd that answers with another container than it was asked for.
type mixedUp struct{ grpc.ClientConnInterface }

func (mixedUp) Invoke(_ context.Context, _ string, _, reply any, _ ...grpc.CallOption) error {
	reply.(*containers.GetContainerResponse).Container = &containers.Container{
		ID: "other", Spec: &anypb.Any{TypeUrl: storedspectest.SpecType, Value: storedspectest.TrainingSpec()},
	}
	return nil
}

func TestApplyNeverTakesAnothersSpec(t *testing.T) {
	e := edit{container: "train", grant: ipcLock}
	for name, apply := range map[string]work{"confirm": e.confirm, "applyRunning": e.applyRunning} {
		var done result
		if err := apply(t.Context(), mixedUp{}, &done); err == nil || !atFault(err) || done.found.Wrote {
			t.Errorf("%s gives %v, wrote: %v", name, err, done.found.Wrote)
		}
	}
}
