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

// StateFormat is the format version of the data that a process passes to the next process, including the plugin's
// state. If testdata/state.json changes in this package or in package plugin, increase StateFormat, because a process
// accepts only its own format.
const StateFormat = 4

// state is the data that a process passes to the process that replaces it. The state contains the age of the
// registration instead of a time, because the clock can be changed.
type state struct {
	Format        int             `json:"format"`
	Agreed        agreement       `json:"agreed"`
	RegisteredAgo time.Duration   `json:"registeredAgo"` // the time since the registration, in nanoseconds
	Plugin        json.RawMessage `json:"plugin"`        // see Plugin.State
}

// decode decodes the state from another process, which might run a different version of this program.
func decode(text json.RawMessage) (s state, err error) {
	var its struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(text, &its); err != nil {
		return s, err
	}
	if its.Format != StateFormat {
		return s, fmt.Errorf("the state has format %d, but this version reads format %d", its.Format, StateFormat)
	}
	err = json.Unmarshal(text, &s)
	return s, err
}

// inheritance is a connection that the previous process hands over. The plugin is already registered over the
// connection.
type inheritance struct {
	socket     *net.UnixConn
	registered time.Time // when the runtime registered the plugin over the connection
	apply      func()    // applies the state of the previous process
	served     func()    // notifies the previous process that this process serves the connection
}

// notUnderstood is logged if this process cannot use the previous process's state.
const notUnderstood = "cannot take over the previous process's connection: this process registers when the previous " +
	"one exits"

// join returns the connection that the previous process hands over, or nil if this process must register. While the
// previous process is running, join waits until that process exits or releases the lock.
func (r *Registration) join(ctx context.Context) *inheritance {
	if socket := r.stored; socket != nil {
		r.stored = nil
		// Even if ctx is done, the connection is restored, and is then handed over to the next process.
		from, err := r.restore(context.WithoutCancel(ctx), r.storedState)
		if err == nil {
			from.socket = socket
			return from
		}
		_ = socket.Close() // the runtime notices the end of the connection
		r.Log.WithError(err).Warn(notUnderstood)
	}
	r.stayOut(ctx)
	if r.Handover == "" {
		return nil
	}
	var free time.Time // when this process began to leave the lock free for other processes
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
	// backOffFor is how long a process that backs off leaves the lock free. The time is long enough for the kubelet to
	// restart a container.
	backOffFor   = time.Minute
	backOffAgain = 500 * time.Millisecond
)

// backOff briefly releases the lock if another process should register instead of this process. backOff reports whether
// it released the lock.
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

// errUnlike means that the previous process uses a different runtime, or needs different settings from the runtime than
// this process.
var errUnlike = errors.New("the previous process is a different plugin")

// warnAlone logs why this process cannot take over another process's connection, or cannot hand over its own
// connection.
func (r *Registration) warnAlone(err error) {
	what := "no other process can take over this process's connection, so the plugin re-registers during an upgrade"
	for _, beside := range []error{errUnlike, handover.ErrRefused, handover.ErrHangs} {
		if errors.Is(err, beside) {
			what = "cannot take over the running process's connection: registering as a second plugin"
		}
	}
	r.Log.WithError(err).Warn(what)
}

// waitBehind waits until the owner of the connection passes the connection to this process. If the owner exits or
// releases the lock without passing the connection, waitBehind returns nil without an error.
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

// consider checks whether this process can replace the process that made an offer, and configures the plugin for the
// handover. If this process cannot replace the other process, consider returns an error.
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
		r.Log.Warnf("the previous process is releasing the lock so that this process can register: %s", o.Leaves)
	case !o.Registered && o.Agreed == nil:
		r.Log.Info("waiting behind a process that is not registered")
	case o.Registered && !before:
		r.Log.Info("waiting behind a registered plugin: this process takes over the connection when that plugin exits")
	}
	return nil
}

// accept takes over the previous process's connection. If the previous process keeps or closes the connection, accept
// returns nil.
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

// restore decodes the previous process's state. If this process cannot use the state, restore returns an error.
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

// checkAgreement returns an error if this process's agreement with the runtime differs from the previous process's
// agreement.
func (r *Registration) checkAgreement(ctx context.Context, before agreement) error {
	if before.Deployment == "" || r.Deployment == "" { // an unknown deployment has its own handover directory
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
		err = fmt.Errorf("%w: this process has %s; the previous process has %s", errUnlike, now, before)
	}
	return err
}
