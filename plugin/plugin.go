// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package plugin is the NRI face of the project: container events come in, adjustments go out. It keeps the connection to the
// runtime. Who may have what is decided in plugin/policy; what a grant changes is known to spec.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/sirupsen/logrus"

	"github.com/rdma-spec/rdma-spec/plugin/inventory"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec"
)

// Options are what a Plugin is made of. Name, Index, Socket, Root and Log must be given.
type Options struct {
	Name   string // the plugin's name as the runtime knows it: "rdma"
	Index  string // two digits; plugins are called in their order
	Socket string // the runtime's NRI socket
	Root   string // where sysfs and devices are found: "/"
	Log    logrus.FieldLogger

	// Inventory is what is known of the node's HCAs; whoever made it runs it. Nil has them read within the requests.
	Inventory *inventory.Inventory
	// Validate has the plugin change nothing, and refuse RDMA containers that would start without what the policy gives them.
	Validate bool
	// Policy is in force from the start and whatever the runtime hands over. Without one, the configuration that the runtime
	// hands over is taken, or the defaults, until FollowConfig finds a file.
	Policy *policy.Policy
	// StoredSpecs carries CAP_IPC_LOCK into the specs that the runtime stores; nil where there is no way to.
	StoredSpecs StoredSpecs
	// Resources tells which resources containers hold; nil where there is nobody to ask.
	Resources Resources
	// Limits reads and raises the limits of containers that run; nil leaves them alone.
	Limits Limits
	// RunningSpecs reads and raises the stored specs of containers that run; nil where there is no way to.
	RunningSpecs RunningSpecs
}

// StoredSpecs edits the specs that a runtime has stored.
type StoredSpecs interface {
	// Apply makes a container's stored spec hold what the grant says, and says whether that changed it. The container's task must not
	// have been created yet. It returns within its own budget.
	Apply(ctx context.Context, container string, grant spec.Grant) (changed bool, err error)
	// Possible says why no stored spec can be edited on this node, and what to do about it; nil where one can, or may soon.
	Possible() error
}

// Resources tells which resources containers hold.
type Resources interface {
	// Names gives the names of the resources that a container holds; known is false where it may hold others. It is asked only where the policy needs to know, once a
	// container, and returns within its own budget.
	Names(sandbox, namespace, pod, container string) (names []string, known bool, err error)
}

// Plugin decides about containers as the runtime creates them. It is safe for concurrent use.
type Plugin struct {
	Options
	node     policy.Node
	policy   atomic.Pointer[policy.Policy]
	pending  pending
	editing  atomic.Bool  // the runtime keeps specs that are edited after CreateContainer
	refusals quieter      // refused containers that were told of
	faults   quieter      // faults of the connection that were told of
	misreads quieter      // configurations that were refused and told of
	serving  sync.RWMutex // held for reading by requests
	metrics  metrics
	repair   *repair
	sessions atomic.Int32  // connections over which the runtime asks
	hangUps  atomic.Int32  // registrations in a row that the runtime has hung up on
	fromFile atomic.Bool   // a configuration file is in force
	changed  chan struct{} // another policy is in force than when the session registered
}

// New makes a plugin. It does nothing until Run.
func New(o Options) *Plugin {
	p := &Plugin{Options: o, node: nodeOf(o), metrics: newMetrics(), changed: make(chan struct{}, 1)}
	p.repair = newRepair(p)
	if o.Policy != nil {
		p.use(o.Policy)
	}
	p.metrics.configValid.Set(1)
	return p
}

// nodeOf gives what decisions are made from.
func nodeOf(o Options) policy.Node {
	node := policy.LiveNode(o.Root)
	if o.Inventory != nil {
		node.Verbs, node.HCAs = o.Inventory.Verbs, o.Inventory.HCAs
	}
	return node
}

// Ready says why the plugin could not do its work as the runtime asks; nil where it can.
func (p *Plugin) Ready() error {
	if !p.Registered() {
		return errors.New("not registered with the runtime")
	}
	if p.Inventory != nil {
		return p.Inventory.Blind()
	}
	return nil
}

