// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"

	"github.com/containerd/nri/pkg/api"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
)

// PostCreateContainer handles a container that the runtime has just created. The event includes everything that plugins
// and CDI injected. containerd has not created the task yet, but CRI-O has started the first process. The plugin
// confirms the grant. The plugin also adds to containerd's stored spec the parts of the grant that NRI cannot express
// or that another plugin reverted. PostCreateContainer returns no error, since the runtime would only log the error and
// skip the plugins after this one.
func (p *Plugin) PostCreateContainer(ctx context.Context, pod *api.PodSandbox, ctr *api.Container) error {
	pending, found := p.confirmer.pending.take(ctr.GetId())
	if !found && !p.holdsVerbs(pod, ctr) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, p.registration.RequestTimeout()) // for the decision and the write together
	defer cancel()
	if found {
		p.confirmer.confirm(ctx, ContainerOf(pod, ctr), ctr, pending, false)
		return nil
	}
	p.decideLate(ctx, pod, ctr)
	return nil
}

const cameLate = "the container's verbs device appeared after this plugin's response, for example because another " +
	"NRI plugin injects the device through CDI"

// decideLate makes the decision about a container that was not an RDMA container in CreateContainer.
func (p *Plugin) decideLate(ctx context.Context, pod *api.PodSandbox, ctr *api.Container) {
	c := ContainerOf(pod, ctr)
	decision := p.decide(ctx, pod, c)
	log := p.logOf(c, decision)
	switch {
	case decision.Refusal != nil:
		p.metrics.grants.WithLabelValues(grantRefusedLate).Inc()
		log.WithField("reason", decision.Refusal.Cause).Error("a container that the policy refuses is " +
			"running, because " + cameLate + ": " + decision.Refusal.Message)
	case decision.Grant != nil:
		decision.Grant.Devices = nil
		p.confirmer.confirm(ctx, c, ctr, newPendingGrant(c, decision), true)
	case decision.Authored != "":
		p.metrics.authored.Inc()
		log.Info("left alone: " + decision.Reason)
	}
}

// holdsVerbs reports whether a created container has a verbs device.
func (p *Plugin) holdsVerbs(pod *api.PodSandbox, ctr *api.Container) bool {
	return mayHoldVerbs(ctr) && policy.HoldsVerbs(ContainerOf(pod, ctr), p.facts)
}
