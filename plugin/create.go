// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/sirupsen/logrus"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// CreateContainer is called for every container that the runtime creates. It makes one decision and returns its
// adjustment. An error fails the container's creation; only refusals are errors, so that a fault of the plugin never
// costs a container.
func (p *Plugin) CreateContainer(ctx context.Context, pod *api.PodSandbox,
	ctr *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	start := time.Now()
	c := ContainerOf(pod, ctr)
	decision := p.decide(ctx, pod, c)
	p.metrics.count(decision, start)
	// A function, since nearly all containers of a node need no logger.
	log := func() logrus.FieldLogger { return p.decided(c, decision) }
	for _, warning := range decision.Warnings {
		if p.throttle.due(c.Namespace + "/" + c.Pod + " " + warning) { // once for a pod
			log().Warn(warning)
		}
	}
	switch {
	case decision.Refusal != nil:
		return nil, nil, p.refuse(log(), c, decision.Refusal)
	case decision.Grant == nil:
		switch {
		case decision.Reason == "":
		case decision.Signal == policy.SignalNone:
			log().Info("left alone: " + decision.Reason)
		default:
			log().Warn("left alone although it is an RDMA container: " + decision.Reason)
		}
		return nil, nil, nil
	}
	if p.confirms.Load() {
		p.owed.put(ctr.GetId(), promised(c, decision))
	} else {
		p.answered(log(), *decision.Grant)
	}
	return adjust(c, *decision.Grant), nil, nil
}

// decide makes the one decision about a container, from the runtime's event and, on demand, the kubelet's answer. What
// it waits for has one deadline.
func (p *Plugin) decide(ctx context.Context, pod *api.PodSandbox, c policy.Container) policy.Decision {
	ctx, cancel := context.WithTimeout(ctx, p.budget())
	defer cancel()
	facts := p.facts
	var silent error
	if p.Resources != nil {
		c.Resources = func() (names []string, known bool, err error) {
			names, known, silent = p.Resources.Names(ctx, pod.GetId(), c.Namespace, c.Pod, c.Name)
			return names, known, silent
		}
		c.PodHolds = func() ([]policy.Allotted, bool, error) {
			return p.Resources.PodHolds(ctx, pod.GetId(), c.Namespace, c.Pod)
		}
	}
	facts.HCAs = func() (*hca.Inventory, error) { return p.Inventory.HCAs(ctx) }
	facts.Startable = func() spec.Limit { return p.startable.Load().within(ctx) }
	facts.Again = func() (*hca.Inventory, error) { return p.Inventory.Again(ctx) }
	decision := p.policy().Decide(c, facts)
	if decision.Grant == nil && decision.Refusal == nil && silent != nil && !errors.Is(silent, policy.ErrNoKubelet) {
		p.metrics.leftAlone.Inc()
	}
	if decision.Grant != nil && p.specs() == nil {
		decision.Grant.IPCLock = spec.IPCLockNo
	}
	return decision
}

// refuse returns the error that fails a container's creation. It logs it once, although the creation is tried again and
// again.
func (p *Plugin) refuse(log logrus.FieldLogger, c policy.Container, refusal *policy.Refusal) error {
	subject := fmt.Sprintf("pod %s/%s, container %s", c.Namespace, c.Pod, c.Name)
	if p.throttle.due(subject + refusal.Message) {
		log.WithField("cause", refusal.Cause).Error("refused: " + refusal.Message)
	}
	return fmt.Errorf("%s: %s: %w", p.Name, subject, refusal)
}

// decided returns a logger with a container's name and the decision about it.
func (p *Plugin) decided(c policy.Container, d policy.Decision) logrus.FieldLogger {
	return p.about(promise{c.Namespace, c.Pod, c.Name, d.Signal, d.Evidence, d.Rule, d.LeftOut, spec.Grant{}, time.Time{}})
}

func (p *Plugin) about(m promise) logrus.FieldLogger {
	fields := logrus.Fields{"pod": m.Namespace + "/" + m.Pod, "container": m.Container,
		"signal": m.Signal, "evidence": m.Evidence, "rule": m.Rule}
	if len(m.LeftOut) > 0 {
		fields["left_out"] = strings.Join(m.LeftOut, ", ")
	}
	return p.Log.WithFields(fields)
}
