// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/agents"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/plugin/podresources"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
)

// Listing contains the reports of the runtimes and the kubelet about the running containers, and the view of the
// containers' processes. No policy has been applied to a Listing.
type Listing struct {
	Called     Options        `json:"called"` // the options of the command that read the listing
	Runtimes   []cri.Identity `json:"runtimes"`
	Skipped    []string       `json:"skipped,omitempty"` // runtimes that do not respond, and the reasons
	Containers []Listed       `json:"containers"`
	Waiting    []string       `json:"waiting,omitempty"`   // pods with a network but without a running container
	Strangers  []int          `json:"strangers,omitempty"` // processes with their own network, outside these containers
}

// Listed is a container as its runtime reports it.
type Listed struct {
	cri.Container
	Resources *Resources      `json:"resources,omitempty"`
	Inside    *process.Inside `json:"inside,omitempty"`
	Scope     *process.Scope  `json:"scope,omitempty"` // nil if unknown

	kubelet *podresources.Client // nil if Resources contains the kubelet's responses
}

// Resources is the kubelet's report about a container's resources.
type Resources struct {
	Names     []string `json:"names,omitempty"`
	Known     bool     `json:"known"`
	Error     string   `json:"error,omitempty"`
	NoKubelet bool     `json:"noKubelet,omitempty"` // no kubelet runs on the node

	Functions []agents.Function `json:"functions,omitempty"` // PCI functions
	// Pod and Claims are the resources and claims of all containers of the pod.
	Pod    []policy.Allotted `json:"pod,omitempty"`
	Claims bool              `json:"claims,omitempty"`
}

// list queries the runtimes. The kubelet and the containers' processes are queried later, when a decision needs the
// result. If the result is to be kept, list queries them at once.
func (s *Snapshot) list(ctx context.Context, _ string) (found Listing, err error) {
	runtimes, skipped, err := cri.Connect(ctx, s.Endpoint, s.Root, s.Each())
	if err != nil {
		return found, err
	}
	found.Called = s.Options
	for _, r := range runtimes {
		defer r.Close()
		found.Runtimes = append(found.Runtimes, r.Identity)
	}
	for _, err := range skipped {
		found.Skipped = append(found.Skipped, err.Error())
	}
	containers, err := cri.Containers(ctx, runtimes, s.Pods...)
	if err != nil {
		return found, err
	}
	for _, r := range runtimes {
		waiting, err := r.Waiting(ctx, containers)
		if err != nil {
			found.Skipped = append(found.Skipped, err.Error())
		}
		found.Waiting = append(found.Waiting, waiting...)
	}
	kubelet := podresources.New(podresources.Options{
		Socket: filepath.Join(s.Root, podresources.DefaultSocket),
		Budget: s.Each(),
	})
	silent := error(nil)
	config := policy.Default()
	if p, _, err := s.Policy(); err == nil { // without a policy, nothing is compared
		config = p.Config()
	}
	for _, c := range containers {
		maps.DeleteFunc(c.Annotations, func(key, _ string) bool { return !config.OptIn.Reads(key) })
		own, known := process.Process{PID: c.PID}.OwnNetwork(s.Root)
		c.HostNetwork = known && !own
		c.Sandboxed = c.Sandboxed || c.PID != 0 && process.Process{PID: c.PID}.Sandboxed(s.Root)
		l := Listed{Container: c, kubelet: kubelet}
		if s.Keep && silent == nil {
			l.Resources = &Resources{}
			l.Resources.Names, l.Resources.Known, silent = l.resources()
			l.Resources.Pod, l.Resources.Claims, _ = l.podHolds() // one response contains both
			asked, _ := s.Kubelet()                               // it has just answered
			l.Resources.Functions = asked.Functions[c.Namespace+"/"+c.Pod+"/"+c.Name]
		}
		if s.Keep && silent != nil {
			l.Resources = &Resources{Error: silent.Error(), NoKubelet: errors.Is(silent, policy.ErrNoKubelet)}
		}
		found.Containers = append(found.Containers, l)
	}
	if s.Keep {
		sideBySide(len(found.Containers), func(i int) {
			if l := &found.Containers[i]; l.PID != 0 {
				first, _ := s.Limits().Process(l.PID) // on error, it counts as not in a user namespace
				inside := process.Look(s.Root, l.PID, !first.UserNamespace, s.Each())
				l.Inside = &inside
				l.Scope = l.scope(s.Root)
			}
		})
		found.Strangers = strangers(s.Root, found.Containers)
	}
	return found, nil
}

// ofPods returns the listing of these pods, or of all pods if none are given. The listing in an archive contains all
// pods.
func (l Listing) ofPods(pods []string) (Listing, error) {
	if len(pods) == 0 {
		return l, nil
	}
	pod := func(c Listed) string { return c.Namespace + "/" + c.Pod }
	l.Containers = slices.DeleteFunc(slices.Clone(l.Containers),
		func(c Listed) bool { return !slices.Contains(pods, pod(c)) })
	for _, name := range pods {
		if !slices.ContainsFunc(l.Containers, func(c Listed) bool { return pod(c) == name }) {
			return l, fmt.Errorf("no container of pod %s is running on this node", name)
		}
	}
	return l, nil
}

// resources returns the resources that the kubelet reports for a container.
func (l *Listed) resources() ([]string, bool, error) {
	if l.kubelet == nil {
		return l.Resources.resources()
	}
	return l.kubelet.Names(context.Background(), l.SandboxID, l.Namespace, l.Pod, l.Name)
}

// podHolds returns the resources and claims that the kubelet reports for a container's pod.
func (l *Listed) podHolds() ([]policy.Allotted, bool, error) {
	if l.kubelet == nil {
		return l.Resources.podHolds()
	}
	return l.kubelet.PodHolds(context.Background(), l.SandboxID, l.Namespace, l.Pod)
}

// resources returns the kubelet's report at the time when the listing was kept.
func (r *Resources) resources() ([]string, bool, error) {
	switch {
	case r == nil:
		return nil, false, errors.New("the kubelet was not queried")
	case r.NoKubelet:
		return nil, false, fmt.Errorf("%w%s", policy.ErrNoKubelet, strings.TrimPrefix(r.Error, policy.ErrNoKubelet.Error()))
	case r.Error != "":
		return nil, false, errors.New(r.Error)
	}
	return r.Names, r.Known, nil
}

// podHolds returns the kubelet's report about the pod.
func (r *Resources) podHolds() ([]policy.Allotted, bool, error) {
	if _, _, err := r.resources(); err != nil {
		return nil, false, err
	}
	return r.Pod, r.Claims, nil
}

// inside returns the view of a container's processes.
func (s *Snapshot) inside(l Listed, hostUsers bool) process.Inside {
	switch {
	case l.Inside != nil:
		return *l.Inside
	case s.Archived || !s.Inside && !l.MOFED:
		return process.Inside{User: -1}
	}
	return process.Look(s.Root, l.PID, hostUsers, s.Each())
}
