// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/rdma-spec/rdma-spec/plugin/registration/handover"
)

// agreement is what the plugin and the runtime agreed on at a registration. Processes that replace each other have it
// in common: a process that takes over the connection must agree to the same.
type agreement struct {
	Socket         string        `json:"socket"` // the runtime's
	Index          string        `json:"index"`
	Deployment     string        `json:"deployment,omitempty"` // empty: unknown, as for a service, which systemd knows
	Config         string        `json:"config,omitempty"`
	Runtime        string        `json:"runtime"`
	Version        string        `json:"version"`
	RequestTimeout time.Duration `json:"requestTimeout"` // in nanoseconds
	Events         api.EventMask `json:"events"`
	KeepConnected  bool          `json:"keepConnected"`
}

func (a agreement) String() string {
	return fmt.Sprintf("socket %s, index %s, deployment %s, events %s and keepConnected=%t", a.Socket, a.Index,
		cmp.Or(a.Deployment, "unknown"), a.Events.PrettyString(), a.KeepConnected)
}

// offer is what a waiting process must know.
type offer struct {
	Registered bool       `json:"registered"` // the runtime asks the process that has the connection
	Agreed     *agreement `json:"agreed,omitempty"`
	Leaves     string     `json:"leaves,omitempty"` // why the process leaves its place
}

// StateFormat is the format of everything that a process passes to the next one, including the plugin's state. If
// testdata/state.json changes, here or in the plugin, increase it: a process accepts only its own format.
const StateFormat = 4

// state is what a process passes to the one that replaces it. It contains an age, not a time, since the clock may be
// set.
type state struct {
	Format        int             `json:"format"`
	Agreed        agreement       `json:"agreed"`
	RegisteredAgo time.Duration   `json:"registeredAgo"` // in nanoseconds
	Plugin        json.RawMessage `json:"plugin"`        // see Plugin.State
}

// decode decodes another process's state, which may have another version.
func decode(text json.RawMessage) (s state, err error) {
	var its struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(text, &its); err != nil {
		return s, err
	}
	if its.Format != StateFormat {
		return s, fmt.Errorf("it has format %d, and this version reads format %d", its.Format, StateFormat)
	}
	err = json.Unmarshal(text, &s)
	return s, err
}

// inheritance is a connection from the previous process over which the plugin is registered.
type inheritance struct {
	socket     *net.UnixConn
	registered time.Time // when the runtime registered the plugin over it
	apply      func()    // applies the state of the previous process
	served     func()    // tells the previous process that this one is serving
}

// notUnderstood is logged if this process cannot use the previous process's state.
const notUnderstood = "cannot take over the previous process's connection: registering when that process exits"

// join returns what the previous process passes to this one; nil if this one must register. While the previous process
// is running, join waits until it ends or gives up its place.
func (r *Registration) join(ctx context.Context) *inheritance {
	if socket := r.stored; socket != nil {
		r.stored = nil
		from, err := r.restore(context.WithoutCancel(ctx), r.storedState) // a process that ends hands it over in turn
		if err == nil {
			from.socket = socket
			return from
		}
		_ = socket.Close() // the runtime sees that
		r.Log.WithError(err).Warn(notUnderstood)
	}
	r.stayOut(ctx)
	if r.Handover == "" {
		return nil
	}
	var free time.Time // since when this process leaves the free lock to others
	for ctx.Err() == nil {
		owner, waiter, err := handover.Join(ctx, r.Handover, r.Name)
		if owner != nil && r.backOff(ctx, owner, &free) {
			continue
		}
		if owner != nil {
			r.hold(owner)
			return nil
		}
		if waiter != nil {
			free = time.Time{}
			var from *inheritance
			if from, err = r.waitBehind(ctx, waiter); from != nil {
				return from
			}
			waiter.Close()
		}
		if err != nil && ctx.Err() == nil {
			r.warnAlone(err)
			return nil
		}
	}
	return nil
}

const (
	// backOffFor is long enough for the kubelet to restart a container.
	backOffFor   = time.Minute
	backOffAgain = 500 * time.Millisecond
)

// backOff releases the lock for a moment if another process should have it, and reports whether it did.
func (r *Registration) backOff(ctx context.Context, owner *handover.Owner, since *time.Time) bool {
	switch {
	case r.BacksOff == nil || !r.BacksOff():
		return false
	case since.IsZero():
		*since = time.Now()
		r.Log.Warnf("not registering for %s, so that another process can register", r.backOffFor)
	case time.Since(*since) > r.backOffFor:
		return false
	}
	owner.Close()
	select {
	case <-ctx.Done():
	case <-time.After(backOffAgain):
	}
	return true
}

// errUnlike means that the previous process wants something else from the runtime, or uses another runtime.
var errUnlike = errors.New("it is another plugin")

// warnAlone logs why this process cannot wait behind another one, and no process can wait behind it.
func (r *Registration) warnAlone(err error) {
	what := "no process can wait behind this one, so the plugin reregisters during an upgrade"
	for _, beside := range []error{errUnlike, handover.ErrRefused, handover.ErrHangs} {
		if errors.Is(err, beside) {
			what = "cannot take over the running process's connection: registering as a second plugin"
		}
	}
	r.Log.WithError(err).Warn(what)
}

// hold allows other processes to wait behind this one.
func (r *Registration) hold(owner *handover.Owner) {
	r.mu.Lock()
	r.owner = owner
	r.mu.Unlock()
	go r.offer()
}

