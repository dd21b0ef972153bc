// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/rdma-spec/rdma-spec/plugin/requirement"
)

// Configure handles the runtime's first call, and returns the events that the plugin subscribes to. Every container on
// the node waits while the plugin handles an event. The events depend only on the runtime, so a changed configuration
// never requires another registration.
func (p *Plugin) Configure(ctx context.Context, config, runtime, running string) (api.EventMask, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	needs := requirement.Adjusting
	if p.Validate {
		needs = requirement.Validating
	}
	if err := needs.Check(runtime, running); err != nil {
		return 0, err
	}
	p.config.HandedOver(config, runtime)
	p.keepsSpecs.Store(runtime == "containerd")
	p.confirmer.unseenLogged.Store(false)
	unseen := p.confirmable(runtime)
	p.confirms.Store(unseen == nil)
	if p.StoredSpecs != nil && p.specs() == nil {
		p.warnOnce("RDMA containers get their memlock and devices, but no CAP_IPC_LOCK, because " +
			withoutStoredSpecs(runtime))
	}
	if most := p.budget(); most < p.Budget {
		p.Log.Warnf("--budget %s is lowered to %s: the runtime waits only %s for a plugin's response", p.Budget, most,
			p.registration.RequestTimeout())
	}
	var events api.EventMask
	switch {
	case p.Validate:
		events.Set(api.Event_VALIDATE_CONTAINER_ADJUSTMENT)
	case unseen == nil:
		events.Set(api.Event_CREATE_CONTAINER, api.Event_POST_CREATE_CONTAINER)
	default:
		p.confirmer.cannotConfirm(unseen)
		events.Set(api.Event_CREATE_CONTAINER)
	}
	return events, nil
}

func (p *Plugin) warnOnce(line string) {
	if p.throttle.due(line) {
		p.Log.Warn(line)
	}
}

// confirmable returns nil if PostCreateContainer can confirm grants. When the runtime calls PostCreateContainer,
// containerd has stored the container's spec, and CRI-O has started the container's first process.
func (p *Plugin) confirmable(runtime string) error {
	switch {
	case p.specs() != nil:
		return nil
	case runtime == "cri-o" && p.Limits != nil:
		return nil
	}
	return fmt.Errorf("%s has no known API for confirming grants", runtime)
}

// budget returns the longest total time that a request may wait for information. A quarter of the runtime's timeout is
// reserved for the response itself.
func (p *Plugin) budget() time.Duration { return min(p.Budget, p.registration.RequestTimeout()*3/4) }

// Synchronize receives the runtime's lists of pods and containers when the runtime registers the plugin. The runtime
// creates no container until Synchronize returns, so Synchronize only copies the lists.
func (p *Plugin) Synchronize(_ context.Context, pods []*api.PodSandbox,
	containers []*api.Container) ([]*api.ContainerUpdate, error) {
	p.confirmer.dropListed(containers)
	p.config.Registers()
	p.Log.WithField("containers", len(containers)).Info("registered")
	p.lookAt(listing{pods, slices.DeleteFunc(containers, func(ctr *api.Container) bool { return !mayHoldVerbs(ctr) })})
	return nil, nil
}

// crioLine grants IPC_LOCK to every container on a CRI-O node. The line replaces CRI-O's default list
// (internal/config/capabilities, Default), and therefore repeats that list. The line has single quotes, since logs
// escape double quotes.
const crioLine = "crio.runtime.default_capabilities = ['CHOWN', 'DAC_OVERRIDE', 'FSETID', 'FOWNER', 'SETGID', " +
	"'SETUID', 'SETPCAP', 'NET_BIND_SERVICE', 'KILL', 'IPC_LOCK']"

// withoutStoredSpecs explains why the plugin cannot edit stored specs with a runtime, and how to grant IPC_LOCK
// instead.
func withoutStoredSpecs(runtime string) string {
	const inPod = "request IPC_LOCK in the pod, with securityContext.capabilities.add: [IPC_LOCK]"
	if runtime == "cri-o" {
		return "CRI-O has no API for changing a container's spec: " + inPod +
			". Alternatively, to grant IPC_LOCK to every container on the node, create the file " +
			"/etc/crio/crio.conf.d/91-rdma-ipc-lock.conf with this line, which replaces CRI-O's default " +
			"capabilities: " + crioLine
	}
	return fmt.Sprintf("%s has no known API for changing a container's spec: %s", runtime, inPod)
}
