// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/agents"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/rdma"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/runtime"
	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/plugin/policy/resource"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// The major number of devices such as /dev/nvidia0, and the first minor number that does not belong to a GPU.
const nvidiaGPU, nvidiaControl = 195, 254

// surveyor examines containers one by one.
type surveyor struct {
	Options
	policy    *policy.Policy
	node      policy.Facts
	listed    func() (*hca.Inventory, error) // the names and devices of the HCAs
	runtimes  func() (runtime.Runtimes, error)
	processes *limits.Processes
	pause     time.Duration                  // the delay before the second read
	hidden    error                          // why the processes of containers cannot be read
	running   map[string][]int               // the process IDs of each container
	root      string                         // the root of the node or the copy
	inventory func() (rdma.Inventory, error) // nil if the users of RDMA are not needed
	kubelet   func() (agents.Kubelet, error)
	result    *Containers
}

// survey compares each container with the policy's grant.
func (s *Snapshot) survey(ctx context.Context, p *policy.Policy, source JudgedBy) (result Containers, err error) {
	if s.Use {
		_, _ = s.RDMA() // must precede the listing; readRDMA notes the error
	}
	listing, err := s.Listing()
	if err == nil {
		listing, err = listing.ofPods(s.Pods)
	}
	if err != nil {
		return result, err
	}
	result = Containers{Policy: source, Runtimes: listing.Runtimes, Containers: []Container{}, Outside: []Container{}}
	looking := s.surveyor(p)
	looking.result = &result
	if s.Archived { // commands in fixes are for the node
		looking.Options = listing.Called
		looking.pause = 0
		looking.Config = cmp.Or(s.Config, looking.Config)
	}
	for _, why := range listing.Skipped {
		looking.note("skipped: " + why)
	}
	var counted []Listed
	for _, l := range listing.Containers {
		r, counts := looking.look(l)
		if l.MOFED && l.PID != 0 {
			r, counts = looking.afterNRI(l, r, counts, s.inside(l, true))
		}
		if r.State == StateOutside {
			result.Outside = append(result.Outside, r)
		}
		if r.unlisted {
			result.Failed++
		}
		switch {
		case counts:
			result.Containers = append(result.Containers, r)
			counted = append(counted, l)
		case slices.Contains(s.Pods, r.PodName()):
			is := map[bool]string{false: "is not", true: "might be"}[r.unlisted]
			looking.note(fmt.Sprintf("%s/%s %s %s an RDMA container", l.Namespace, l.Pod, l.Name, is))
		case s.Inside && l.PID != 0:
			looking.surveyOther(&r, l)
			if len(r.HostPaths)+len(r.Given)+len(r.Functions)+len(r.Stale) > 0 || r.Uses {
				result.Others = append(result.Others, r)
			}
		}
	}
	sideBySide(len(counted), func(i int) {
		r := &result.Containers[i]
		r.Inside = s.inside(counted[i], !r.UserNamespace)
	})
	if len(s.Pods) == 0 {
		result.Outside = append(result.Outside, looking.outsiders(listing.Containers)...)
	}
	looking.judge(ctx, result.Containers)
	looking.judge(ctx, result.Outside)
	for _, r := range result.Containers {
		if r.State == StateUnknown {
			result.Failed++
		}
	}
	return result, nil
}

// surveyor returns a surveyor for a policy.
func (s *Snapshot) surveyor(p *policy.Policy) *surveyor {
	looking := &surveyor{
		Options: s.Options, policy: p, node: policy.LiveFacts(s.Root), processes: s.Limits(), pause: SecondLookAfter,
		listed: sync.OnceValues(func() (*hca.Inventory, error) { return hca.List(s.Root) }), result: &Containers{},
		root: s.Root, kubelet: s.Kubelet, runtimes: s.Runtimes,
	}
	if s.Use {
		looking.inventory = s.RDMA
	}
	looking.node.HCAs = policy.ReadNow(s.HCAs)
	looking.hidden = looking.processes.Visible()
	if looking.hidden == nil {
		looking.running, looking.hidden = looking.processes.Containers()
	}
	return looking
}

// sideBySide calls look for several containers concurrently, because an image that does not respond delays look until
// its timeout.
func sideBySide(containers int, look func(i int)) {
	var looks errgroup.Group
	looks.SetLimit(4)
	for i := range containers {
		looks.Go(func() error { look(i); return nil })
	}
	_ = looks.Wait() // never fails
}

