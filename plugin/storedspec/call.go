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

// work is a function that reads or changes a container in one containerd. In a second attempt, earlier is the result of
// the first attempt.
type work func(ctx context.Context, api grpc.ClientConnInterface, earlier result) (result, error)

// result is the result of a work function. If the function fails, found.Wrote still reports whether a write was sent.
type result struct {
	text  []byte // the spec
	found Found
}

// apiError is an error of containerd, or of the connection to containerd.
type apiError struct{ error }

// call runs a work function for a container within the time budget. If the breaker is open, call returns an error.
func (c *Client) call(ctx context.Context, container string, do work) (result, error) {
	budget := c.Budget
	if deadline, ok := ctx.Deadline(); ok {
		budget = min(budget, time.Until(deadline)*3/4)
	}
	done, err := c.breaker.Do(ctx, func() (result, error) {
		ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(ctx, "containerd-namespace", c.Namespace), budget)
		defer cancel()
		return c.doEverywhere(ctx, do, budget)
	})
	if errors.Is(err, breaker.ErrOpen) {
		err = fmt.Errorf("containerd: %w; retrying within %s", err, breaker.OpenFor)
	}
	if err != nil {
		return result{}, fmt.Errorf("stored spec of container %.13s: %w", container, err)
	}
	return done, nil
}

// doEverywhere runs a work function on all containerds of the node in parallel, and returns the result from the
// containerd that has the container. Another containerd that hangs, such as Docker's on a node with k3s, does not delay
// the result.
func (c *Client) doEverywhere(ctx context.Context, do work, budget time.Duration) (result, error) {
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
			done, err := c.doAt(ctx, socket, do)
			answers <- answer{done, socket, err}
		}()
	}
	var failed error
	gone := false // the containerd that had earlier containers does not have this container
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

// doAt runs a work function on one socket. If containerd cannot be reached, doAt tries a second time, because the
// connection might belong to a containerd that has exited.
func (c *Client) doAt(ctx context.Context, socket string, do work) (result, error) {
	done, err := c.try(ctx, socket, do, result{})
	if status.Code(err) == codes.Unavailable && ctx.Err() == nil {
		return c.try(ctx, socket, do, done)
	}
	return done, err
}

// try runs a work function once, on one socket. If containerd or the connection fails, try replaces the connection.
func (c *Client) try(ctx context.Context, socket string, do work, earlier result) (result, error) {
	conn, err := c.connections.get(socket)
	if err != nil {
		return earlier, err
	}
	done, err := do(ctx, conn, earlier)
	if atFault(err) {
		c.connections.replace(socket, conn, c.Budget)
	}
	return done, err
}

// atFault reports whether containerd or the connection caused an error: containerd did not respond in time, could not
// be reached, or sent an invalid response. For an error about one container or its spec, atFault returns false.
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

// explain rewrites an error for an administrator of the node.
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
