// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package plugin handles NRI events: it defines what each event means for a container. It applies decisions but makes
// none. plugin/policy decides, spec defines what a grant changes, and plugin/registration keeps the connection to the
// runtime. The tool rdma-spec handles running containers; the plugin only counts, when it registers, those that lack
// part of their grant.
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
	// Handover is the directory through which a process hands its connection over to the next one; if it is empty, it does
	// not.
	Handover string
	// Root, Version, and Deployment are those of inforce.Options.
	Root, Version, Deployment string
	Log                       logrus.FieldLogger

	// Inventory is the inventory of the node's HCAs. The caller runs it.
	Inventory *inventory.Inventory
	// Validate makes the plugin a validator: it changes nothing, and refuses RDMA containers that would start without
	// their grant.
	Validate bool
	// Policy is in force until Use replaces it. If it is nil, the defaults are in force until the runtime passes a
	// configuration.
	Policy *policy.Policy
	// StoredSpecs confirms grants in the specs that the runtime stores, and adds what they lack; nil if it cannot.
	StoredSpecs StoredSpecs
	// Resources reports which resources the kubelet allocated to containers; nil if there is no kubelet. It is called at
	// most once for each container that is created, and only if the policy needs the answer.
	Resources Resources
	// Budget is how long a request may wait in total for what it needs; 0 means DefaultBudget.
	Budget time.Duration
	// Limits reads the limits of created containers whose specs are not stored; nil if it cannot.
	Limits Limits
	// RunningSpecs reads stored specs for background work; nil if there are none. It is a separate client from
	// StoredSpecs, so that its failures do not open the breaker for requests.
	RunningSpecs RunningSpecs
	// Raise is the command that raises the limits of running containers.
	Raise string
	// Startable returns the highest memlock with which the runtime with this PID can start a container; nil if that is
	// unknown. limits.Processes implements it.
	Startable func(runtime int) (spec.Limit, error)
}

// StoredSpecs edits the specs that a runtime stores.
type StoredSpecs interface {
	// Confirm returns what a container's stored spec grants, and adds what it lacks of the grant except devices. The
	// container's task must not have been created yet; if it was, the error is storedspec.ErrStarted. Confirm returns well
	// before the context's deadline.
	Confirm(ctx context.Context, container string, grant spec.Grant) (storedspec.Found, error)
}

// RunningSpecs reads the specs that a runtime stores for running containers.
type RunningSpecs interface {
	// Read returns the JSON text of a container's stored spec; storedspec.ErrNotFound if there is none.
	Read(ctx context.Context, container string) ([]byte, error)
}

// Limits reads the limits of containers' processes. limits.Processes implements it.
type Limits interface {
	// Containers returns the PIDs of each running container, by container ID.
	Containers() (map[string][]int, error)
	// Newest returns the PID of a container that has just started; 0 if it has no process.
	Newest(container string) (pid int, err error)
	// MemlockIn returns a process's RLIMIT_MEMLOCK if the process belongs to the container.
	MemlockIn(container string, pid int) (spec.Rlimit, error)
}

// Resources reports what the kubelet allocated to containers and pods. podresources.Client implements it.
type Resources interface {
	// Names returns the names of the container's resources; known is false if it may have others.
	Names(ctx context.Context, sandbox, namespace, pod, container string) (names []string, known bool, err error)
	// PodHolds returns the resources of the pod's containers, and whether one of them has a resource claim.
	PodHolds(ctx context.Context, sandbox, namespace, pod string) (held []policy.Allotted, claims bool, err error)
}

// Plugin decides about containers when the runtime creates them. It is safe for concurrent use.
type Plugin struct {
	Options
	facts        policy.Facts // for background work: none of the functions wait
	registration *registration.Registration
	config       *inforce.Current // the policy in force
	confirmer    *confirmer
	throttle     throttle
	metrics      *metrics
	checks       singleflight.Group // shared by callers of Alive

	// Facts about the runtime:
	keepsSpecs atomic.Bool               // it stores specs, which can be edited
	confirms   atomic.Bool               // PostCreateContainer shows what containers got
	startable  atomic.Pointer[startable] // nil before the first connection

	// Facts about the containers that were running when the runtime registered the plugin:
	listings chan listing        // for lookAll
	below    atomic.Pointer[int] // number of containers below policy; nil if unknown
}

// DefaultBudget is short, since the runtime handles one container at a time.
const DefaultBudget = 300 * time.Millisecond

// New returns a plugin with the default policy. It does nothing until Run is called.
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
		// A plugin that hangs for a while is better kept. A validator is not, since every container on the node would wait
		// for it and then fail.
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

// rival returns a function that reports whether another plugin serves the node's containers; nil if two plugins do no
// harm (such as two validators), or if it is unknown.
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

// Run keeps the plugin registered with the runtime until the context is done, even if the runtime restarts. Before it
// returns, it responds to requests in flight. A plugin that the runtime launched runs for one connection.
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

// specs returns the client that edits the runtime's stored specs; nil if they cannot be edited.
func (p *Plugin) specs() StoredSpecs {
	if !p.keepsSpecs.Load() {
		return nil
	}
	return p.StoredSpecs
}
