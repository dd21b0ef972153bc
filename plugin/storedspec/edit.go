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

// specType is the type URL of the OCI runtime specs that containerd stores as JSON (containerd, client.init and
// typeurl.Register).
const specType = "types.containerd.io/opencontainers/runtime-spec/1/Spec"

// usualDuration is how long an edit takes at most if nothing is wrong. The runtime may have created the container's
// task before a slower edit.
const usualDuration = 50 * time.Millisecond

// runningRounds is how often the spec of a running container is edited again because another program wrote it.
const runningRounds = 3

// edit is one grant for one container's stored spec.
type edit struct {
	container string
	grant     spec.Grant
	began     time.Time
}

// confirm reads the spec, edits it, and writes it if it changed. If this took long, confirm checks that the container
// has no task yet, because the runtime may have continued without waiting.
func (e edit) confirm(ctx context.Context, api grpc.ClientConnInterface, earlier result) (result, error) {
	done := earlier
	text, err := read(ctx, api, e.container)
	if err != nil {
		return done, err
	}
	confirmed, err := e.grant.Confirm(text, spec.AllSets)
	if err != nil {
		return done, err
	}
	done.found.IPCLock = confirmed.IPCLock
	if !earlier.found.Wrote { // otherwise the spec may contain what the earlier try wrote
		done.found.Memlock = confirmed.Memlock
	}
	if !bytes.Equal(text, confirmed.Text) {
		done.found.Wrote = true
		if err := e.write(ctx, api, confirmed.Text); err != nil {
			return done, err
		}
	}
	if done.found.Wrote && time.Since(e.began) >= usualDuration {
		return done, e.checkNotStarted(ctx, api)
	}
	return done, nil
}

// checkNotStarted returns ErrStarted if the container has a task.
func (e edit) checkNotStarted(ctx context.Context, api grpc.ClientConnInterface) error {
	_, err := tasks.NewTasksClient(api).Get(ctx, &tasks.GetRequest{ContainerID: e.container})
	if err == nil {
		return ErrStarted
	}
	if status.Code(err) == codes.NotFound {
		return nil
	}
	return err
}

// applyRunning edits the spec until a read shows that nothing is left to change.
func (e edit) applyRunning(ctx context.Context, api grpc.ClientConnInterface, earlier result) (result, error) {
	done := earlier
	for round := 0; ; round++ {
		text, err := read(ctx, api, e.container)
		if err != nil {
			return done, err
		}
		edited, err := e.grant.Apply(text, spec.AllSets)
		if err != nil || bytes.Equal(text, edited) {
			return done, err
		}
		if round == runningRounds {
			return done, ErrContended
		}
		now, err := read(ctx, api, e.container)
		if err != nil {
			return done, err
		}
		if !bytes.Equal(text, now) {
			continue
		}
		done.found.Wrote = true
		if err := e.write(ctx, api, edited); err != nil {
			return done, err
		}
	}
}

// write stores a spec, and checks that containerd answers with the same text.
func (e edit) write(ctx context.Context, api grpc.ClientConnInterface, text []byte) error {
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
