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

// Configure handles the runtime's first call. It returns the events that the plugin subscribes to; every container on
// the node waits for them. They depend only on the runtime, so a changed configuration never requires another
// registration.
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
		p.warnOnce("RDMA containers get memlock and devices, but no CAP_IPC_LOCK: " + withoutStoredSpecs(runtime))
	}
	if most := p.budget(); most < p.Budget {
		p.Log.Warnf("--budget %s is lowered to %s: the runtime waits %s for a plugin's response", p.Budget, most,
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

// confirmable returns nil if the plugin can see in PostCreateContainer what containers got: containerd has stored their
// specs by then, and CRI-O has started their first process.
func (p *Plugin) confirmable(runtime string) error {
	switch {
	case p.specs() != nil:
		return nil
	case runtime == "cri-o" && p.Limits != nil:
		return nil
	}
	return fmt.Errorf("%s has no known API for confirming grants", runtime)
}

// budget returns how long a request may wait in total for what it needs. A quarter of the runtime's timeout is reserved
// for the response itself.
func (p *Plugin) budget() time.Duration { return min(p.Budget, p.registration.RequestTimeout()*3/4) }

// Synchronize is called when the runtime registers the plugin. The runtime creates no container until it returns, so it
// only copies the lists.
func (p *Plugin) Synchronize(_ context.Context, pods []*api.PodSandbox,
	containers []*api.Container) ([]*api.ContainerUpdate, error) {
	p.confirmer.dropListed(containers)
	p.config.Registers()
	p.Log.WithField("containers", len(containers)).Info("registered")
	p.lookAt(listing{pods, slices.DeleteFunc(containers, func(ctr *api.Container) bool { return !mayHoldVerbs(ctr) })})
	return nil, nil
}

// crioLine grants IPC_LOCK to every container on a CRI-O node. It replaces CRI-O's default list
// (internal/config/capabilities, Default), and therefore repeats it. It has single quotes, since logs escape double
// quotes.
const crioLine = "crio.runtime.default_capabilities = ['CHOWN', 'DAC_OVERRIDE', 'FSETID', 'FOWNER', 'SETGID', " +
	"'SETUID', 'SETPCAP', 'NET_BIND_SERVICE', 'KILL', 'IPC_LOCK']"

// withoutStoredSpecs explains why stored specs cannot be edited with a runtime, and what to do.
func withoutStoredSpecs(runtime string) string {
	const inPod = "request IPC_LOCK in the pod, with securityContext.capabilities.add: [IPC_LOCK]"
	if runtime == "cri-o" {
		return "CRI-O has no API to change a container's spec; " + inPod +
			"; or, to grant IPC_LOCK to every container on the node, create the file " +
			"/etc/crio/crio.conf.d/91-rdma-ipc-lock.conf with the following line, which replaces CRI-O's list of " +
			"default capabilities: " + crioLine
	}
	return fmt.Sprintf("%s has no known API to change a container's spec; %s", runtime, inPod)
}