// createContainer is the CreateContainer event: one decision, carried out by NRI. An error fails the container's creation; only
// refusals are errors, so that a fault of ours never costs a container.
func (p *Plugin) createContainer(pod *api.PodSandbox, ctr *api.Container) (*api.ContainerAdjustment, error) {
	c, start := p.container(pod, ctr), time.Now()
	decision := p.policy.Load().Decide(c, p.node)
	p.metrics.count(decision, start)
	// Made where there is something to say: for nearly all containers of a node there is nothing.
	log := func() logrus.FieldLogger { return p.decided(pod, ctr, decision) }
	for _, warning := range decision.Warnings {
		log().Warn(warning)
	}
	switch {
	case decision.Refusal != nil:
		return nil, p.refuse(log(), subject(pod, ctr), decision.Refusal)
	case decision.Grant == nil:
		switch {
		case decision.Reason == "":
		case decision.Signal == policy.SignalNone:
			log().Info("left alone: " + decision.Reason)
		default:
			log().Warn("left alone, although it is an RDMA container: " + decision.Reason)
		}
		if decision.Unknown {
			p.repair.created(c, ctr, spec.Grant{})
		}
		return nil, nil
	}
	grant := *decision.Grant
	if !p.editing.Load() {
		grant.IPCLock = spec.IPCLockNo
	}
	adjustment, given := adjust(ctr, grant)
	if len(adjustment.GetRlimits()) == 0 {
		p.metrics.memlockSkipped.Inc()
	}
	if grant.IPCLock != spec.IPCLockNo {
		p.pending.put(ctr.GetId(), spec.Grant{IPCLock: grant.IPCLock}, time.Now())
	}
	p.repair.created(c, ctr, grant)
	log().WithFields(given).Info("adjusted")
	return adjustment, nil
}

// postCreateContainer is the PostCreateContainer event: the container is in the runtime's store, and its task is not made yet. What NRI
// cannot express goes into the stored spec now. The container has its memlock all the same if that fails.
func (p *Plugin) postCreateContainer(ctx context.Context, pod *api.PodSandbox, ctr *api.Container) {
	grant, ok := p.pending.take(ctr.GetId())
	if !ok {
		return
	}
	log := p.logger(pod, ctr)
	changed, err := p.StoredSpecs.Apply(ctx, ctr.GetId(), grant)
	switch {
	case err != nil:
		p.metrics.ipcLock.WithLabelValues("failed").Inc()
		log.WithError(err).Warn("no CAP_IPC_LOCK: the stored spec could not be changed; memlock is as granted, so RDMA works, " +
			"but SHM_LOCK, huge-page shared memory and programs that check for the capability do not")
	case changed:
		p.metrics.ipcLock.WithLabelValues("changed").Inc()
		log.Info("CAP_IPC_LOCK added to the stored spec")
	default:
		p.metrics.ipcLock.WithLabelValues("unchanged").Inc()
		log.Debug("CAP_IPC_LOCK left as it is in the stored spec")
	}
}

// refuse gives the error that fails a container's creation, and logs it once however often the creation is tried again.
func (p *Plugin) refuse(log logrus.FieldLogger, subject string, refusal *policy.Refusal) error {
	p.refusals.say(subject+refusal.Message, time.Now(), func(again int) {
		log.WithFields(logrus.Fields{"cause": refusal.Cause, "again": again}).Error("refused: " + refusal.Message)
	})
	return fmt.Errorf("%s: %s: %w", p.Name, subject, refusal)
}

// decided gives a logger for what was decided about a container.
func (p *Plugin) decided(pod *api.PodSandbox, ctr *api.Container, d policy.Decision) logrus.FieldLogger {
	return p.logger(pod, ctr).WithFields(logrus.Fields{"signal": d.Signal, "evidence": d.Evidence, "rule": d.Rule})
}

func (p *Plugin) logger(pod *api.PodSandbox, ctr *api.Container) logrus.FieldLogger {
	return p.Log.WithFields(logrus.Fields{"pod": pod.GetNamespace() + "/" + pod.GetName(), "container": ctr.GetName()})
}

// subject names a container for the person who created it.
func subject(pod *api.PodSandbox, ctr *api.Container) string {
	return fmt.Sprintf("pod %s/%s, container %s", pod.GetNamespace(), pod.GetName(), ctr.GetName())
}
