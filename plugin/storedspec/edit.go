// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package storedspec

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	containers "github.com/containerd/containerd/api/services/containers/v1"
	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/rdma-spec/rdma-spec/spec"
)

// specType is the type URL under which containerd keeps OCI runtime specs, as JSON (containerd, client.init and
// typeurl.Register).
const specType = "types.containerd.io/opencontainers/runtime-spec/1/Spec"

// usual is how long an edit takes at most where nothing is wrong. One that took longer may have come after the
// container's task.
const usual = 50 * time.Millisecond

// runningRounds is how often the spec of a running container is edited again because somebody else wrote it meanwhile.
const runningRounds = 3

// edit is one grant for one container's stored spec.
type edit struct {
	container string
	grant     spec.Grant
	began     time.Time
}

// confirm reads the spec, edits it, and writes it if that changed it. A write that took long is not trusted before a
// look at the task: the runtime may have gone on without this answer.
func (e edit) confirm(ctx context.Context, api grpc.ClientConnInterface, done *result) error {
	text, err := read(ctx, api, e.container)
	if err != nil {
		return err
	}
	confirmed, err := e.grant.Confirm(text, spec.AllSets)
	if err != nil {
		return err
	}
	if !done.found.Wrote { // else it was read before a write whose answer was lost
		done.found.Memlock = confirmed.Memlock
	}
	if !bytes.Equal(text, confirmed.Text) {
		if err := e.write(ctx, api, confirmed.Text, done); err != nil {
			return err
		}
	}
	done.found.IPCLock = confirmed.IPCLock
	if !done.found.Wrote || time.Since(e.began) < usual {
		return nil
	}
	_, err = tasks.NewTasksClient(api).Get(ctx, &tasks.GetRequest{ContainerID: e.container})
	if err == nil {
		return ErrStarted
	}
	if status.Code(err) == codes.NotFound {
		return nil
	}
	return err
}

// applyRunning goes on until a read shows that nothing is left to change.
func (e edit) applyRunning(ctx context.Context, api grpc.ClientConnInterface, done *result) error {
	for round := 0; ; round++ {
		text, err := read(ctx, api, e.container)
		if err != nil {
			return err
		}
		edited, err := e.grant.Apply(text, spec.AllSets)
		if err != nil || bytes.Equal(text, edited) {
			return err
		}
		if round == runningRounds {
			return ErrContended
		}
		now, err := read(ctx, api, e.container)
		if err != nil {
			return err
		}
		if !bytes.Equal(text, now) {
			continue
		}
		if err := e.write(ctx, api, edited, done); err != nil {
			return err
		}
	}
}

// write stores a spec. containerd answers with what it has stored.
func (e edit) write(ctx context.Context, api grpc.ClientConnInterface, text []byte, done *result) error {
	done.found.Wrote = true
	stored, err := containers.NewContainersClient(api).Update(ctx, &containers.UpdateContainerRequest{
		Container:  &containers.Container{ID: e.container, Spec: &anypb.Any{TypeUrl: specType, Value: text}},
		UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"spec"}},
	})
	if err == nil && !bytes.Equal(stored.GetContainer().GetSpec().GetValue(), text) {
		return errors.New("containerd stored a spec other than the one that was written")
	}
	return err
}

// read returns the JSON text of a container's stored spec.
func read(ctx context.Context, api grpc.ClientConnInterface, container string) ([]byte, error) {
	response, err := containers.NewContainersClient(api).Get(ctx, &containers.GetContainerRequest{ID: container})
	if err != nil {
		return nil, err
	}
	got := response.GetContainer()
	if got.GetID() != container {
		return nil, status.Errorf(codes.Internal, "containerd responded with a different container, %q", got.GetID())
	}
	if kind := got.GetSpec().GetTypeUrl(); kind != specType {
		return nil, fmt.Errorf("its type is %q, not an OCI runtime spec (%s): not changed", kind, specType)
	}
	return got.GetSpec().GetValue(), nil
}
