// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/cri"
	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/plugin/podresources"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// askRuntimeFor is how long the runtime may take to tell of all containers.
const askRuntimeFor = 20 * time.Second

// nodeOptions say which node's containers are looked at, and by which configuration.
type nodeOptions struct{ config, root, endpoint string }

func (o *nodeOptions) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.config, "config", "", "configuration `FILE`; without it "+defaultConfig+" if it exists, else the defaults")
	f.StringVar(&o.root, "root", "/", "find the node's sys, proc and dev, and the sockets, below this `DIR`")
	f.StringVar(&o.endpoint, "runtime-endpoint", "", "the runtime's CRI `SOCKET`; without it the usual places below the root")
}

// survey is what is known of the containers that run on a node.
type survey struct {
	Configuration string             `json:"configuration"` // the file, or "defaults"
	Runtime       string             `json:"runtime"`       // "containerd v2.4.2"
	Containers    []runningContainer `json:"containers"`    // the RDMA containers
	Notes         []string           `json:"notes,omitempty"`

	runtime *cri.Runtime
	others  []cri.Container // that are no RDMA containers
}

// surveyor looks at containers one by one.
type surveyor struct {
	policy    *policy.Policy
	node      policy.Node
	inventory func() (*hca.Node, error)
	resources func(c cri.Container) (names []string, known bool, err error)
	processes *limits.Processes
	hidden    error
	notes     []string
}

// survey asks the runtime which containers run, and compares what each has with what the policy gives it. The connection to the runtime
// stays open.
func (o nodeOptions) survey(ctx context.Context, on *limits.Processes) (*survey, error) {
	p, source, err := loadPolicy(o.config)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, askRuntimeFor)
	defer cancel()
	runtime, err := cri.Connect(ctx, o.endpoint, o.root)
	if err != nil {
		return nil, err
	}
	running, err := runtime.Containers(ctx)
	if err != nil {
		runtime.Close()
		return nil, fmt.Errorf("%s: %w", runtime.Socket, err)
	}
	result := &survey{Configuration: source, Runtime: runtime.Name + " " + runtime.Version, Containers: []runningContainer{}, runtime: runtime}
	s := o.surveyor(p, on)
	untold := 0
	for _, c := range running {
		r, isRDMA := s.look(c)
		switch {
		case isRDMA:
			result.Containers = append(result.Containers, r)
		case c.Problem != nil:
			untold++
			s.note(c.Problem.Error())
		default:
			result.others = append(result.others, c)
		}
	}
	if untold > 0 {
		s.note(fmt.Sprintf("whether they are RDMA containers is not known of %d of those that run", untold))
	}
	result.Notes = s.notes
	return result, nil
}

func (o nodeOptions) surveyor(p *policy.Policy, on *limits.Processes) *surveyor {
	live := policy.LiveNode(o.root)
	live.HCAs = sync.OnceValues(live.HCAs)
	kubelet := podresources.New(podresources.Options{Socket: filepath.Join(o.root, podresources.DefaultSocket)})
	return &surveyor{
		policy:    p,
		node:      live,
		inventory: live.HCAs,
		resources: func(c cri.Container) ([]string, bool, error) {
			return kubelet.Names(c.SandboxID, c.Namespace, c.Pod, c.Name)
		},
		processes: on,
		hidden:    on.Visible(),
	}
}

// note keeps what is to be said about the node, once.
func (s *surveyor) note(text string) {
	if !slices.Contains(s.notes, text) {
		s.notes = append(s.notes, text)
	}
}

// look decides about a container, and compares. It is false for one that is no RDMA container.
func (s *surveyor) look(c cri.Container) (runningContainer, bool) {
	c.Resources = func() ([]string, bool, error) { return s.resources(c) }
	d := s.policy.Decide(c.Container, s.node)
	r := runningContainer{
		Namespace: c.Namespace, Pod: c.Pod, Container: c.Name, ID: c.ID, PID: c.PID,
		Signal: d.Signal, Evidence: d.Evidence, Rule: d.Rule,
		HCAs: []string{}, Problems: []string{}, State: stateOK, spec: c.Spec,
	}
	for _, warning := range d.Warnings {
		s.note(warning)
	}
	switch {
	case d.Grant != nil:
		r.wanted = *d.Grant
		r.Wanted = &wanted{Memlock: d.Grant.Memlock, IPCLock: d.Grant.IPCLock}
	case d.Refusal != nil && d.Refusal.Cause == policy.CauseKubelet:
		r.is(stateUnknown, d.Refusal.Message)
	case d.Refusal != nil:
		r.is(stateRefused, "it runs, and would be refused now: "+d.Refusal.Message)
	case d.Signal != policy.SignalNone:
		r.is(stateUnknown, cmp.Or(d.Reason, "the policy gives it nothing"))
	default:
		return runningContainer{}, false
	}
	s.hcas(&r, c)
	s.limits(&r, c)
	if d.Grant != nil {
		r.compare(c)
	}
	return r, true
}

// hcas finds the HCAs whose verbs devices a container holds.
func (s *surveyor) hcas(r *runningContainer, c cri.Container) {
	node, err := s.inventory()
	if err != nil {
		s.note(err.Error())
		return
	}
	r.AllDevices = c.AllDevices
	for _, h := range node.HCAs {
		verbs, ok := h.Verbs()
		held := slices.ContainsFunc(c.Devices, func(d policy.Device) bool {
			return (d.Type == "c" || d.Type == "u") && d.Major == int64(verbs.Major) && d.Minor == int64(verbs.Minor)
		})
		if ok && (held || c.AllDevices) {
			r.HCAs = append(r.HCAs, h.Name)
		}
	}
}

// limits reads what the container's first process may lock; where it cannot be seen, what its spec says.
func (s *surveyor) limits(r *runningContainer, c cri.Container) {
	unseen := ""
	switch {
	case s.hidden != nil:
		s.note(s.hidden.Error())
	case !s.processes.Belongs(c.PID, c.ID):
		unseen = fmt.Sprintf("its process %d cannot be seen", c.PID)
	default:
		process, err := s.processes.Process(c.PID)
		if err == nil {
			effective := process.IPCLock && !process.UserNamespace
			r.Memlock, r.IPCLock, r.UserNamespace = &process.Memlock, &effective, process.UserNamespace
			return
		}
		unseen = err.Error()
	}
	if unseen != "" {
		r.Notes = append(r.Notes, unseen)
	}
	if c.Spec.MemlockKnown {
		memlock := c.Spec.Memlock
		r.Memlock = &memlock
		r.Notes = append(r.Notes, "memlock is what its spec says")
	}
}
