// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package storedspec edits the spec that containerd stores for a container, because NRI cannot express such an edit.
// The container's task and every later exec take their process settings from the stored spec.
//
// The package uses containerd's APIs for containers and tasks. To avoid delaying the runtime, each call has a time
// budget, and a circuit breaker stops the calls while containerd is failing. If a node has several containerds, such as
// k3s's in addition to Docker's, the package finds the containerd that has the container. Package spec defines the
// changes to a spec, and package policy selects the containers.
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

// DefaultNamespace and DefaultBudget are the defaults of Options.
const (
	DefaultNamespace = "k8s.io"    // the namespace that containerd's CRI plugin uses
	DefaultBudget    = time.Minute // longer than runtimes wait for a plugin, so that the caller's deadline applies
)

// Callers can recognize the following errors with errors.Is.
var (
	// ErrNoSocket means that the node has no containerd, or that containerd's socket is not mounted.
	ErrNoSocket = errors.New("no containerd socket")
	// ErrNotFound means that no containerd of the node has the container.
	ErrNotFound = errors.New("containerd has no such container")
	// ErrStarted means that the container's task was created before the stored spec was changed. Therefore, the change
	// does not apply to the container's first process.
	ErrStarted = errors.New("the container's task was created before its stored spec was changed")
	// ErrContended means that another program kept changing the stored spec.
	ErrContended = errors.New("another program keeps changing the stored spec")
)

// Options select the containerd that a Client uses, and limit the duration of each call. The zero value suits a typical
// node.
type Options struct {
	// Address is containerd's socket, as /path or unix:///path. If Address is empty, each call searches the usual places.
	Address string
	// Root is the root directory of the node, which contains the usual places; empty means "/".
	Root string
	// Namespace is the containers' namespace in containerd; empty means DefaultNamespace.
	Namespace string
	// Budget is the time limit for each call, including retries; 0 means DefaultBudget. If the caller's context has a
	// deadline, a quarter of the time until the deadline is reserved for the caller.
	Budget time.Duration
	// OnChange, if set, is called when the Client stops calling containerd after three failures in a row, and when
	// containerd responds again. OnChange must not call the Client.
	OnChange func(open bool)
}

// Client edits the specs that containerd stores. A Client connects at its first call, and is safe for concurrent use.
// Clients are independent of each other: failures of one Client do not stop another Client.
type Client struct {
	Options
	connections connections
	breaker     *breaker.Breaker[result]
	keeper      atomic.Pointer[string] // the socket of the containerd in which a container was last found
}

// New returns a Client without connecting to containerd.
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

// Close closes the connections. Calls in flight fail. If a Client is used after Close, the Client reconnects.
func (c *Client) Close() { c.connections.close() }

// Found describes the settings that a container's task gets from the container's stored spec.
type Found struct {
	Memlock spec.Rlimit // the limit before the write; zero if the spec set no limit
	IPCLock bool        // after the write, CAP_IPC_LOCK is in all five capability sets
	Wrote   bool        // the spec lacked part of the grant, and was written
}

// Confirm reads a container's stored spec. If the spec lacks the granted memlock or capability, Confirm adds the
// missing part of the grant, but no devices. Repeating the call has no effect. Call Confirm before the container's task
// is created, because no other program writes the spec before then. If Confirm succeeds, the task did not exist when
// the spec was changed, and containerd returned the spec as it was written.
//
// The error can be ErrNoSocket, ErrNotFound, or breaker.ErrOpen. If the spec was changed too late, the error is
// ErrStarted. Confirm also returns an error if the spec is not an OCI runtime spec or cannot be edited. Other errors
// are containerd's own errors, such as a timeout. After an error other than ErrStarted, the spec is unchanged, unless
// containerd wrote the spec and a response was lost.
func (c *Client) Confirm(ctx context.Context, container string, grant spec.Grant) (Found, error) {
	done, err := c.call(ctx, container, edit{container, grant, time.Now()}.confirm)
	return done.found, err
}

// ApplyRunning adds the grant to a container's stored spec even if other programs write the spec at the same time. For
// example, CRI writes the spec when it resizes a container. ApplyRunning reports whether it changed the spec.
//
// The containers API lacks conditional writes, so the last write wins. ApplyRunning therefore rereads the spec right
// before the write, and starts over if the spec has changed. ApplyRunning also rereads the spec after the write. If
// another program overwrote the edit, ApplyRunning edits the new version. A write by another program is lost unnoticed
// only in the fraction of a millisecond between the last read and ApplyRunning's own write. If three rounds are not
// enough, the error is ErrContended, and the spec is as the other program wrote it.
func (c *Client) ApplyRunning(ctx context.Context, container string, grant spec.Grant) (changed bool, err error) {
	done, err := c.call(ctx, container, edit{container: container, grant: grant}.applyRunning)
	return done.found.Wrote, err
}

// Read returns the JSON text of a container's stored spec. Read returns the same errors as Confirm.
func (c *Client) Read(ctx context.Context, container string) ([]byte, error) {
	done, err := c.call(ctx, container, func(ctx context.Context, api grpc.ClientConnInterface, _ result) (result, error) {
		text, err := read(ctx, api, container)
		return result{text: text}, err
	})
	return done.text, err
}

// Failing reports whether containerd failed three times in a row, and has not responded since.
func (c *Client) Failing() bool { return c.breaker.Failing() }
