// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec"
)

// causeUnadjusted is the cause of a refusal: the container would start without what the policy gives.
const causeUnadjusted policy.Cause = "unadjusted"

// ValidateContainerAdjustment is called for every container after all plugins have adjusted it. It makes the decision
// that the plugin should have made, about the adjusted container: what the grant would still change is what the
// container lacks. CAP_IPC_LOCK does not count, since the container gets it later.
func (p *Plugin) ValidateContainerAdjustment(ctx context.Context,
	request *api.ValidateContainerAdjustmentRequest) error {
	start, pod, ctr := time.Now(), request.GetPod(), request.GetContainer()
	before := ContainerOf(pod, ctr)
	carryOut(ctr, request.GetAdjust())
	c := ContainerOf(pod, ctr)
	c.Injected = p.policy().Injects(c) && !policy.HoldsVerbs(before, p.facts)
	decision := p.decide(ctx, pod, c)
	if decision.Grant != nil {
		decision.Refusal = unadjusted(c, decision)
		decision.Grant = nil // a validator gives nothing
	}
	p.metrics.count(decision, start)
	if decision.Refusal == nil {
		return nil
	}
	return p.refuse(p.decided(c, decision), c, decision.Refusal)
}

// unadjusted refuses a container that lacks something of its grant.
func unadjusted(c policy.Container, d policy.Decision) *policy.Refusal {
	var lacks []string
	if c.Memlock.Soft < d.Grant.Memlock {
		lacks = append(lacks, "memlock "+d.Grant.Memlock.String())
	}
	if devices := lacking(c, d.Grant.Devices); len(devices) > 0 {
		lacks = append(lacks, "devices "+spec.Grant{Devices: devices}.DeviceNames())
	}
	if len(lacks) == 0 {
		return nil
	}
	return &policy.Refusal{Cause: causeUnadjusted,
		Message: fmt.Sprintf("the RDMA container (%s: %s) would start without %s, which rule %q gives: "+
			"see that nri-rdma is registered on this node, with the same configuration as its validator",
			d.Signal, d.Evidence, strings.Join(lacks, " and "), d.Rule)}
}

// carryOut applies an adjustment to a container, in all that a decision depends on.
func carryOut(ctr *api.Container, adjustment *api.ContainerAdjustment) {
	ctr.Rlimits = append(ctr.GetRlimits(), adjustment.GetRlimits()...)
	if ctr.Linux == nil {
		ctr.Linux = &api.LinuxContainer{}
	}
	for _, d := range adjustment.GetLinux().GetDevices() {
		path, removed := d.IsMarkedForRemoval()
		ctr.Linux.Devices = slices.DeleteFunc(ctr.Linux.GetDevices(),
			func(had *api.LinuxDevice) bool { return had.GetPath() == path })
		if !removed {
			ctr.Linux.Devices = append(ctr.Linux.Devices, d)
		}
	}
	if limit := adjustment.GetLinux().GetResources().GetMemory().GetLimit(); limit != nil {
		if ctr.Linux.Resources == nil {
			ctr.Linux.Resources = &api.LinuxResources{}
		}
		ctr.Linux.Resources.Memory = &api.LinuxMemory{Limit: limit}
	}
}
