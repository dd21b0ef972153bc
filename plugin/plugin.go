// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package plugin handles NRI events. The package defines the effect of each event on a container. The package applies
// decisions, but does not make decisions. Package policy makes decisions, package spec defines the changes that a grant
// makes, and package registration keeps the connection to the runtime. The tool rdma-spec changes running containers.
// At registration, the plugin only counts the running containers that lack part of their grant.
package plugin

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/singleflight"

	"github.com/rdma-spec/rdma-spec/plugin/inventory"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/plugin/policy/inforce"
	"github.com/rdma-spec/rdma-spec/plugin/registration"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec"
	"github.com/rdma-spec/rdma-spec/spec"
)

// Options configure a Plugin. Name, Index, Socket, Inventory, and Log are required.
type Options struct {
	Name   string // the plugin's name in the runtime: "rdma"
	Index  string // two digits; the runtime calls plugins in the order of their indexes
	Socket string // the runtime's NRI socket
	// Handover is the directory through which a process hands over its connection to the next process. If Handover is
	// empty, the process hands over no connection.
	Handover string
	// Root, Version, and Deployment have the same meaning as in inforce.Options.
	Root, Version, Deployment string
	Log                       logrus.FieldLogger

	// Inventory is the inventory of the node's HCAs. The caller calls Inventory.Run.
	Inventory *inventory.Inventory
	// Validate makes the plugin a validator, which changes nothing, but refuses RDMA containers that would start without
	// their grant.
	Validate bool
	// Policy is in force until Use replaces it. If Policy is nil, the defaults are in force until the runtime passes a
	// configuration.
	Policy *policy.Policy
	// StoredSpecs confirms grants in the specs that the runtime stores, and adds the missing parts. StoredSpecs is nil if
	// the plugin cannot edit stored specs.
	StoredSpecs StoredSpecs
	// Resources reports which resources the kubelet allocated to containers. Resources is nil if the node has no kubelet.
	// The plugin calls Resources at most once for each new container, and only if the policy needs the response.
	Resources Resources
	// Budget is the longest total time that a request may wait for information; 0 means DefaultBudget.
	Budget time.Duration
	// Limits reads the limits of created containers without stored specs. Limits is nil if the plugin cannot read limits.
	Limits Limits
	// RunningSpecs reads stored specs for background work. RunningSpecs is nil if the plugin cannot read stored specs.
	// RunningSpecs and StoredSpecs are separate clients, so that failures of background work do not open the breaker for
	// requests.
	RunningSpecs RunningSpecs
	// Raise is the command that raises the limits of running containers.
	Raise string
	// Startable returns the highest memlock with which the runtime with this PID can start a container. If Startable is
	// nil, the plugin does not know this memlock. limits.Processes implements Startable.
	Startable func(runtime int) (spec.Limit, error)
}

// StoredSpecs edits the specs that a runtime stores.
type StoredSpecs interface {
	// Confirm returns the memlock and CAP_IPC_LOCK in a container's stored spec, and adds the missing part of the grant,
	// except devices. If the container's task already exists, the error is storedspec.ErrStarted. Confirm returns well
	// before the context's deadline.
	Confirm(ctx context.Context, container string, grant spec.Grant) (storedspec.Found, error)
}

// RunningSpecs reads the specs that a runtime stores for running containers.
type RunningSpecs interface {
	// Read returns the JSON text of a container's stored spec. The error is storedspec.ErrNotFound if the container has no
	// stored spec.
	Read(ctx context.Context, container string) ([]byte, error)
}

// Limits reads the limits of containers' processes. limits.Processes implements Limits.
type Limits interface {
	// Containers returns the PIDs of each running container, by container ID.
	Containers() (map[string][]int, error)
	// Newest returns the PID of a container that has just started, or 0 if the container has no process.
	Newest(container string) (pid int, err error)
	// MemlockIn returns a process's RLIMIT_MEMLOCK if the process belongs to the container.
	MemlockIn(container string, pid int) (spec.Rlimit, error)
}

// Resources reports the resources that the kubelet allocated to containers and pods. podresources.Client implements
// Resources.
type Resources interface {
	// Names returns the names of the container's resources. The result known is false if the container might have other
	// resources.
	Names(ctx context.Context, sandbox, namespace, pod, container string) (names []string, known bool, err error)
	// PodHolds returns the resources of the pod's containers, and whether one of these containers has a resource claim.
	PodHolds(ctx context.Context, sandbox, namespace, pod string) (held []policy.Allotted, claims bool, err error)
}

