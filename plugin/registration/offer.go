// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"cmp"
	"encoding/json"
	"fmt"
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/rdma-spec/rdma-spec/plugin/registration/handover"
)

// agreement is what the plugin and the runtime agreed on at a registration. A process that takes over the connection
// must agree to exactly the same.
type agreement struct {
	Socket         string        `json:"socket"` // the path of the runtime's socket
	Index          string        `json:"index"`
	Deployment     string        `json:"deployment,omitempty"` // empty if unknown, as in a systemd service
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

// offer is what a waiting process must know to replace this process.
type offer struct {
	Registered bool       `json:"registered"` // the runtime calls the process that has the connection
	Agreed     *agreement `json:"agreed,omitempty"`
	Leaves     string     `json:"leaves,omitempty"` // why this process releases the lock
}

// hold allows other processes to wait behind this one.
func (r *Registration) hold(owner *handover.Owner) {
	r.mu.Lock()
	r.owner = owner
	r.mu.Unlock()
	go r.offer()
}

// release passes the lock to a waiting process, because this process is not registered and will not retry for a while.
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

// handOver passes the connection to another process. No goroutine may be reading from the connection. It may take half
// of the runtime's timeout, so that the other process can still answer the next request in time.
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
		r.offering.Lock() // no offer may follow the state
		defer r.offering.Unlock()
		return owner.Give(c.UnixConn, text, r.endWithin()/2)
	}
	if err := handover.Store(c.UnixConn, text); err != nil {
		return err
	}
	c.awaitDelivery() // systemd closes the connection when the service is stopped, and undelivered responses would be lost
	return nil
}