// release passes the lock to a waiting process, since this process is not registered and will not retry for a while.
func (r *Registration) release(cause error) {
	r.offering.Lock()
	defer r.offering.Unlock()
	r.mu.Lock()
	owner := r.owner
	r.owner = nil
	r.mu.Unlock()
	r.send(owner, offer{Leaves: cause.Error()})
	owner.Close()
}

// offer tells the waiting processes whether the plugin is registered. A hung process takes a second, which delays only
// the next offer. If several offers are due, each contains the current state.
func (r *Registration) offer() {
	r.offering.Lock()
	defer r.offering.Unlock()
	r.mu.Lock()
	owner := r.owner
	now := offer{Registered: r.current != nil, Agreed: r.agreed}
	r.mu.Unlock()
	r.send(owner, now)
}

func (r *Registration) send(owner *handover.Owner, o offer) {
	if err := owner.Offer(o); err != nil {
		r.Log.WithError(err).Warn("cannot notify the processes that wait for the connection")
	}
}

// waitBehind waits until the process with the connection passes it to this one. It returns nil without an error if that
// process ended or released the lock without passing it.
func (r *Registration) waitBehind(ctx context.Context, waiter *handover.Waiter) (*inheritance, error) {
	defer r.behind.Store(false)
	for {
		news, err := waiter.Next(ctx)
		switch {
		case errors.Is(err, handover.ErrRefused) || errors.Is(err, handover.ErrHangs):
			return nil, err
		case err != nil:
			return nil, nil
		case news.Kind == handover.State:
			return r.accept(ctx, waiter, news.Text)
		}
		if err := r.consider(ctx, news.Text); err != nil {
			return nil, err
		}
	}
}

// consider prepares this process to replace one that makes an offer. An error means that it cannot.
func (r *Registration) consider(ctx context.Context, text json.RawMessage) error {
	var o offer
	if err := json.Unmarshal(text, &o); err != nil {
		return err
	}
	if o.Agreed != nil {
		err := r.fits(ctx, *o.Agreed)
		if errors.As(err, new(*refusedError)) && ctx.Err() == nil {
			r.Log.WithError(err).Warn("not ready to take over the previous process's connection")
			o.Registered = false
		} else if err != nil {
			return err
		}
	}
	before := r.behind.Swap(o.Registered)
	switch {
	case o.Leaves != "":
		r.Log.Warnf("the previous process makes way for this one: %s", o.Leaves)
	case !o.Registered && o.Agreed == nil:
		r.Log.Info("waiting behind a process that is not registered")
	case o.Registered && !before:
		r.Log.Info("waiting behind a registered plugin: taking over its connection when it exits")
	}
	return nil
}

// accept takes over the previous process's connection. It returns nil if that process keeps or ends the connection.
func (r *Registration) accept(ctx context.Context, waiter *handover.Waiter,
	text json.RawMessage) (*inheritance, error) {
	from, err := r.restore(ctx, text)
	if err != nil {
		r.Log.WithError(err).Warn(notUnderstood)
		return nil, nil
	}
	owner, socket, err := waiter.Accept()
	switch {
	case socket == nil:
		r.Log.WithError(err).Warn("cannot take over the connection to the runtime")
		return nil, nil
	case err != nil:
		r.warnAlone(err)
	}
	r.mu.Lock()
	r.owner = owner
	r.mu.Unlock()
	from.socket = socket
	from.served = waiter.Close
	return from, nil
}

// restore decodes the previous process's state, if this process can use it.
func (r *Registration) restore(ctx context.Context, text json.RawMessage) (*inheritance, error) {
	s, err := decode(text)
	if err != nil {
		return nil, err
	}
	if err := r.fits(ctx, s.Agreed); err != nil {
		return nil, err
	}
	apply, err := r.plugin.Restore(s.Plugin)
	return &inheritance{registered: time.Now().Add(-s.RegisteredAgo), apply: apply, served: func() {}}, err
}

// fits returns nil if this process and the runtime agree on the same as the previous process.
func (r *Registration) fits(ctx context.Context, before agreement) error {
	if before.Deployment == "" || r.Deployment == "" { // a chart or a program that does not say has a directory of its own
		before.Deployment = r.Deployment
	}
	r.mu.Lock()
	known := r.agreed != nil && *r.agreed == before
	r.mu.Unlock()
	if known {
		return nil
	}
	now := r.wants(before)
	var err error
	if now == before {
		now, err = r.agree(ctx, before)
	}
	if err == nil && now != before {
		err = fmt.Errorf("%w: this process has %s, the previous one %s", errUnlike, now, before)
	}
	return err
}

// handOver passes the connection to another process. Nobody may be reading from it. It may take half of the runtime's
// timeout, so that the next process can still answer the next request in time.
func (r *Registration) handOver(c *conn) error {
	plugins, err := r.plugin.State()
	if err != nil {
		return err
	}
	r.mu.Lock()
	owner := r.owner
	s := state{Format: StateFormat, Agreed: *r.agreed, RegisteredAgo: time.Since(r.when), Plugin: plugins}
	r.mu.Unlock()
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if owner != nil {
		r.offering.Lock() // the state comes after the last offer
		defer r.offering.Unlock()
		return owner.Give(c.UnixConn, text, r.endWithin()/2)
	}
	if err := handover.Store(c.UnixConn, text); err != nil {
		return err
	}
	c.delivered() // systemd ends the connection with this process where the service is stopped
	return nil
}