// Plugin handles the containers that the runtime creates. A Plugin is safe for concurrent use.
type Plugin struct {
	Options
	facts        policy.Facts // for background work: the functions do not wait
	registration *registration.Registration
	config       *inforce.Current // the policy in force
	confirmer    *confirmer
	throttle     throttle
	metrics      *metrics
	checks       singleflight.Group // shared by callers of Alive

	// Facts about the runtime:
	keepsSpecs atomic.Bool               // the runtime stores specs, which can be edited
	confirms   atomic.Bool               // PostCreateContainer can confirm grants
	startable  atomic.Pointer[startable] // nil before the first connection

	// Facts about the containers that were running when the runtime registered the plugin:
	listings chan listing        // for lookAll
	below    atomic.Pointer[int] // number of containers below policy; nil if unknown
}

// DefaultBudget is short, since the runtime handles one container at a time.
const DefaultBudget = 300 * time.Millisecond

// New returns a plugin that does nothing until Run is called.
func New(o Options) *Plugin {
	o.Budget = cmp.Or(o.Budget, DefaultBudget)
	p := &Plugin{Options: o, throttle: newThrottle(), metrics: newMetrics(), listings: make(chan listing, 1)}
	p.facts = policy.Facts{
		Verbs:     o.Inventory.Verbs,
		Known:     o.Inventory.Known,
		HCAs:      o.Inventory.Latest,
		Memory:    policy.LiveMemory(),
		Startable: func() spec.Limit { return p.startable.Load().now() },
	}
	p.confirmer = &confirmer{
		log:     o.Log,
		metrics: p.metrics,
		pending: newPendingGrants(),
		stored:  p.specs,
		running: o.RunningSpecs,
		limits:  o.Limits,
	}
	p.registration = registration.New(p, registration.Options{
		Name: o.Name, Index: o.Index, Socket: o.Socket, Handover: o.Handover, Deployment: o.Deployment, Log: o.Log,
		Rival:    o.rival(),
		BacksOff: func() bool { return p.config.Refused() != nil && p.policy().Missing() != nil },
		// A plugin that hangs for a while keeps its connection. A validator that hangs does not keep its connection, since
		// every container on the node would wait for the validator and then fail.
		KeepConnected: !o.Validate,
	})
	p.config = inforce.New(inforce.Options{
		Root: o.Root, Version: o.Version, Deployment: o.Deployment, ReadOnly: o.Validate, Policy: o.Policy, Log: o.Log,
		Put:    func(next *policy.Policy) { p.Inventory.Want(next.Wants()) },
		Loaded: p.metrics.loaded, Registered: p.Registered,
		EverRegistered: func() bool { return !p.registration.When().IsZero() },
	})
	return p
}

// rival returns a function that reports whether another plugin serves the node's containers. The function is nil if the
// plugin is a validator, since two validators do no harm, or if the node's root is unknown.
func (o *Options) rival() func() error {
	if o.Validate || o.Root == "" {
		return nil
	}
	return func() error { return inforce.Rival(o.Root, o.Deployment) }
}

// policy returns the policy in force.
func (p *Plugin) policy() *policy.Policy { return p.config.Policy() }

// Use puts a configuration file's policy in force. See inforce.Current.Use.
func (p *Plugin) Use(loaded *policy.Policy, source string, err error) {
	p.config.Use(loaded, source, err)
}

// Run keeps the plugin registered with the runtime until the context is done, even if the runtime restarts. Before Run
// returns, the plugin responds to requests in flight. A plugin that the runtime launched runs for only one connection.
func (p *Plugin) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	var beside sync.WaitGroup
	beside.Go(func() { p.config.Run(ctx) })
	beside.Go(func() { p.confirmer.expire(ctx) })
	beside.Go(func() { p.lookAll(ctx) })
	err := p.registration.Run(ctx)
	stop()
	beside.Wait()
	return err
}

// specs returns the client that edits the runtime's stored specs, or nil if the specs cannot be edited.
func (p *Plugin) specs() StoredSpecs {
	if !p.keepsSpecs.Load() {
		return nil
	}
	return p.StoredSpecs
}
