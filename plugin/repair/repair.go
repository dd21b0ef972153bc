// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package repair finds the containers of a node that run below policy, because they were created without the plugin or
// under another configuration. It keeps a record of each container, compares what the container has with what the
// policy gives, and reports it or raises the container without a restart.
//
// It works in the background with its own clients, and delays no request. It knows nothing of NRI and decides nothing:
// package policy knows who may have what, and package limits how processes are raised.
package repair

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec"
)

const (
	// startsWithin is how long a runtime may take to start a container that it has listed, and to limit a process that it
	// has put into a container's cgroup, of the first one or of an exec's: on a busy node it takes seconds. Until then
	// passes come soon, and a process that is low does not count.
	startsWithin = 10 * time.Second
	soon         = time.Second
	// forgetAfter is how long after its creation a container without processes counts as one that has ended.
	forgetAfter = 10 * time.Minute
	// idle is the time until the next pass if there is nothing to compare. Use starts one before.
	idle = time.Hour
)

// Container is what is known of a container when the runtime lists or creates it.
type Container struct {
	policy.Container        // with the devices and the memlock that it was given; Resources is not used
	ID               string `json:"id"` // as the runtime calls it
	Sandbox          string `json:"sandbox"`
}

// Limits reads and raises the processes of the node. *limits.Processes does.
type Limits interface {
	Processes
	// Visible returns nil if the processes of containers can be seen, otherwise an error that says why not.
	Visible() error
	// Containers returns the processes of each container that has some, by the container's ID.
	Containers() (map[string][]int, error)
	// RaiseWithSpecs raises the processes of containers, and their stored specs, to at least what is wanted.
	RaiseWithSpecs(ctx context.Context, wanted map[string]spec.Limit, specs limits.Specs) map[string]limits.SpecOutcome
}

// Specs reads and edits the specs that the runtime stores of containers that run. A storedspec.Client does.
type Specs interface {
	limits.Specs
	// Read returns the JSON text of a container's stored spec; storedspec.ErrNotFound where there is none.
	Read(ctx context.Context, container string) ([]byte, error)
}

// Resources reports which resources containers hold. A podresources.Client does.
type Resources interface {
	// Names returns the names of the resources that a container holds; known is false if it may hold others.
	Names(ctx context.Context, sandbox, namespace, pod, container string) (names []string, known bool, err error)
}

// Options are what a Loop is made of. Log, Facts and Limits must be given. Requests use other Specs and Resources: a
// pass that fails must not open their breakers.
type Options struct {
	Log       logrus.FieldLogger
	Facts     policy.Facts
	Limits    Limits
	Specs     Specs     // nil if nothing can edit stored specs
	Resources Resources // nil if there is no kubelet
}

// Loop compares the containers of a node with the policy. It is safe for concurrent use. A nil Loop does nothing.
type Loop struct {
	Options
	record      record
	policy      atomic.Pointer[policy.Policy]
	listedAt    atomic.Pointer[time.Time]
	specsUsable atomic.Bool
	wake        chan struct{}
	stats       atomic.Pointer[Stats]
	raised      atomic.Uint64
	failed      atomic.Uint64

	// Of the pass alone:
	states       map[string]*state // by container
	askFrom      int               // where the questions to the kubelet go on
	forgotten    time.Time         // when the containers that are gone were looked for
	loggedHidden string            // why processes cannot be seen, as the log says
}

// New makes a Loop. It does nothing until Run.
func New(o Options) *Loop {
	r := &Loop{Options: o, record: newRecord(), wake: make(chan struct{}, 1), states: map[string]*state{}}
	r.listedAt.Store(&time.Time{})
	return r
}

// Use puts a policy in force and starts a pass. With a policy that turns repair off, the pass drops the record, and
// nothing is recorded until another policy is in force. Without a policy, containers are recorded and not compared.
func (r *Loop) Use(p *policy.Policy) {
	if r == nil {
		return
	}
	if isOff(r.policy.Swap(p)) && !isOff(p) {
		r.warnUnlisted()
	}
	r.passNow()
}

func (r *Loop) warnUnlisted() {
	r.Log.Warn("repair is on, for containers that are created from now on: the running ones are compared once the " +
		"plugin has been stopped and started, and not merely restarted or upgraded; until then, rdma-spec status " +
		"compares them")
}

func isOff(p *policy.Policy) bool { return p != nil && p.Config().Repair.Mode == policy.RepairOff }

// off reports whether containers are not recorded.
func (r *Loop) off() bool { return r == nil || isOff(r.policy.Load()) }

// Listed records the runtime's list of all its containers. It only copies. specsUsable says that the runtime stores
// specs that Specs can edit.
func (r *Loop) Listed(containers []Container, specsUsable bool) {
	if r == nil {
		return
	}
	r.specsUsable.Store(specsUsable)
	if r.off() {
		return
	}
	now := time.Now()
	r.listedAt.Store(&now)
	r.warnFull(r.record.list(containers))
	r.passNow()
}

// Created records a container that the runtime creates.
func (r *Loop) Created(c Container) {
	if !r.off() {
		r.warnFull(r.record.add(&recorded{Container: c, since: time.Now()}))
	}
}

// Unfinished records that it is not known that a container's stored spec has what the container was granted, and
// reports whether passes try again: not if repair is off. Until one succeeds, the container counts as one without the
// CAP_IPC_LOCK that it was granted.
func (r *Loop) Unfinished(id string, grant spec.Grant) (again bool) {
	if r.off() {
		return false
	}
	if !r.record.owe(id, grant) {
		return false
	}
	r.passNow()
	return true
}

func (r *Loop) warnFull(full bool) {
	if full {
		r.Log.Warnf("the record of containers is full (%d MiB): repair ignores containers that are created from now on, "+
			"until others end", recordBytesMost>>20)
	}
}

// Run makes passes until the context is done.
func (r *Loop) Run(ctx context.Context) {
	if r == nil {
		return
	}
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		case <-r.wake:
		}
		next.Reset(r.pass(ctx))
	}
}

func (r *Loop) passNow() {
	select {
	case r.wake <- struct{}{}:
	default: // a pass is due already
	}
}

// pass compares all containers with the policy once, and returns the time until the next pass.
func (r *Loop) pass(ctx context.Context) time.Duration {
	all := r.record.all()
	p := r.policy.Load() // after the record was read: what is recorded under a later policy stays
	switch {
	case isOff(p):
		r.record.forget(all, func(*recorded) bool { return true })
		clear(r.states)
		r.stats.Store(nil)
		return idle
	case p == nil:
		r.stats.Store(nil)
		r.readProcesses(&findings{hidden: r.Limits.Visible()}, all) // the record forgets ended containers
		return forgetAfter
	}
	found := r.look(ctx, p, all)
	if ctx.Err() != nil || r.policy.Load() != p { // then another pass is due
		return idle
	}
	notices := &notices{log: r.Log}
	if p.Config().Repair.Mode == policy.RepairFix && !r.fix(ctx, found, notices) {
		return idle
	}
	r.report(found, notices)
	r.publish(found, r.finishEdits(ctx, found))
	if found.unasked || found.starting || time.Since(*r.listedAt.Load()) < startsWithin {
		return min(soon, p.RepairEvery())
	}
	return p.RepairEvery()
}
