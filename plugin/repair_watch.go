// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
	"unique"

	"github.com/containerd/nri/pkg/api"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// watched is a container that may run below policy: what a decision about it depends on, and no more, since a node may have
// thousands. It is never changed.
type watched struct {
	policy.Container // without its devices
	packed           deviceList
	id, sandbox      string
	reported         spec.Rlimit // the memlock that the runtime has reported or was told; zero where it was neither
	since            time.Time
	listed           bool // the runtime had it already when the plugin registered
	evident          bool // it has a signal of its own: only the policy decides whether that counts
}

// watchMost bounds how many containers are kept of those that are created while the plugin is registered.
const watchMost = 10_000

// watchlist holds the containers that may run below policy. Nobody tells when one of them is gone: who finds that it has no
// processes takes it off the list.
type watchlist struct {
	mu         sync.Mutex
	containers map[string]*watched
	listed     *policy.Policy // for which the runtime's containers were looked through; nil if they were not
}

// list looks through the containers that the runtime has when the plugin registers. Those that are not on its list are gone.
func (l *watchlist) list(p *policy.Policy, pods []*api.PodSandbox, containers []*api.Container, now time.Time) {
	byID := make(map[string]*api.PodSandbox, len(pods))
	for _, pod := range pods {
		byID[pod.GetId()] = pod
	}
	found := map[string]*watched{}
	for _, ctr := range containers {
		w := watchedOf(containerOf(byID[ctr.GetPodSandboxId()], ctr), ctr, nil, now)
		w.listed = true
		if w.evident || p.NeedsResources() {
			found[w.id] = w
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.containers, l.listed = found, p
}

// add puts a container on the list that is created with a grant, since another configuration may give it more while it runs, or
// without one because the kubelet did not tell what it holds.
func (l *watchlist) add(c policy.Container, ctr *api.Container, grant spec.Grant, now time.Time) {
	w := watchedOf(c, ctr, grant.Devices, now)
	w.evident = w.evident || !reflect.DeepEqual(grant, spec.Grant{})
	w.reported, _ = w.reported.Raise(grant.Memlock)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.containers == nil {
		l.containers = map[string]*watched{}
	}
	if len(l.containers) < watchMost {
		l.containers[w.id] = w
	}
}

func (l *watchlist) remove(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.containers, id)
}

// all gives the containers in the order of their names; those that bear a signal of their own come first, since about the others the
// kubelet has to be asked.
func (l *watchlist) all() []*watched {
	l.mu.Lock()
	all := slices.Collect(maps.Values(l.containers))
	l.mu.Unlock()
	slices.SortFunc(all, func(a, b *watched) int {
		return cmp.Or(
			cmp.Compare(b.rank(), a.rank()), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Pod, b.Pod),
			strings.Compare(a.Name, b.Name), strings.Compare(a.id, b.id),
		)
	})
	return all
}

// outdated says whether a policy may name containers that were not kept, because the kubelet was not to be asked about them, or about other
// resources: then the runtime has to list its containers anew.
func (l *watchlist) outdated(p *policy.Policy) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.listed != nil && p.NeedsResources() && !slices.Equal(resourceGlobs(p), resourceGlobs(l.listed))
}

// resourceGlobs gives the resources that a policy asks the kubelet about.
func resourceGlobs(p *policy.Policy) []string {
	config := p.Config()
	globs := slices.Clone(config.OptIn.Resources)
	for _, r := range config.Rules {
		globs = append(globs, r.Match.Resources...)
	}
	return globs
}

// watchedOf keeps of a container what a decision depends on; injected are the devices that it has beside its own.
func watchedOf(c policy.Container, ctr *api.Container, injected []hca.Device, now time.Time) *watched {
	w := &watched{Container: c, id: ctr.GetId(), sandbox: ctr.GetPodSandboxId(), since: now}
	w.reported, _ = reportedMemlock(ctr)
	devices := characterDevices(c)
	w.evident = len(w.Annotations) > 0 || len(devices) > 0
	for _, d := range injected {
		devices = append(devices, policy.Device{Path: d.Path, Type: "c", Major: int64(d.Major), Minor: int64(d.Minor)})
	}
	w.packed, w.Devices, w.Resources = pack(devices), nil, nil
	// Thousands of containers have few different words for these.
	for _, text := range []*string{&w.Namespace, &w.RuntimeHandler, &w.Name} {
		*text = unique.Make(*text).Value()
	}
	return w
}

// characterDevices gives the devices that may be a signal. A container with every device of the host has none.
func characterDevices(c policy.Container) []policy.Device {
	if c.AllDevices {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(c.Devices), func(d policy.Device) bool { return d.Type != "c" && d.Type != "u" })
}

// container gives what a decision about the container depends on.
func (w *watched) container() policy.Container {
	c := w.Container
	c.Devices = w.packed.devices()
	return c
}

// young says whether what is seen of the container may be about to change by itself.
func (w *watched) young() bool { return time.Since(w.since) < settling }

func (w *watched) rank() int {
	if w.evident {
		return 1
	}
	return 0
}

// once gives a node whose inventory is read at most once.
func once(node policy.Node) policy.Node {
	return policy.Node{Verbs: node.Verbs, HCAs: sync.OnceValues(node.HCAs), Memory: node.Memory}
}
