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

// look counts the containers of a listing that have a verbs device and a lower memlock than the policy grants:
// they were created without the plugin, or under another policy. It raises none, and keeps only their number.
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
	memlocks := &listedMemlocks{limits: p.Limits}
	if p.Limits != nil {
		memlocks.running = sync.OnceValues(p.Limits.Containers)
	}
	if p.keepsSpecs.Load() {
		memlocks.specs = p.RunningSpecs
	}
	var (
		count   int
		named   []string // the first few
		unknown error    // why some containers could not be looked at
	)
	for _, ctr := range l.containers {
		// Of one without a sandbox, which a runtime could not load, nobody knows the namespace.
		pod, known := pods[ctr.GetPodSandboxId()]
		if !known || ctr.GetState() == api.ContainerState_CONTAINER_STOPPED || !p.holdsVerbs(pod, ctr) {
			continue
		}
		c := ContainerOf(pod, ctr)
		want := p.gives(c)
		if want == 0 {
			continue
		}
		has, err := memlocks.of(ctx, c, ctr, want)
		if err != nil {
			unknown = err
			continue
		}
		if has >= want {
			continue
		}
		count++
		if count <= lookNames {
			named = append(named, fmt.Sprintf("%s/%s container %s", c.Namespace, c.Pod, c.Name))
		}
	}
	p.below.Store(&count)
	if count > 0 {
		p.Log.WithField("containers", count).Warnf("running RDMA containers have a lower memlock than the policy "+
			"grants, because they were created without this plugin or under another policy: %s: to raise it, run: %s",
			firstOf(named, count), p.Raise)
	}
	if unknown != nil {
		p.Log.WithError(unknown).Warn("the memlock of some running RDMA containers is unknown: to compare them with " +
			"the policy, run rdma-spec status on the node")
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
func (p *Plugin) gives(c policy.Container) spec.Limit {
	c.Injected = p.policy().Injects(c)
	facts := p.facts
	facts.Resources = func() ([]string, bool, error) { return nil, false, nil }
	decision := p.policy().Decide(c, facts)
	if decision.Grant == nil {
		return 0
	}
	return decision.Grant.Memlock
}

// listedMemlocks finds what the containers of one listing were given.
type listedMemlocks struct {
	specs   RunningSpecs                     // nil: there are none
	reads   int                              // of specs
	limits  Limits                           // nil: nobody can read them
	running func() (map[string][]int, error) // read once
}

// errTooMany means that a look has read as many stored specs as it may.
var errTooMany = fmt.Errorf("the plugin reads only %d stored specs when it registers", lookSpecsMost)

// of returns the memlock that a container was given: as the runtime lists it, as its stored spec has it, or as its
// first process does. The error says why it is unknown.
func (m *listedMemlocks) of(ctx context.Context, c policy.Container, ctr *api.Container,
	want spec.Limit) (spec.Limit, error) {
	if c.Memlock.Soft >= want { // as containerd says from 2.3 on
		return c.Memlock.Soft, nil
	}
	if m.specs != nil {
		limit, known, err := m.stored(ctx, ctr.GetId())
		if errors.Is(err, storedspec.ErrNotFound) {
			return want, nil // it has ended
		}
		if known || err != nil {
			return limit.Soft, err
		}
	}
	if m.limits == nil {
		return 0, errUnseen
	}
	limit, err := firstMemlock(m.limits, ctr, m.first)
	return limit.Hard, err // its program may have lowered the soft one
}

// first returns the first process of a container; 0: it has none.
func (m *listedMemlocks) first(container string) (int, error) {
	all, err := m.running()
	if err != nil || len(all[container]) == 0 {
		return 0, err
	}
	return all[container][0], nil
}

// stored reads what a container's stored spec sets; known is false where it sets no memlock.
func (m *listedMemlocks) stored(ctx context.Context, container string) (limit spec.Rlimit, known bool, err error) {
	if m.reads == lookSpecsMost {
		return limit, false, errTooMany
	}
	m.reads++
	text, err := m.specs.Read(ctx, container)
	if err != nil {
		return limit, false, err
	}
	return spec.Memlock(text)
}
