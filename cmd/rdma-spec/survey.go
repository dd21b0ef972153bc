// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/cri"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/process"
	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/plugin/podresources"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/plugin/repair"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// secondLookAfter is repair.SecondLookAfter. Tests do not wait.
var secondLookAfter = repair.SecondLookAfter

// askRuntimesFor is how long the runtimes may take to list all containers.
const askRuntimesFor = 20 * time.Second

// survey is what is known of the containers that run on a node.
type survey struct {
	APIVersion string             `json:"apiVersion"`
	Policy     judgedBy           `json:"policy"`
	Runtimes   []servingRuntime   `json:"runtimes"`
	Containers []runningContainer `json:"containers"` // the RDMA containers, and those that cannot be examined
	Notes      []string           `json:"notes,omitempty"`

	failed   int             // containers that are unknown
	listed   []cri.Container // all containers of the runtimes
	unjudged error           // why no policy is in force, and the states mean nothing
}

// servingRuntime is a runtime that was asked.
type servingRuntime struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Socket  string `json:"socket"`
}

// surveyor looks at containers one by one.
type surveyor struct {
	nodeOptions
	policy    *policy.Policy
	node      policy.Node
	listed    func() (*hca.Node, error) // the names and devices of the HCAs
	resources func(c cri.Container) (names []string, known bool, err error)
	processes *limits.Processes
	hidden    error            // why the processes of containers cannot be seen
	running   map[string][]int // the IDs of the processes of each container
	notes     []string
	// unanswered counts the containers without another signal for which the kubelet does not answer: their resources may be one.
	unanswered int
}

// survey asks the runtimes which containers run, and compares what each has with what the policy gives it. Where pods are named, only
// theirs.
func (o nodeOptions) survey(ctx context.Context, on *limits.Processes, pods []string) (*survey, error) {
	p, source, err := o.policy()
	if err != nil {
		return nil, err
	}
	return o.surveyBy(ctx, p, source, on, pods)
}

// surveyBy is survey by a policy.
func (o nodeOptions) surveyBy(ctx context.Context, p *policy.Policy, source judgedBy, on *limits.Processes, pods []string) (*survey, error) {
	asking, cancel := context.WithTimeout(ctx, max(askRuntimesFor, o.patience))
	defer cancel()
	runtimes, skipped, err := cri.Connect(asking, o.endpoint, o.root, o.answersWithin())
	if err != nil {
		return nil, err
	}
	result := &survey{APIVersion: apiVersion, Policy: source, Containers: []runningContainer{}}
	for _, r := range runtimes {
		defer r.Close()
		result.Runtimes = append(result.Runtimes, servingRuntime{r.Name, r.Version, r.Socket})
	}
	containers, err := cri.Containers(asking, runtimes, pods...)
	if err != nil {
		return nil, err
	}
	for _, pod := range pods {
		if !slices.ContainsFunc(containers, func(c cri.Container) bool { return c.Namespace+"/"+c.Pod == pod }) {
			return nil, fmt.Errorf("no container of pod %s runs on this node", pod)
		}
	}
	s := o.surveyor(p, on)
	for _, err := range skipped {
		s.note("skipped: " + err.Error())
	}
	for _, c := range containers {
		if r, counts := s.look(c); counts {
			result.Containers = append(result.Containers, r)
		} else if len(pods) > 0 {
			s.note(fmt.Sprintf("%s/%s %s is not an RDMA container", c.Namespace, c.Pod, c.Name))
		}
	}
	s.judge(ctx, result.Containers)
	result.Notes, result.failed, result.listed = s.notes, s.unanswered, containers
	for _, r := range result.Containers {
		if r.State == stateUnknown {
			result.failed++
		}
	}
	return result, nil
}

// incomplete is the error of a survey that does not know everything; nil where it does.
func (s *survey) incomplete() error {
	if s.failed == 0 {
		return nil
	}
	return fmt.Errorf("cannot look at %s", counted(s.failed, "container", "containers"))
}

// sources names the policy and the runtimes that a result comes from.
func (s *survey) sources() []string {
	lines := []string{"policy: " + s.Policy.String()}
	for _, r := range s.Runtimes {
		lines = append(lines, fmt.Sprintf("runtime: %s %s at %s", r.Name, r.Version, r.Socket))
	}
	return lines
}

func (o nodeOptions) surveyor(p *policy.Policy, on *limits.Processes) *surveyor {
	live := policy.LiveNode(o.root)
	live.HCAs = sync.OnceValues(o.hcas)
	kubelet := podresources.New(podresources.Options{Socket: filepath.Join(o.root, podresources.DefaultSocket)})
	s := &surveyor{
		nodeOptions: o,
		policy:      p,
		node:        live,
		listed:      sync.OnceValues(func() (*hca.Node, error) { return hca.List(o.root) }),
		resources: func(c cri.Container) ([]string, bool, error) {
			return kubelet.Names(c.SandboxID, c.Namespace, c.Pod, c.Name)
		},
		processes: on,
		hidden:    on.Visible(),
	}
	if s.hidden == nil {
		s.running, s.hidden = on.Containers()
	}
	return s
}