// surveyOther examines a container that is not an RDMA container. It looks for signs that the container was meant to be
// an RDMA container, or uses RDMA.
func (s *surveyor) surveyOther(r *Container, l Listed) {
	r.Inside = process.Inside{User: -1}
	if !l.AllDevices {
		r.HostPaths = s.hostPaths(l)
	}
	kubelet, _ := s.kubelet() // unreported resources count as not allocated
	key := l.Namespace + "/" + l.Pod + "/" + l.Name
	names := kubelet.Given[key]
	functions := kubelet.Functions[key]
	if l.Resources != nil { // queried when the archive was written
		names = l.Resources.Names
		functions = l.Resources.Functions
	}
	vfio := slices.ContainsFunc(l.Devices, func(d policy.Device) bool { return strings.HasPrefix(d.Path, "/dev/vfio/") })
	for _, name := range names {
		if resource.IsRDMA(name) && !vfio { // VFIO passes an HCA to a virtual machine
			r.Given = append(r.Given, name)
		}
	}
	if len(r.HCAs) > 0 {
		if r.Registers == nil { // it can open an HCA
			s.limits(r, l.Spec)
		}
		r.Uses = len(r.Opened) > 0 || len(r.Given) > 0
		r.Given = nil
		return
	}
	if node, err := s.listed(); err == nil && !vfio && len(node.HCAs) > 0 {
		if len(r.Given)+len(functions) == 0 && s.hugePages(l) { // the PCI function is unknown
			r.Given = slices.DeleteFunc(slices.Clone(names), func(name string) bool {
				return !strings.Contains(name, "/") || strings.Contains(name, "gpu")
			})
		}
		for _, f := range functions {
			if i := slices.IndexFunc(node.HCAs, func(h hca.HCA) bool { return path.Base(h.Bus()) == f.PCI }); i >= 0 {
				r.Functions = append(r.Functions, fmt.Sprintf("PCI function %s (%s), HCA %s", f.PCI, f.Resource, node.HCAs[i].Name))
				r.HugePages = r.HugePages || s.hugePages(l)
			}
		}
	}
}

// hugePages reports whether hugetlbfs is mounted in a container, as DPDK requires.
func (s *surveyor) hugePages(l Listed) bool {
	if l.Inside != nil {
		return l.Inside.HugePages
	}
	return process.HugePages(s.root, l.PID)
}

// hostPaths returns the paths at which the node's /dev/infiniband is mounted for a container.
func (s *surveyor) hostPaths(l Listed) []string {
	if l.Inside != nil {
		return l.Inside.HostPaths
	}
	return process.HostPaths(s.root, l.PID)
}

// note adds a note about the node, unless the same note exists.
func (s *surveyor) note(text string) {
	if !slices.Contains(s.result.Notes, text) {
		s.result.Notes = append(s.result.Notes, text)
	}
}

// look applies the policy to a container and reads the container's resources. It returns false if the container is not
// an RDMA container.
func (s *surveyor) look(l Listed) (Container, bool) {
	c := l.Container.Container
	r := Container{
		Report: Report{
			Namespace: c.Namespace, Pod: c.Pod, Container: c.Name, ID: l.ID, PID: l.PID, Started: l.Started,
			Signal: policy.SignalNone, HCAs: []string{}, Use: Use{Summary: "unknown"}, State: StateOK, Problems: []string{},
		},
		RDMA: true, Runtime: l.Runtime, Handler: c.RuntimeHandler, Bounding: l.Spec.Bounding, Env: l.Spec.Env,
	}
	if l.Problem != "" {
		r.report(StateUnknown, l.Problem)
		return r, true
	}
	var silent error
	facts := s.node
	facts.Resources = func() (names []string, known bool, err error) {
		names, known, silent = l.resources()
		return names, known, silent
	}
	facts.PodHolds = l.podHolds
	facts.Startable = func() spec.Limit { return s.startable(l) }
	r.Stale = s.stale(c)
	d := s.decide(&c, facts, l)
	r.Signal = d.Signal
	r.Evidence = d.Evidence
	r.Rule = d.Rule
	r.Wanted = d.Grant
	for _, warning := range d.Warnings {
		s.note(warning)
	}
	switch {
	case d.Grant != nil:
	case d.Refusal != nil && d.Refusal.Cause == policy.CauseKubelet:
		r.report(StateUnknown, d.Refusal.Message)
	case d.Refusal != nil:
		r.report(StateRefused, "the policy would refuse the container if it were created now: "+d.Refusal.Message)
	default:
		if silent != nil {
			s.note(d.Reason)
			r.unlisted = true
		}
		s.outside(&r, l, d.Reason)
		return r, false
	}
	s.hcas(&r, c)
	s.leftOut(&r, c, facts)
	for _, d := range c.Devices {
		if d.Type == "c" && d.Major == nvidiaGPU && d.Minor < nvidiaControl {
			r.GPUs = append(r.GPUs, int(d.Minor))
		}
	}
	s.limits(&r, l.Spec)
	s.use(&r, s.running[l.ID], !c.HostNetwork)
	return r, true
}

// decide applies the policy to a running container. If no resource explains the container's verbs devices, the policy
// injected them, or they belong to a claim that the kubelet does not report. If the policy injected the devices, the
// container was created with the whole grant. Therefore, if the spec contains less than the grant, the devices are
// assumed to belong to a claim, for which the grant can be lower.
func (s *surveyor) decide(c *policy.Container, facts policy.Facts, l Listed) policy.Decision {
	c.Injected = s.policy.Injects(*c)
	d := s.policy.Decide(*c, facts)
	if c.Injected && d.Grant != nil && l.Spec.MemlockKnown && l.Spec.Memlock.Soft < d.Grant.Memlock {
		c.Injected = false
		d = s.policy.Decide(*c, facts)
	}
	return d
}

// startable returns the highest memlock with which a container's runtime can start the container; 0 if it is unknown.
// If the container was started with unlimited memlock, the runtimes are not queried, because the query runs containerd.
func (s *surveyor) startable(l Listed) spec.Limit {
	if l.Spec.MemlockKnown && !l.Spec.Memlock.Soft.Finite() {
		return spec.Unlimited
	}
	all, _ := s.runtimes() // for an unknown runtime, the result is 0
	for _, r := range all.Runtimes {
		if r.Socket == l.Runtime.Socket && r.Startable != nil {
			return *r.Startable
		}
	}
	return 0
}
