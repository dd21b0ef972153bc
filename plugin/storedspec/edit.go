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

// specType is the type URL of the OCI runtime specs that containerd stores as JSON (see client.init and
// typeurl.Register in containerd).
const specType = "types.containerd.io/opencontainers/runtime-spec/1/Spec"

// usualDuration is the longest time that an edit takes under normal conditions. If an edit takes longer, the runtime
// might have created the container's task before the edit.
const usualDuration = 50 * time.Millisecond

// runningRounds is how many times the spec of a running container is edited if another program keeps writing the spec.
const runningRounds = 3

// edit adds a grant to a container's stored spec.
type edit struct {
	container string
	grant     spec.Grant
	began     time.Time
}

// confirm reads and edits the spec, and writes the spec if the edit changed it. If writing took longer than
// usualDuration, confirm checks that the container has no task yet, because the runtime might have continued without
// waiting.
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
	if !earlier.found.Wrote { // an earlier write can have changed the limit
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

// applyRunning edits the spec until a read shows that the spec contains the whole grant.
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

// write stores a spec, and checks that containerd returns the same text.
func (e edit) write(ctx context.Context, api grpc.ClientConnInterface, text []byte) error {
	stored, err := containers.NewContainersClient(api).Update(ctx, &containers.UpdateContainerRequest{
		Container:  &containers.Container{ID: e.container, Spec: &anypb.Any{TypeUrl: specType, Value: text}},
		UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"spec"}},
	})
	if err == nil && !bytes.Equal(stored.GetContainer().GetSpec().GetValue(), text) {
		return errors.New("the spec that containerd stored differs from the spec that was written")
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
		return nil, status.Errorf(codes.Internal, "the response contains a different container, %q", got.GetID())
	}
	if kind := got.GetSpec().GetTypeUrl(); kind != specType {
		return nil, fmt.Errorf("the spec was not changed, because its type is %q instead of %s (an OCI runtime spec)", kind,
			specType)
	}
	return got.GetSpec().GetValue(), nil
}