// note keeps a note about the node, once.
func (s *surveyor) note(text string) {
	if !slices.Contains(s.notes, text) {
		s.notes = append(s.notes, text)
	}
}

// look decides about a container and reads what it has. It is false for one that is not an RDMA container.
func (s *surveyor) look(c cri.Container) (runningContainer, bool) {
	r := runningContainer{
		Namespace: c.Namespace, Pod: c.Pod, Container: c.Name, ID: c.ID, PID: c.PID, Signal: policy.SignalNone,
		HCAs: []string{}, Problems: []string{}, State: stateOK, found: c,
	}
	if c.Problem != nil {
		r.is(stateUnknown, c.Problem.Error())
		return r, true
	}
	var silent error
	c.Resources = func() (names []string, known bool, err error) {
		names, known, silent = s.resources(c)
		return names, known, silent
	}
	own, known := process.Process{PID: c.PID}.OwnNetwork(s.root)
	c.HostNetwork = known && !own
	d := s.policy.Decide(c.Container, s.node)
	r.Signal, r.Evidence, r.Rule, r.Wanted = d.Signal, d.Evidence, d.Rule, d.Grant
	for _, warning := range d.Warnings {
		s.note(warning)
	}
	switch {
	case d.Grant != nil:
	case d.Refusal != nil && d.Refusal.Cause == policy.CauseKubelet:
		r.is(stateUnknown, d.Refusal.Message)
	case d.Refusal != nil:
		r.is(stateRefused, "a new container would be refused: "+d.Refusal.Message)
	default:
		if silent != nil {
			s.note(d.Reason)
			s.unanswered++
		}
		return runningContainer{}, false
	}
	s.hcas(&r)
	s.limits(&r)
	return r, true
}

// hcas finds the HCAs whose verbs devices a container holds.
func (s *surveyor) hcas(r *runningContainer) {
	node, err := s.listed()
	if err != nil {
		s.note(err.Error())
		return
	}
	r.AllDevices = r.found.AllDevices
	for _, h := range node.HCAs {
		verbs, ok := h.Verbs()
		held := slices.ContainsFunc(r.found.Devices, func(d policy.Device) bool {
			return (d.Type == "c" || d.Type == "u") && d.Major == int64(verbs.Major) && d.Minor == int64(verbs.Minor)
		})
		if ok && (held || r.AllDevices) {
			r.HCAs = append(r.HCAs, h.Name)
		}
	}
}

// limits reads what a container's processes may lock, and its spec.
func (s *surveyor) limits(r *runningContainer) {
	r.reading = repair.Read(s.processes, s.running[r.ID]).WithSpec(r.found.Spec.Memlock, r.found.Spec.MemlockKnown)
	unseen := ""
	switch {
	case s.hidden != nil:
		s.note(s.hidden.Error())
	case len(r.reading.Processes) == 0:
		unseen = fmt.Sprintf("its process %d cannot be seen", r.PID)
	default:
		first, err := s.processes.Process(r.PID)
		if err == nil && s.processes.Belongs(r.PID, r.ID) {
			effective := first.IPCLock && !first.UserNamespace
			r.IPCLock, r.UserNamespace = &effective, first.UserNamespace
		}
	}
	if unseen != "" {
		r.Notes = append(r.Notes, unseen)
	}
	if len(r.reading.Processes) == 0 && r.reading.SpecSets {
		r.Notes = append(r.Notes, "the memlock shown is that of its spec")
	}
}

// judge compares what containers have with what they are given. A limit counts as low only if a second look finds it low as well.
func (s *surveyor) judge(ctx context.Context, containers []runningContainer) {
	low := func(r *runningContainer) bool { return r.Wanted != nil && r.reading.Low(r.Wanted.Memlock) > 0 }
	if slices.ContainsFunc(containers, func(r runningContainer) bool { return low(&r) }) {
		s.processes.Pause(ctx, secondLookAfter)
	}
	for i := range containers {
		r := &containers[i]
		if low(r) {
			r.reading = r.reading.ReadAgain(s.processes, r.ID, r.Wanted.Memlock)
		}
		if memlock, known := r.reading.Lowest(); known {
			r.Memlock = &memlock
		}
		if r.Wanted != nil {
			r.compare(s.nodeOptions)
		}
	}
}

// counted returns a number and what is counted, in the singular or plural.
func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// editable reports whether a container's stored spec can be edited.
func editable(c cri.Container) bool { return c.Runtime != nil && c.Runtime.Name == "containerd" }
