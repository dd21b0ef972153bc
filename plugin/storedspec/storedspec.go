// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package storedspec makes the one edit that NRI cannot express: it changes the spec that containerd stores for a
// container, from which the container's task and every later exec get their process settings.
//
// It uses containerd's APIs for containers and tasks without holding up the runtime: each call has a budget, and a
// breaker stops the calls while containerd fails. If a node has several containerds, such as k3s's in addition to
// Docker's, it finds the one that has the container. Package spec defines what changes in a spec, and package policy
// which containers get it.
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
	DefaultNamespace = "k8s.io"    // the namespace of containerd's CRI
	DefaultBudget    = time.Minute // longer than runtimes wait for a plugin, so that the caller's deadline applies
)

// Errors that callers recognize with errors.Is.
var (
	// ErrNoSocket means that there is no containerd, or that its socket is not mounted.
	ErrNoSocket = errors.New("no containerd socket")
	// ErrNotFound means that containerd has no such container.
	ErrNotFound = errors.New("containerd has no such container")
	// ErrStarted means that the container's task was created before its spec was changed, so the change does not apply to
	// the container's first process.
	ErrStarted = errors.New("the container's task was created before its stored spec was changed")
	// ErrContended means that another program kept changing the spec.
	ErrContended = errors.New("another program keeps changing the stored spec")
)

// Options select the containerd that a Client uses, and bound its time. The zero Options fit a usual node.
type Options struct {
	// Address is containerd's socket: /path or unix:///path. If it is empty, each call looks in the usual places.
	Address string
	// Root is the directory below which the usual places are; empty means "/".
	Root string
	// Namespace is the containers' namespace in containerd; empty means DefaultNamespace.
	Namespace string
	// Budget bounds each call, including retries; 0 means DefaultBudget. If the caller's context has a deadline, a quarter
	// of the time until then is reserved for the caller.
	Budget time.Duration
	// OnChange, if set, is called when the Client stops calling containerd because it failed three times in a row, and
	// when containerd responds again. It must not call the Client.
	OnChange func(open bool)
}

// Client edits the specs that containerd stores. It connects at its first call. It is safe for concurrent use. Clients
// are independent: failures of one do not stop another.
type Client struct {
	Options
	connections connections
	breaker     *breaker.Breaker[result]
	keeper      atomic.Pointer[string] // the socket of the containerd that had the last container found
}

// New returns a Client. It does not connect yet.
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

// Found is what a container's stored spec grants, which the container's task will have.
type Found struct {
	Memlock spec.Rlimit // before the write; zero if the spec sets none
	IPCLock bool        // CAP_IPC_LOCK is in all five sets
	Wrote   bool        // the spec lacked something, and was written
}

// Confirm reads what a container's stored spec grants, and adds the memlock and the capability that it lacks of the
// grant. It adds no devices. Repeating the call has no effect. The container's task must not have been created yet,
// since nothing else writes the spec until then. Success means that the task did not exist when the spec was changed,
// and that containerd returned the spec as it was written.
//
// The error is ErrNoSocket; ErrNotFound; ErrStarted, if the spec was changed too late; breaker.ErrOpen; that the spec
// is not an OCI runtime spec or cannot be edited; or containerd's error, such as a timeout. After an error, the spec is
// unchanged, unless containerd wrote it and its response was lost.
func (c *Client) Confirm(ctx context.Context, container string, grant spec.Grant) (Found, error) {
	done, err := c.call(ctx, container, edit{container, grant, time.Now()}.confirm)
	return done.found, err
}

// ApplyRunning adds the grant to a container's stored spec while other programs may write the spec too, as CRI does
// when it resizes a container. It reports whether the spec changed.
//
// The containers API has no conditional write: the last write wins. ApplyRunning therefore rereads the spec right
// before the write, and starts over if it changed. It rereads the spec after the write as well: if another program
// overwrote the edit, it edits that version. Only another program's write between the last read and the write, a
// fraction of a millisecond, would be lost unnoticed. ErrContended means that three rounds were not enough; the spec is
// then as the other program wrote it.
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

// Failing reports whether containerd failed three times in a row, and has not responded since.
func (c *Client) Failing() bool { return c.breaker.Failing() }
