// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package plugin handles NRI events: it knows what each event means for a container. It carries out decisions and makes
// none: plugin/policy decides, spec knows what a grant changes, plugin/registration keeps the connection to the
// runtime. Running containers are the tool's: once, when it registers, the plugin counts those that lack part
// of their grant.
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

// Options are what a Plugin is made of. Name, Index, Socket, Inventory and Log must be given.
type Options struct {
	Name   string // the plugin's name as the runtime knows it: "rdma"
	Index  string // two digits; plugins are called in their order
	Socket string // the runtime's NRI socket
	// Handover is the directory in which processes of the plugin that replace each other meet; empty: they do not.
	Handover string
	// Root, Version and Deployment are those of inforce.Options.
	Root, Version, Deployment string
	Log                       logrus.FieldLogger

	// Inventory is what is known of the node's HCAs. The caller runs it.
	Inventory *inventory.Inventory
	// Validate makes the plugin a validator: it changes nothing, and refuses RDMA containers that would start without what
	// the policy gives.
	Validate bool
	// Policy is in force until Use replaces it. If it is nil, the defaults are, until the runtime hands over a
	// configuration.
	Policy *policy.Policy
	// StoredSpecs confirms grants by the specs that the runtime stores, and adds what they lack; nil if nothing can.
	StoredSpecs StoredSpecs
	// Resources reports which resources containers hold; nil if there is no kubelet. It is asked once for each container
	// that is created, and only if the policy needs the answer.
	Resources Resources
	// Budget is how long a request may wait, in all, for what it needs before its answer; 0 is DefaultBudget.
	Budget time.Duration
	// Limits reads the limits of created containers where no spec of theirs is stored; nil: nobody can.
	Limits Limits
	// RunningSpecs are the stored specs for work beside the requests; nil: there are none. It is another client than
	// StoredSpecs, so that its failures open no breaker of requests.
	RunningSpecs RunningSpecs
	// Raise is the command that raises containers that run.
	Raise string
	// Startable returns the highest memlock of a container that the runtime, given by its process, can start; nil: nobody
	// knows. A limits.Processes does.
	Startable func(runtime int) (spec.Limit, error)
}

// StoredSpecs edits the specs that a runtime has stored.
type StoredSpecs interface {
	// Confirm returns what a container's stored spec gives it, and adds what that lacks of the grant, devices aside. The
	// container's task must not have been created yet: storedspec.ErrStarted means that it was. It returns well before the
	// context's deadline.
	Confirm(ctx context.Context, container string, grant spec.Grant) (storedspec.Found, error)
}

// RunningSpecs reads the specs that a runtime has stored of containers that run.
type RunningSpecs interface {
	// Read returns the JSON text of a container's stored spec; storedspec.ErrNotFound where there is none.
	Read(ctx context.Context, container string) ([]byte, error)
}

// Limits reads the limits of containers' processes. A limits.Processes does.
type Limits interface {
	// Containers returns the IDs of the processes of each container that has some, by the container's ID.
	Containers() (map[string][]int, error)
	// Newest returns a process of a container that has just started; 0: it has none.
	Newest(container string) (pid int, err error)
	// MemlockIn reads RLIMIT_MEMLOCK of a process, if that is one of a container's.
	MemlockIn(container string, pid int) (spec.Rlimit, error)
}

// Resources reports what containers and pods hold. A podresources.Client does.
type Resources interface {
	// Names returns the names of the resources that a container holds; known is false if it may hold others.
	Names(ctx context.Context, sandbox, namespace, pod, container string) (names []string, known bool, err error)
	// PodHolds returns the resources that the containers of a pod hold, and whether one of them has a resource claim.
	PodHolds(ctx context.Context, sandbox, namespace, pod string) (held []policy.Allotted, claims bool, err error)
}

// Plugin decides about containers as the runtime creates them. It is safe for concurrent use.
type Plugin struct {
	Options
	facts        policy.Facts // for work beside the requests: nothing in it waits
	registration *registration.Registration
	config       *inforce.Current // the policy in force
	confirmer    *confirmer
	throttle     throttle
	metrics      *metrics
	checks       singleflight.Group // of Alive

	// What is known of the runtime that is served.
	keepsSpecs atomic.Bool               // it stores specs that can be edited
	confirms   atomic.Bool               // PostCreateContainer shows what containers got
	startable  atomic.Pointer[startable] // nil before the first connection

	// What running containers had when the runtime registered the plugin.
	listings chan listing        // of the runtime, for look
	below    atomic.Pointer[int] // how many containers had less than the policy gives; nil: unknown
}

// DefaultBudget is short, since the runtime asks about one container at a time.
const DefaultBudget = 300 * time.Millisecond

// New makes a plugin with the default policy. It does nothing until Run.
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
		// A plugin that hangs for a while is better kept. A validator is not: each container of the node would wait for it,
		// and then fail.
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

// rival returns what tells whether another plugin serves the node's containers; nil where that does no harm, as of two
// validators, or cannot be told.
func (o *Options) rival() func() error {
	if o.Validate || o.Root == "" {
		return nil
	}
	return func() error { return inforce.Rival(o.Root, o.Deployment) }
}

// policy returns the policy in force.
func (p *Plugin) policy() *policy.Policy { return p.config.Policy() }

// Use puts a configuration file's policy in force: see inforce.Current.Use.
func (p *Plugin) Use(loaded *policy.Policy, source string, err error) {
	p.config.Use(loaded, source, err)
}

// Run keeps the plugin registered with the runtime until the context is done, however often the runtime goes and comes
// back. Requests in flight are answered before Run returns. A plugin that the runtime has launched runs for one
// connection.
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

// specs returns the client that edits the specs that the runtime stores; nil if nothing can.
func (p *Plugin) specs() StoredSpecs {
	if !p.keepsSpecs.Load() {
		return nil
	}
	return p.StoredSpecs
}
