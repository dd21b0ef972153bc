// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec"
	"github.com/rdma-spec/rdma-spec/spec"
)

// What a look at registration may cost. The containers that are left are counted by nobody.
const (
	lookSpecsMost = 200
	lookWithin    = 10 * time.Second
	lookNames     = 3 // how many containers the log names
)

// listing is what the runtime lists of its pods, and of the containers that may hold a verbs device.
type listing struct {
	pods       []*api.PodSandbox
	containers []*api.Container
}

// lookAt has lookAll look at a listing, in place of one before that it has not looked at yet.
func (p *Plugin) lookAt(l listing) {
	if p.Validate {
		return
	}
	select {
	case <-p.listings:
	default:
	}
	p.listings <- l // the runtime registers one plugin at a time
}

// lookAll looks at each listing, beside the requests, until the context is done.
func (p *Plugin) lookAll(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case l := <-p.listings:
			p.look(ctx, l)
		}
	}
}

// look counts the containers of a listing that hold a verbs device and have less memlock than the policy gives: they
// were created without the plugin, or under another policy. It raises none, and keeps nothing but their number.
func (p *Plugin) look(ctx context.Context, l listing) {
	p.below.Store(nil)
	if p.policy().Missing() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	pods := make(map[string]*api.PodSandbox, len(l.pods))
	for _, pod := range l.pods {
		pods[pod.GetId()] = pod
	}
	count, reads, unseen := 0, 0, error(nil)
	running := sync.OnceValues(func() (map[string][]int, error) { return p.Limits.Containers() })
	var named []string
	for _, ctr := range l.containers {
		// Of one without a sandbox, which a runtime could not load, nobody knows the namespace.
		pod, known := pods[ctr.GetPodSandboxId()]
		if !known || ctr.GetState() == api.ContainerState_CONTAINER_STOPPED || !p.holdsVerbs(pod, ctr) {
			continue
		}
		c := ContainerOf(pod, ctr)
		want := p.gives(ctx, c)
		if want == 0 {
			continue
		}
		has, err := p.runs(ctx, c, ctr, want, &reads, running)
		switch {
		case err != nil:
			unseen = err
		case has < want:
			if count++; count <= lookNames {
				named = append(named, fmt.Sprintf("%s/%s container %s", c.Namespace, c.Pod, c.Name))
			}
		}
	}
	p.below.Store(&count)
	if count > 0 {
		p.Log.WithField("containers", count).Warnf("RDMA containers that run have less memlock than the policy gives, since "+
			"they were created without this plugin, or under another policy: %s: raise them with: %s",
			firstOf(named, count), p.Raise)
	}
	if unseen != nil {
		p.Log.WithError(unseen).Warn("what some RDMA containers have that run is unknown: rdma-spec status on the node " +
			"compares them with the policy")
	}
}

func firstOf(named []string, count int) string {
	text := strings.Join(named, ", ")
	if more := count - len(named); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// gives returns the memlock that the policy gives a container that runs; 0: none. The kubelet is not asked: what is
// unknown gives less.
func (p *Plugin) gives(ctx context.Context, c policy.Container) spec.Limit {
	c.Resources = func() ([]string, bool, error) { return nil, false, nil }
	c.Injected = p.policy().Injects(c)
	facts := p.facts
	facts.Startable = func() spec.Limit { return p.startable.Load().within(ctx) }
	decision := p.policy().Decide(c, facts)
	if decision.Grant == nil {
		return 0
	}
	return decision.Grant.Memlock
}

// errTooMany means that a look has read as many stored specs as it may.
var errTooMany = fmt.Errorf("only %d stored specs are read when the plugin registers", lookSpecsMost)

// runs returns the memlock that a container was given: as the runtime lists it, as its stored spec has it, or as its
// first process does. The error says why it is unknown.
func (p *Plugin) runs(ctx context.Context, c policy.Container, ctr *api.Container, want spec.Limit,
	reads *int, running func() (map[string][]int, error)) (spec.Limit, error) {
	if c.Memlock.Soft >= want { // as containerd says from 2.3 on
		return c.Memlock.Soft, nil
	}
	if p.keepsSpecs.Load() && p.RunningSpecs != nil {
		if *reads == lookSpecsMost {
			return 0, errTooMany
		}
		*reads++
		text, err := p.RunningSpecs.Read(ctx, ctr.GetId())
		if errors.Is(err, storedspec.ErrNotFound) {
			return want, nil // it has ended
		}
		if err != nil {
			return 0, err
		}
		stored, err := spec.Grant{}.Confirm(text, spec.BaseSets)
		switch {
		case err != nil:
			return 0, err
		case stored.MemlockKnown:
			return stored.Memlock.Soft, nil
		}
	}
	if p.Limits == nil {
		return 0, errUnseen
	}
	limit, err := p.firstMemlock(ctr, running)
	return limit.Hard, err // its program may have lowered the soft one
}
