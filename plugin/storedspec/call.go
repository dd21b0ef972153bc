// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package storedspec

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/rdma-spec/rdma-spec/plugin/breaker"
	"github.com/rdma-spec/rdma-spec/plugin/localrpc"
)

// work asks one containerd about a container, or changes it there. It can be started again, with its result so far.
type work func(ctx context.Context, api grpc.ClientConnInterface, result *result) error

// result is the result of work.
type result struct {
	text  []byte // the spec
	found Found  // Wrote: a write was sent, even if its answer was lost
}

// apiError is a fault of containerd, or of the way to it.
type apiError struct{ error }

// call does work about a container within the budget, unless the breaker is open.
func (c *Client) call(ctx context.Context, container string, do work) (result, error) {
	budget := c.Budget
	if deadline, ok := ctx.Deadline(); ok {
		budget = min(budget, time.Until(deadline)*3/4)
	}
	done, err := c.breaker.Do(ctx, func() (result, error) {
		ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(ctx, "containerd-namespace", c.Namespace), budget)
		defer cancel()
		return c.everywhere(ctx, do, budget)
	})
	if errors.Is(err, breaker.ErrOpen) {
		err = fmt.Errorf("containerd is %w; retrying within %s", err, breaker.OpenFor)
	}
	if err != nil {
		return result{}, fmt.Errorf("stored spec of container %.13s: %w", container, err)
	}
	return done, nil
}

// everywhere does work at all containerds of the node at once: only one of them keeps the container, and its answer
// counts. So one that hangs, such as Docker's beside k3s's, does not delay the answer of another.
func (c *Client) everywhere(ctx context.Context, do work, budget time.Duration) (result, error) {
	sockets, err := findSockets(c.Address, c.Root)
	if err != nil {
		return result{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		result
		socket string
		err    error
	}
	answers := make(chan answer, len(sockets))
	for _, socket := range sockets {
		go func() {
			done, err := c.at(ctx, socket, do)
			answers <- answer{done, socket, err}
		}()
	}
	var failed error
	gone := false // the containerd that has kept containers before does not keep this one
	for range sockets {
		a := <-answers
		switch keeper := c.keeper.Load(); {
		case status.Code(a.err) == codes.NotFound:
			gone = gone || keeper != nil && *keeper == a.socket
		case !atFault(a.err):
			c.keeper.Store(&a.socket)
			return a.result, explain(a.err, a.socket, budget)
		default:
			failed = explain(a.err, a.socket, budget)
		}
	}
	if failed != nil && !gone {
		return result{}, failed
	}
	return result{}, fmt.Errorf("%w at %s", ErrNotFound, strings.Join(sockets, ", "))
}

// at does work at one socket, and once more if that cannot be reached: the connection may be one to a containerd that
// has gone.
func (c *Client) at(ctx context.Context, socket string, do work) (done result, err error) {
	once := func() error {
		conn, err := c.connections.get(socket)
		if err != nil {
			return err
		}
		err = do(ctx, conn, &done)
		if atFault(err) {
			c.connections.replace(socket, conn, c.Budget)
		}
		return err
	}
	err = once()
	if status.Code(err) == codes.Unavailable && ctx.Err() == nil {
		err = once()
	}
	return done, err
}

// atFault reports whether an error of work is a fault of containerd or of the way to it: no answer in time, nobody
// there, or an answer that makes no sense. What an answer says about one container is not, and neither is what its spec
// says.
func atFault(err error) bool {
	s, fromAPI := status.FromError(err)
	if !fromAPI {
		return false
	}
	switch s.Code() {
	case codes.OK, codes.NotFound, codes.InvalidArgument, codes.FailedPrecondition, codes.AlreadyExists,
		codes.ResourceExhausted:
		return false
	}
	return true
}

// explain says what went wrong in the words of an administrator of the node.
func explain(err error, socket string, budget time.Duration) error {
	s, fromAPI := status.FromError(err)
	if err == nil || !fromAPI {
		return err
	}
	switch s.Code() {
	case codes.DeadlineExceeded:
		err = fmt.Errorf("containerd at %s did not respond within %s", socket, budget.Round(time.Millisecond))
	case codes.Unavailable:
		err = fmt.Errorf("containerd at %s cannot be reached: %s", socket, localrpc.Reason(err))
	default:
		err = fmt.Errorf("containerd at %s: %s", socket, s.Message())
	}
	if atFault(s.Err()) {
		return &apiError{err}
	}
	return err
}
