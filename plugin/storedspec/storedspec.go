// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package storedspec makes the one edit that NRI cannot express: it changes the spec that containerd keeps of a
// container, from which the container's task and every later exec take their process.
//
// It knows containerd's APIs for containers and tasks, and how to ask them without holding up the runtime: each call
// has a budget, and while containerd fails a breaker keeps calls from being made at all. Where a node has several
// containerds, such as k3s's beside Docker's, it finds the one that keeps the container. Package spec knows what
// changes in a spec, and package policy who may have it.
package storedspec

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/rdma-spec/rdma-spec/plugin/breaker"
	"github.com/rdma-spec/rdma-spec/plugin/localrpc"
	"github.com/rdma-spec/rdma-spec/spec"
)

// Defaults of Options.
const (
	DefaultNamespace = "k8s.io"    // where containerd's CRI keeps its containers
	DefaultBudget    = time.Minute // longer than runtimes wait for a plugin: the caller's deadline counts
)

// Errors that callers recognise, by errors.Is.
var (
	// ErrNoSocket means that there is no containerd to ask, or that its socket is not mounted.
	ErrNoSocket = errors.New("no containerd socket")
	// ErrNotFound means that containerd has no such container.
	ErrNotFound = errors.New("containerd has no such container")
	// ErrStarted means that the container's task was created before its spec was changed: its first process is as the spec
	// was.
	ErrStarted = errors.New("the container's task was created before its stored spec was changed")
	// ErrContended means that somebody else kept changing the spec.
	ErrContended = errors.New("another program keeps changing the stored spec")
)

// Options say which containerd a Client edits, and how long it may take. The zero Options are those of a usual node.
type Options struct {
	// Address is containerd's socket, /path or unix:///path; empty: every call looks in the usual places.
	Address string
	// Root is the directory below which the usual places are; empty: "/".
	Root string
	// Namespace is containerd's namespace of the containers; empty: DefaultNamespace.
	Namespace string
	// Budget bounds each call, all tries together; 0: DefaultBudget. Where the caller's context has a deadline, a quarter
	// of the time up to it is kept for the caller.
	Budget time.Duration
	// OnChange, if given, is called when containerd is no longer asked because it failed three times in a row, and when it
	// has answered again. It must not call the Client.
	OnChange func(open bool)
}

// Client edits the specs that containerd keeps. It connects when it is first used. It is safe for concurrent use.
// Clients share nothing: failures that one sees do not keep another from asking.
type Client struct {
	Options
	connections connections
	breaker     *breaker.Breaker[result]
	keeper      atomic.Pointer[string] // the socket of the containerd that kept the last container that was found
}

// New makes a Client. It touches no socket.
func New(o Options) *Client {
	o.Root = cmp.Or(o.Root, "/")
	o.Namespace = cmp.Or(o.Namespace, DefaultNamespace)
	o.Budget = cmp.Or(o.Budget, DefaultBudget)
	return &Client{
		Options:     o,
		connections: connections{dial: localrpc.Dial, bySocket: map[string]*grpc.ClientConn{}},
		breaker: breaker.New[result](breaker.Options{
			Failed: func(err error) bool { return errors.As(err, new(*apiError)) }, OnChange: o.OnChange,
		}),
	}
}

// Close closes the connections; calls in flight fail. A Client that is used afterwards connects again.
func (c *Client) Close() { c.connections.close() }

// Found is what a container's stored spec gives it, which its task will have.
type Found struct {
	Memlock spec.Rlimit // before anything was written; zero where the spec sets none
	IPCLock bool        // CAP_IPC_LOCK is in all five sets
	Wrote   bool        // the spec lacked something, and was written
}

// Confirm reads what a container's stored spec gives it, and adds the memlock and the capability that it lacks of the
// grant; it adds no device. Confirming twice equals confirming once. The container's task must not have been created:
// nobody else writes its spec then. Success means that it had not been when the spec was changed, and that containerd
// has answered with the spec as it was written.
//
// Errors: ErrNoSocket; ErrNotFound; ErrStarted, where the spec was changed too late; breaker.ErrOpen; a spec of another
// kind than the OCI runtime's, or one that cannot be edited; and containerd's own, such as no answer within the budget.
// After an error the spec is as it was, unless containerd carried out the write and its answer was lost.
func (c *Client) Confirm(ctx context.Context, container string, grant spec.Grant) (Found, error) {
	done, err := c.call(ctx, container, edit{container, grant, time.Now()}.confirm)
	return done.found, err
}

// ApplyRunning makes the stored spec of a container hold what the grant says where somebody else may write it as well,
// as CRI does when a container is resized. It reports whether that changed the spec.
//
// The containers API has no conditional write: the last writer wins. So the spec is read again right before the write
// and the edit begun again if it changed meanwhile, and read again after it: if somebody wrote over the edit, the edit
// is made to what they wrote. What is left is a write of theirs that falls between the last read and the write, one
// request of a fraction of a millisecond; it would be undone, and nobody can notice. ErrContended means that three
// rounds were not enough; the spec is then as the other side left it.
func (c *Client) ApplyRunning(ctx context.Context, container string, grant spec.Grant) (changed bool, err error) {
	done, err := c.call(ctx, container, edit{container: container, grant: grant}.applyRunning)
	return done.found.Wrote, err
}

// Read returns the JSON text of a container's stored spec. Its errors are those of Confirm.
func (c *Client) Read(ctx context.Context, container string) ([]byte, error) {
	done, err := c.call(ctx, container, func(ctx context.Context, api grpc.ClientConnInterface, _ result) (result, error) {
		text, err := read(ctx, api, container)
		return result{text: text}, err
	})
	return done.text, err
}

// Failing reports whether containerd has failed three times in a row, and has not answered since.
func (c *Client) Failing() bool { return c.breaker.Failing() }
