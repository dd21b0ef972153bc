// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package storedspec makes the one edit that NRI cannot express: it changes the spec that containerd keeps of a container, from
// which the container's task and every later exec take their process.
//
// It knows containerd's API for containers, and how to ask it without holding up the runtime: each call has a budget, and while
// containerd is sick a breaker keeps calls from being made at all. What changes in a spec is known to package spec, who may
// have it to package policy.
package storedspec

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	containers "github.com/containerd/containerd/api/services/containers/v1"

	"github.com/rdma-spec/rdma-spec/plugin/breaker"
	"github.com/rdma-spec/rdma-spec/spec"
)

// What holds where Options say nothing.
const (
	DefaultNamespace = "k8s.io"               // where containerd's CRI keeps its containers
	DefaultBudget    = 300 * time.Millisecond // NRI gives a plugin 2 s, and all other plugin calls wait meanwhile
)

// Errors that callers tell apart, by errors.Is.
var (
	// ErrResting means that containerd was not asked, because it failed three times in a row a moment ago.
	ErrResting = errors.New("containerd is not asked")
	// ErrNotFound means that containerd keeps no such container.
	ErrNotFound = errors.New("containerd keeps no such container")
	// ErrContended means that somebody else kept changing the spec.
	ErrContended = errors.New("somebody else keeps changing the stored spec")
)

// Options say which containerd a Client edits, and how long it may take. The zero Options are those of a usual node.
type Options struct {
	// Address is containerd's socket, /path or unix:///path; empty: looked for in the usual places when it is needed.
	Address string
	// Root is the folder below which the usual places are; empty: "/".
	Root string
	// Namespace is containerd's namespace of the containers; empty: DefaultNamespace.
	Namespace string
	// Budget bounds each call, all tries together; 0: DefaultBudget. Where the caller's context has a deadline, a quarter of the time
	// up to it is kept for the caller.
	Budget time.Duration
	// OnChange, if given, is called when containerd is not asked any more because it failed three times in a row, and when it has
	// answered again. It must not call the Client.
	OnChange func(open bool)
}

// Client edits the specs that containerd keeps. It connects when it is first used. It is safe for concurrent use.
type Client struct {
	Options
	links   links
	breaker *breaker.Breaker[struct{}]
	counts  struct{ changed, unchanged, failed, rested atomic.Uint64 }
}

// New makes a Client. It touches no socket.
func New(o Options) *Client {
	if o.Root == "" {
		o.Root = "/"
	}
	if o.Namespace == "" {
		o.Namespace = DefaultNamespace
	}
	if o.Budget == 0 {
		o.Budget = DefaultBudget
	}
	return &Client{Options: o, links: links{address: o.Address, root: o.Root, dial: dialUnix}, breaker: newBreaker(o)}
}

// Close lets go of the connection, once the calls in flight are done. A Client that is used afterwards connects again.
func (c *Client) Close() { c.links.close() }

// Possible says why no stored spec can be edited on this node: there is no socket of containerd, and no folder in which one
// could appear. A socket that is not there yet is no reason.
func (c *Client) Possible() error { return possible(c.Address, c.Root) }

// Apply makes a container's stored spec hold what the grant says, capabilities in all five sets, and says whether that changed it.
// Applying twice equals applying once. The container's task must not have been created: nobody else writes its spec then.
//
// Errors: ErrNotFound, ErrResting; a spec of another kind than the OCI runtime's, or one that cannot be edited; and containerd's own,
// such as no answer within the budget. After an error the spec is as it was, unless containerd carried out the write and
// its answer was lost.
func (c *Client) Apply(ctx context.Context, container string, grant spec.Grant) (changed bool, err error) {
	e := edit{container: container, grant: grant}
	return c.count(&e, c.within(ctx, container, e.apply))
}

// ApplyRunning is Apply for a container whose spec somebody else may write as well, as CRI does when a container is resized.
//
// The containers API has no conditional write: the last writer wins. So the spec is read again right before the write and the edit
// begun anew if it changed meanwhile, and read again after it: if somebody wrote over the edit, the edit is made to what they
// wrote. What is left is a write of theirs that falls between the last read and the write, one request of a fraction of a
// millisecond; it would be undone, and containerd gives nobody a way to tell. ErrContended means that three rounds did not do;
// the spec is then as the other side left it.
func (c *Client) ApplyRunning(ctx context.Context, container string, grant spec.Grant) (changed bool, err error) {
	e := edit{container: container, grant: grant}
	return c.count(&e, c.within(ctx, container, e.applyRunning))
}

// Read gives the JSON text of a container's stored spec. Its errors are those of Apply.
func (c *Client) Read(ctx context.Context, container string) ([]byte, error) {
	var text []byte
	err := c.within(ctx, container, func(ctx context.Context, api containers.ContainersClient) (err error) {
		text, err = read(ctx, api, container)
		return err
	})
	return text, err
}

// Stats are the outcomes of Apply and ApplyRunning so far.
type Stats struct {
	Changed   uint64 // the spec was changed
	Unchanged uint64 // it held what was granted already, or its author dropped all capabilities
	Failed    uint64 // containerd was asked, and it did not work
	Rested    uint64 // containerd was not asked: ErrResting
}

// Stats gives the counts.
func (c *Client) Stats() Stats {
	return Stats{
		Changed: c.counts.changed.Load(), Unchanged: c.counts.unchanged.Load(),
		Failed: c.counts.failed.Load(), Rested: c.counts.rested.Load(),
	}
}

// Open says whether containerd is not asked just now, because it failed: calls give ErrResting.
func (c *Client) Open() bool { return c.breaker.Open() }

// count counts the outcome of an edit, and gives it to the caller.
func (c *Client) count(e *edit, err error) (changed bool, _ error) {
	switch {
	case errors.Is(err, ErrResting):
		c.counts.rested.Add(1)
	case err != nil:
		c.counts.failed.Add(1)
	case e.wrote:
		c.counts.changed.Add(1)
	default:
		c.counts.unchanged.Add(1)
	}
	return err == nil && e.wrote, err
}
