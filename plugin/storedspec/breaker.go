// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package storedspec

import (
	"context"
	"errors"
	"fmt"
	"time"

	containers "github.com/containerd/containerd/api/services/containers/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/rdma-spec/rdma-spec/plugin/breaker"
	"github.com/rdma-spec/rdma-spec/plugin/rpcerror"
)

// work asks containerd something. It may be done anew.
type work func(context.Context, containers.ContainersClient) error

// errGivenUp is a call that the caller gave up: it says nothing of how containerd does.
var errGivenUp = fmt.Errorf("given up by the caller: %w", context.Canceled)

func newBreaker(o Options) *breaker.Breaker[struct{}] {
	return breaker.New[struct{}](breaker.Options{

		Failed:   containerdFailed,
		Excluded: func(err error) bool { return errors.Is(err, errGivenUp) },
		OnChange: o.OnChange,
	})
}

// within does work about a container within the budget, unless containerd is to be left alone, and says in the user's words how
// it went wrong.
func (c *Client) within(ctx context.Context, container string, do work) error {
	caller := ctx
	budget := c.Budget
	if deadline, ok := ctx.Deadline(); ok {
		budget = min(budget, time.Until(deadline)*3/4)
	}
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(ctx, "containerd-namespace", c.Namespace), budget)
	defer cancel()
	_, err := c.breaker.Do(func() (struct{}, error) {
		err := c.do(ctx, do)
		if err != nil && errors.Is(caller.Err(), context.Canceled) {
			err = errGivenUp
		}
		return struct{}{}, err
	})
	if err != nil {
		return fmt.Errorf("stored spec of container %.13s: %w", container, c.explain(err, budget))
	}
	return nil
}

// do does work, and once more if containerd could not be reached: the connection may be one to a containerd that has gone.
func (c *Client) do(ctx context.Context, do work) error {
	err := c.once(ctx, do)
	if status.Code(err) == codes.Unavailable && ctx.Err() == nil {
		err = c.once(ctx, do)
	}
	return err
}

func (c *Client) once(ctx context.Context, do work) error {
	l, err := c.links.take()
	if err != nil {
		return err
	}
	err = do(ctx, containers.NewContainersClient(l))
	c.links.give(l, containerdFailed(err))
	return err
}

// containerdFailed says whether an error is a fault of containerd or of the way to it: no answer in time, nobody there, or an
// answer that makes no sense. An answer about one container is none.
func containerdFailed(err error) bool {
	var content *contentError
	if err == nil || errors.As(err, &content) || errors.Is(err, ErrContended) {
		return false
	}
	switch status.Code(err) {
	case codes.NotFound, codes.InvalidArgument, codes.FailedPrecondition, codes.AlreadyExists, codes.ResourceExhausted:
		return false
	}
	return true
}

func (c *Client) explain(err error, budget time.Duration) error {
	switch {
	case errors.Is(err, breaker.ErrOpen):
		return fmt.Errorf("%w: its API failed %d times in a row, and is tried again at most %s later", ErrResting, breaker.Failures, breaker.OpenFor)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("containerd did not answer within %s", budget.Round(time.Millisecond))
	}
	s, ok := status.FromError(err)
	if !ok {
		return err
	}
	switch s.Code() {
	case codes.NotFound:
		return ErrNotFound
	case codes.DeadlineExceeded:
		return fmt.Errorf("containerd did not answer within %s", budget.Round(time.Millisecond))
	case codes.Unavailable:
		return fmt.Errorf("containerd cannot be reached: %s", rpcerror.Reason(err))
	default:
		return fmt.Errorf("containerd: %s", s.Message())
	}
}
