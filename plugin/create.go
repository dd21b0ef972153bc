// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/sirupsen/logrus"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// CreateContainer handles the runtime's request for each new container. CreateContainer makes one decision and returns
// the adjustment. If CreateContainer returns an error, the container's creation fails. CreateContainer returns errors
// only for refusals, so that a fault in the plugin never prevents a container's creation.
func (p *Plugin) CreateContainer(ctx context.Context, pod *api.PodSandbox,
	ctr *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	start := time.Now()
	c := ContainerOf(pod, ctr)
	decision := p.decide(ctx, pod, c)
	p.metrics.count(decision, start)
	for _, warning := range decision.Warnings {
		if p.throttle.due(c.Namespace + "/" + c.Pod + " " + warning) { // once per pod
			p.logOf(c, decision).Warn(warning)
		}
	}
	if decision.Refusal != nil {
		return nil, nil, p.refuse(c, decision)
	}
	if decision.Grant == nil {
		p.logLeftAlone(c, decision)
		return nil, nil, nil
	}
	if p.confirms.Load() {
		p.confirmer.pending.add(ctr.GetId(), newPendingGrant(c, decision))
	} else {
		p.confirmer.reportAnswered(p.logOf(c, decision), *decision.Grant)
	}
	return adjust(c, *decision.Grant), nil, nil
}

// logLeftAlone logs why a container gets no grant, if the decision contains a reason.
func (p *Plugin) logLeftAlone(c policy.Container, d policy.Decision) {
	switch {
	case d.Reason == "":
	case d.Signal == policy.SignalNone:
		p.logOf(c, d).Info("left alone: " + d.Reason)
	default:
		p.logOf(c, d).Warn("left alone, although the container is an RDMA container: " + d.Reason)
	}
}

// decide makes the decision about a container from the runtime's event and, if necessary, the kubelet's response. All
// waiting in decide has one common deadline.
func (p *Plugin) decide(ctx context.Context, pod *api.PodSandbox, c policy.Container) policy.Decision {
	ctx, cancel := context.WithTimeout(ctx, p.budget())
	defer cancel()
	facts := p.facts
	var noAnswer error
	if p.Resources != nil {
		facts.Resources = func() ([]string, bool, error) {
			names, known, err := p.Resources.Names(ctx, pod.GetId(), c.Namespace, c.Pod, c.Name)
			noAnswer = err
			return names, known, err
		}
		facts.PodHolds = func() ([]policy.Allotted, bool, error) {
			return p.Resources.PodHolds(ctx, pod.GetId(), c.Namespace, c.Pod)
		}
	}
	facts.HCAs = func() (*hca.Inventory, bool, error) { return p.Inventory.HCAs(ctx) }
	facts.Startable = func() spec.Limit { return p.startable.Load().await(ctx) }
	facts.ReadAgain = func() (*hca.Inventory, bool, error) { return p.Inventory.ReadAgain(ctx) }
	decision := p.policy().Decide(c, facts)
	if decision.Grant == nil && decision.Refusal == nil && noAnswer != nil && !errors.Is(noAnswer, policy.ErrNoKubelet) {
		p.metrics.leftAlone.Inc()
	}
	if decision.Grant != nil && p.specs() == nil {
		decision.Grant.IPCLock = spec.IPCLockNo
	}
	return decision
}

// refuse returns the error with which a container's creation fails. refuse logs the error once, although the kubelet
// keeps retrying the creation.
func (p *Plugin) refuse(c policy.Container, d policy.Decision) error {
	container := fmt.Sprintf("pod %s/%s, container %s", c.Namespace, c.Pod, c.Name)
	if p.throttle.due(container + d.Refusal.Message) {
		p.logOf(c, d).WithField("reason", d.Refusal.Cause).Error("refused: " + d.Refusal.Message)
	}
	return fmt.Errorf("%s: %s: %w", p.Name, container, d.Refusal)
}

// logOf returns a logger with a container's name and the decision about the container. Few containers need a logger, so
// logOf creates loggers on demand.
func (p *Plugin) logOf(c policy.Container, d policy.Decision) logrus.FieldLogger {
	return subjectOf(c, d).log(p.Log)
}
