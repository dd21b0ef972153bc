// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/plugin/podresources"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
)

// Listing is what the runtimes and the kubelet say of the containers that run, and what their processes see. No policy
// has judged it.
type Listing struct {
	Called     Called           `json:"called"`
	Runtimes   []ServingRuntime `json:"runtimes"`
	Skipped    []string         `json:"skipped,omitempty"` // runtimes that do not answer, and why
	Containers []Listed         `json:"containers"`
}

// Called is how a command that looks at the node is called.
type Called struct {
	Config   string `json:"config,omitempty"`
	Root     string `json:"root,omitempty"`
	Endpoint string `json:"endpoint,omitempty"`
}

// Listed is a container as its runtime has it.
type Listed struct {
	Container policy.Container `json:"container"`
	Runtime   ServingRuntime   `json:"runtime"`
	ID        string           `json:"id"`
	PID       int              `json:"pid"`
	Spec      cri.Spec         `json:"spec"`
	Problem   string           `json:"problem,omitempty"` // why it is unknown what it holds
	Resources *Resources       `json:"resources,omitempty"`
	Inside    *process.Inside  `json:"inside,omitempty"`
}

// Resources is the kubelet's word on what a container holds.
type Resources struct {
	Names []string `json:"names,omitempty"`
	Known bool     `json:"known"`
	Error string   `json:"error,omitempty"`
}

// list asks the runtimes. The kubelet is asked when a decision needs its answer or, to be kept, at once.
func (s *Snapshot) list(ctx context.Context) (found Listing, err error) {
	asking, cancel := context.WithTimeout(ctx, max(askRuntimesFor, s.Patience))
	defer cancel()
	runtimes, skipped, err := cri.Connect(asking, s.Endpoint, s.Root, s.answersWithin())
	if err != nil {
		return found, err
	}
	found.Called = Called{s.Config, s.Root, s.Endpoint}
	for _, r := range runtimes {
		defer r.Close()
		found.Runtimes = append(found.Runtimes, ServingRuntime{r.Name, r.Version, r.Socket})
	}
	for _, err := range skipped {
		found.Skipped = append(found.Skipped, err.Error())
	}
	containers, err := cri.Containers(asking, runtimes, s.Pods...)
	if err != nil {
		return found, err
	}
	for _, pod := range s.Pods {
		if !slices.ContainsFunc(containers, func(c cri.Container) bool { return c.Namespace+"/"+c.Pod == pod }) {
			return found, fmt.Errorf("no container of pod %s runs on this node", pod)
		}
	}
	kubelet := podresources.New(podresources.Options{
		Socket: filepath.Join(s.Root, podresources.DefaultSocket), Budget: askKubeletWithin,
	})
	silent := error(nil)
	for _, c := range containers {
		l := s.listed(c, kubelet)
		if s.Keep && silent == nil {
			names, known, err := l.Container.Resources()
			l.Resources, silent = &Resources{Names: names, Known: known}, err
		}
		if s.Keep && silent != nil {
			l.Resources = &Resources{Error: silent.Error()}
		}
		found.Containers = append(found.Containers, l)
	}
	return found, nil
}

// listInside is list with what is kept of it beside: what the processes of containers see.
func (s *Snapshot) listInside(ctx context.Context) (Listing, error) {
	found, err := s.list(ctx)
	for i := range found.Containers {
		if l := &found.Containers[i]; s.Keep && l.PID != 0 {
			first, _ := s.Limits().Process(l.PID) // without it, it is in no user namespace
			inside := process.Look(s.Root, l.PID, !first.UserNamespace, max(s.Patience, Patience))
			l.Inside = &inside
		}
	}
	return found, err
}

// listed is a container of a live node.
func (s *Snapshot) listed(c cri.Container, kubelet *podresources.Client) Listed {
	l := Listed{Container: c.Container, ID: c.ID, PID: c.PID, Spec: c.Spec}
	if c.Runtime != nil {
		l.Runtime = ServingRuntime{c.Runtime.Name, c.Runtime.Version, c.Runtime.Socket}
	}
	if c.Problem != nil {
		l.Problem = c.Problem.Error()
	}
	own, known := process.Process{PID: c.PID}.OwnNetwork(s.Root)
	l.Container.HostNetwork = known && !own
	l.Container.Resources = func() ([]string, bool, error) {
		return kubelet.Names(context.Background(), c.SandboxID, c.Namespace, c.Pod, c.Name)
	}
	return l
}

// resources is what the kubelet said when the listing was kept.
func (r *Resources) resources() ([]string, bool, error) {
	switch {
	case r == nil:
		return nil, false, errors.New("the kubelet was not asked")
	case r.Error != "":
		return nil, false, errors.New(r.Error)
	}
	return r.Names, r.Known, nil
}

// inside is what the processes of a container see.
func (s *Snapshot) inside(l Listed, hostUsers bool) process.Inside {
	switch {
	case l.Inside != nil:
		return *l.Inside
	case s.Archived || !s.Inside:
		return process.Inside{User: -1}
	}
	return process.Look(s.Root, l.PID, hostUsers, max(s.Patience, Patience))
}
