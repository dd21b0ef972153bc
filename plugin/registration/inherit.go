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

	"github.com/containerd/nri/pkg/api"

	"github.com/rdma-spec/rdma-spec/plugin/registration/handover"
)

// agreed is what the plugin and the runtime agree on at a registration. A process that takes the connection over has to
// agree to the same.
type agreed struct {
	Index          string        `json:"index"`
	Config         string        `json:"config,omitempty"`
	Runtime        string        `json:"runtime"`
	Version        string        `json:"version"`
	RequestTimeout time.Duration `json:"requestTimeout"` // in nanoseconds
	Events         api.EventMask `json:"events"`
	KeepConnected  bool          `json:"keepConnected"`
}

// offer is what a process that waits has to know.
type offer struct {
	Registered bool    `json:"registered"` // the runtime asks the process that has the connection
	Agreed     *agreed `json:"agreed,omitempty"`
}

// stateFormat is the format of state. Whatever changes testdata/state.json is another format, with another number.
const stateFormat = 1

// state is what a process needs to go on where another one has stopped. It has an age and no instant, since clocks are
// set.
type state struct {
	Format        int             `json:"format"`
	Agreed        agreed          `json:"agreed"`
	RegisteredAgo time.Duration   `json:"registeredAgo"` // in nanoseconds
	Plugin        json.RawMessage `json:"plugin"`        // what the plugin leaves, in a format of its own
}

// inheritance is a connection over which the plugin is registered, from the process before.
type inheritance struct {
	socket     *net.UnixConn
	registered time.Time // when the runtime registered the plugin over it
	goOn       func()    // has the plugin go on with what the process before knew
	served     func()    // tells the process before that this one serves
}

// notUnderstood is what the log says of a process whose state this one cannot go on with.
const notUnderstood = "the connection of the process before is not taken over: registering again when that has ended"

// inherit returns what the process before leaves to this one; nil if the plugin has to register. Where that process
// still runs, inherit waits until it ends.
func (r *Registration) inherit(ctx context.Context) *inheritance {
	if r.stored != nil {
		from, err := r.understood(context.WithoutCancel(ctx), r.left) // a process that ends passes it on
		if err == nil {
			from.socket = r.stored
			return from
		}
		_ = r.stored.Close() // the runtime sees that
		r.Log.WithError(err).Warn(notUnderstood)
	}
	if r.Handover == "" {
		return nil
	}
	for ctx.Err() == nil {
		owner, waiter, err := handover.Join(ctx, r.Handover, r.Name)
		if owner != nil {
			r.own(owner)
			return nil
		}
		if waiter != nil {
			var from *inheritance
			if from, err = r.waitBehind(ctx, waiter); from != nil {
				return from
			}
			waiter.Close()
		}
		if err != nil && ctx.Err() == nil {
			r.Log.WithError(err).Warn("registering beside the process that runs, since its connection cannot be taken over")
			return nil
		}
	}
	return nil
}

func (r *Registration) own(owner *handover.Owner) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.owner = owner
	r.tell()
}

// waitBehind waits until the process that has the connection leaves it to this one. It returns nil without an error
// where that process has ended without leaving it.
func (r *Registration) waitBehind(ctx context.Context, waiter *handover.Waiter) (*inheritance, error) {
	defer r.behind.Store(false)
	for {
		text, left, err := waiter.Next(ctx)
		var o offer
		switch {
		case errors.Is(err, handover.ErrRefused):
			return nil, err
		case err != nil:
			return nil, nil
		case left != nil:
			return r.take(ctx, waiter, left)
		}
		if err = json.Unmarshal(text, &o); err == nil && o.Agreed != nil {
			err = r.fits(ctx, *o.Agreed)
		}
		if err != nil {
			return nil, err
		}
		if o.Registered && !r.behind.Swap(true) {
			r.Log.Info("waiting behind a registered plugin, to take its connection over when it ends")
		}
		r.behind.Store(o.Registered)
	}
}

func (r *Registration) take(ctx context.Context, waiter *handover.Waiter, text json.RawMessage) (*inheritance, error) {
	from, err := r.understood(ctx, text)
	if err != nil {
		r.Log.WithError(err).Warn(notUnderstood)
		return nil, nil // it waits for the end of the process before, and registers then
	}
	owner, socket, err := waiter.Take()
	switch {
	case socket == nil:
		r.Log.WithError(err).Warn("the connection to the runtime was not taken over")
		return nil, nil
	case err != nil:
		r.Log.WithError(err).Warn("the next process will register, since it cannot wait behind this one")
	}
	r.mu.Lock()
	r.owner = owner
	r.mu.Unlock()
	from.socket, from.served = socket, waiter.Close
	return from, nil
}

// understood reads a state of the process before, if this process can go on with it.
func (r *Registration) understood(ctx context.Context, text json.RawMessage) (*inheritance, error) {
	var s state
	if err := handover.Decode(text, stateFormat, &s); err != nil {
		return nil, err
	}
	if err := r.fits(ctx, s.Agreed); err != nil {
		return nil, err
	}
	goOn, err := r.plugin.Understand(s.Plugin)
	return &inheritance{registered: time.Now().Add(-s.RegisteredAgo), goOn: goOn, served: func() {}}, err
}

// fits returns nil if this process agrees with the runtime on the same as the one before.
func (r *Registration) fits(ctx context.Context, before agreed) error {
	r.mu.Lock()
	known := r.agreed != nil && *r.agreed == before
	r.mu.Unlock()
	if known {
		return nil
	}
	now, err := r.agree(ctx, before)
	if err == nil && now != before {
		err = fmt.Errorf("it needs index %s, events %s and keepConnected=%t, and the one before has %s, %s and %t",
			now.Index, now.Events.PrettyString(), now.KeepConnected, before.Index,
			before.Events.PrettyString(), before.KeepConnected)
	}
	return err
}

// give leaves the connection to another process. Nobody may read from it. That may take half of what the runtime waits
// for an answer: whoever has the connection then can still answer the next request.
func (r *Registration) give(t *trunk) error {
	left, err := r.plugin.Leave()
	if err != nil {
		return err
	}
	r.mu.Lock()
	owner, s := r.owner, state{stateFormat, *r.agreed, time.Since(r.when), left}
	r.mu.Unlock()
	text, err := json.Marshal(s)
	switch {
	case err != nil:
		return err
	case owner != nil:
		return owner.Give(t.UnixConn, text, r.endWithin()/2)
	}
	if err := handover.Store(t.UnixConn, text); err != nil {
		return err
	}
	t.delivered() // systemd ends the connection with this process where the service is stopped
	return nil
}
