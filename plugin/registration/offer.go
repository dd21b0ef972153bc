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

// agreement contains the settings on which the plugin and the runtime agreed at a registration. A process can take over
// the connection only with exactly the same agreement.
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
	return fmt.Sprintf("socket %s, index %s, deployment %s, events %s, and keepConnected=%t", a.Socket, a.Index,
		cmp.Or(a.Deployment, "unknown"), a.Events.PrettyString(), a.KeepConnected)
}

// offer contains the information that a waiting process needs to replace this process.
type offer struct {
	Registered bool       `json:"registered"` // the plugin is registered over this process's connection
	Agreed     *agreement `json:"agreed,omitempty"`
	Leaves     string     `json:"leaves,omitempty"` // why this process releases the lock
}

// hold allows other processes to wait for this process's connection.
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

// offer informs the waiting processes whether the plugin is registered. A hung waiting process delays only the next
// offer, by one second. If several offers are due, each offer contains the current state.
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
		r.Log.WithError(err).Warn("cannot notify the processes that are waiting for the connection")
	}
}

// handOver passes the connection to another process. No goroutine may be reading from the connection. The transfer can
// take half of the runtime's request timeout, so that the other process can still answer the next request in time.
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
	// When the service is stopped, systemd closes the connection, and undelivered responses are lost.
	c.awaitDelivery()
	return nil
}
