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

// These limits apply to the check of running containers at registration. The check does not count containers beyond the
// limits.
const (
	lookSpecsMost = 200
	lookWithin    = 10 * time.Second
	lookNames     = 3 // maximum number of containers that the log names
)

// listing contains the pods that the runtime lists, and the containers that might have a verbs device.
type listing struct {
	pods       []*api.PodSandbox
	containers []*api.Container
}

// lookAt queues a listing for lookAll. The new listing replaces a listing that is still queued.
func (p *Plugin) lookAt(l listing) {
	if p.Validate {
		return
	}
	select {
	case <-p.listings:
	default:
	}
	p.listings <- l // does not block: the runtime registers one plugin at a time
}

// lookAll checks each listing in the background, until the context is done.
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

// look counts the listed containers that have a verbs device and a lower memlock than the policy grants. Containers
// with a lower memlock were created without the plugin or under another policy. look raises no limit, and stores only
// the number.
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
		named   []string // the names of the first lookNames containers
		unknown error    // why some containers could not be checked
	)
	for _, ctr := range l.containers {
		// If the runtime could not load a container's sandbox, the container's namespace is unknown.
		pod, known := pods[ctr.GetPodSandboxId()]
		if !known || ctr.GetState() == api.ContainerState_CONTAINER_STOPPED || !p.holdsVerbs(pod, ctr) {
			continue
		}
		c := ContainerOf(pod, ctr)
		want := p.grantedMemlock(c)
		if want == 0 {
			continue
		}
		has, err := memlocks.memlock(ctx, c, ctr, want)
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
	if count > 0 {
		p.Log.WithField("containers", count).Warnf("running RDMA containers (%s) have a lower memlock than the "+
			"current policy grants, because they were created without this plugin or under another policy: to raise their "+
			"memlock, run %s", firstOf(named, count), p.Raise)
	}
	if unknown != nil {
		p.Log.WithError(unknown).Warn("the memlock of some running RDMA containers is unknown: to compare them with the " +
			"policy, run rdma-spec status on the node")
	}
	p.below.Store(&count) // stored last, so that the log is complete once the number is visible
}

func firstOf(named []string, count int) string {
	text := strings.Join(named, ", ")
	if more := count - len(named); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// grantedMemlock returns the memlock that the policy grants to a running container, or 0 if the policy grants none.
// grantedMemlock does not ask the kubelet, so the result can be too low.
func (p *Plugin) grantedMemlock(c policy.Container) spec.Limit {
	c.Injected = p.policy().Injects(c)
	facts := p.facts
	facts.Resources = func() ([]string, bool, error) { return nil, false, nil }
	decision := p.policy().Decide(c, facts)
	if decision.Grant == nil {
		return 0
	}
	return decision.Grant.Memlock
}

// listedMemlocks finds the memlocks of the containers in one listing.
type listedMemlocks struct {
	specs   RunningSpecs                     // nil if stored specs cannot be read
	reads   int                              // number of specs that were read
	limits  Limits                           // nil if limits cannot be read
	running func() (map[string][]int, error) // read once
}

// errTooMany means that the maximum number of stored specs was read.
var errTooMany = fmt.Errorf("the plugin reads only %d stored specs when it registers", lookSpecsMost)

// memlock returns a container's memlock according to the runtime's list, the stored spec, or the first process. The
// error explains why the memlock is unknown.
func (m *listedMemlocks) memlock(ctx context.Context, c policy.Container, ctr *api.Container,
	want spec.Limit) (spec.Limit, error) {
	if c.Memlock.Soft >= want { // reported by containerd 2.3 and later
		return c.Memlock.Soft, nil
	}
	if m.specs != nil {
		limit, known, err := m.storedMemlock(ctx, ctr.GetId())
		if errors.Is(err, storedspec.ErrNotFound) {
			return want, nil // the container has ended
		}
		if known || err != nil {
			return limit.Soft, err
		}
	}
	if m.limits == nil {
		return 0, errUnseen
	}
	limit, err := firstMemlock(m.limits, ctr, m.firstPID)
	return limit.Hard, err // the program may have lowered its soft limit
}

// firstPID returns the PID of a container's first process, or 0 if the container has no process.
func (m *listedMemlocks) firstPID(container string) (int, error) {
	all, err := m.running()
	if err != nil || len(all[container]) == 0 {
		return 0, err
	}
	return all[container][0], nil
}

// storedMemlock returns the memlock in a container's stored spec. The result known is false if the spec sets no
// memlock.
func (m *listedMemlocks) storedMemlock(ctx context.Context, container string) (
	limit spec.Rlimit, known bool, err error) {
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
