// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/rdma-spec/rdma-spec/plugin/registration/handover"
)

// StateFormat is the format of everything that a process passes to the next one, including the plugin's state. If
// testdata/state.json changes, here or in the plugin, increase it: a process accepts only its own format.
const StateFormat = 4

// state is what a process passes to the one that replaces it. It contains an age, not a time, since the clock may be
// set.
type state struct {
	Format        int             `json:"format"`
	Agreed        agreement       `json:"agreed"`
	RegisteredAgo time.Duration   `json:"registeredAgo"` // how long ago, in nanoseconds
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
const notUnderstood = "cannot take over the previous process's connection: this process registers when that one exits"

// join returns what the previous process passes to this one; nil if this one must register. While the previous process
// is running, join waits until it ends or gives up its place.
func (r *Registration) join(ctx context.Context) *inheritance {
	if socket := r.stored; socket != nil {
		r.stored = nil
		from, err := r.restore(context.WithoutCancel(ctx), r.storedState) // even if ctx is done: it is handed over in turn
		if err == nil {
			from.socket = socket
			return from
		}
		_ = socket.Close() // the runtime notices that
		r.Log.WithError(err).Warn(notUnderstood)
	}
	r.stayOut(ctx)
	if r.Handover == "" {
		return nil
	}
	var free time.Time // since when this process has left the lock free for others
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
	// backOffFor is how long a process that backs off leaves the lock free. It is long enough for the kubelet to restart a
	// container.
	backOffFor   = time.Minute
	backOffAgain = 500 * time.Millisecond
)

// backOff releases the lock for a moment if another process should register instead of this one. It reports whether it
// released the lock.
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

// warnAlone logs why this process cannot take over another process's connection, or cannot pass its own on.
func (r *Registration) warnAlone(err error) {
	what := "no other process can take over this process's connection, so the plugin re-registers during an upgrade"
	for _, beside := range []error{errUnlike, handover.ErrRefused, handover.ErrHangs} {
		if errors.Is(err, beside) {
			what = "cannot take over the running process's connection: registering as a second plugin"
		}
	}
	r.Log.WithError(err).Warn(what)
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

// consider checks whether this process can replace the process that made an offer, and configures the plugin for it. It
// returns an error if this process cannot.
func (r *Registration) consider(ctx context.Context, text json.RawMessage) error {
	var o offer
	if err := json.Unmarshal(text, &o); err != nil {
		return err
	}
	if o.Agreed != nil {
		err := r.checkAgreement(ctx, *o.Agreed)
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
		r.Log.Info("waiting behind a registered plugin: this process takes over the connection when that plugin exits")
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
	if err := r.checkAgreement(ctx, s.Agreed); err != nil {
		return nil, err
	}
	apply, err := r.plugin.Restore(s.Plugin)
	return &inheritance{registered: time.Now().Add(-s.RegisteredAgo), apply: apply, served: func() {}}, err
}

// checkAgreement returns nil if this process and the runtime agree on the same as the previous process.
func (r *Registration) checkAgreement(ctx context.Context, before agreement) error {
	if before.Deployment == "" || r.Deployment == "" { // a deployment whose name is unknown has its own handover directory
		before.Deployment = r.Deployment
	}
	r.mu.Lock()
	known := r.agreed != nil && *r.agreed == before
	r.mu.Unlock()
	if known {
		return nil
	}
	now := r.completeAgreement(before)
	var err error
	if now == before {
		now, err = r.agree(ctx, before)
	}
	if err == nil && now != before {
		err = fmt.Errorf("%w: this process has %s, the previous one %s", errUnlike, now, before)
	}
	return err
}
