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
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/rdma"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/runtime"
	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/plugin/policy/resource"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// SecondLookAfter is how long after the first look the processes that were low are read again. A runtime puts the
// process of an exec into the container's cgroup a moment before it sets the limits. Tests do not wait.
var SecondLookAfter = time.Second

// The major number of /dev/nvidia0 and the like, and the first minor number that is not that of a GPU.
const nvidiaGPU, nvidiaControl = 195, 254

// surveyor looks at containers one by one.
type surveyor struct {
	Options
	policy    *policy.Policy
	node      policy.Facts
	listed    func() (*hca.Inventory, error) // the names and devices of the HCAs
	runtimes  func() (runtime.Runtimes, error)
	processes *limits.Processes
	pause     time.Duration                  // before the second look
	hidden    error                          // why the processes of containers cannot be read
	running   map[string][]int               // the IDs of the processes of each container
	root      string                         // of the node or the copy
	inventory func() (rdma.Inventory, error) // nil: it does not matter who uses RDMA
	kubelet   func() (agents.Kubelet, error)
	result    *Containers
}

// survey compares what each container has with what a policy gives it.
func (s *Snapshot) survey(ctx context.Context, p *policy.Policy, source JudgedBy) (result Containers, err error) {
	if s.Use {
		_, _ = s.RDMA() // before containers and processes are listed, which then have all of it; readRDMA notes the error
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
	if s.Archived { // what is to be done is done on the node
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
			is := map[bool]string{false: "is not", true: "may be"}[r.unlisted]
			looking.note(fmt.Sprintf("%s/%s %s %s an RDMA container", l.Namespace, l.Pod, l.Name, is))
		case s.Inside && l.PID != 0:
			looking.lacks(&r, l)
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
		result.Outside = append(result.Outside, looking.others(listing.Containers)...)
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

// surveyor looks at containers by a policy.
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

// sideBySide looks at containers, a few at a time: an image that does not answer costs its timeout.
func sideBySide(containers int, look func(i int)) {
	var looks errgroup.Group
	looks.SetLimit(4)
	for i := range containers {
		looks.Go(func() error { look(i); return nil })
	}
	_ = looks.Wait() // none returns an error
}

// lacks looks at a container that is no RDMA container: whether somebody meant it to be one, or it uses RDMA.
func (s *surveyor) lacks(r *Container, l Listed) {
	r.Inside = process.Inside{User: -1}
	if !l.AllDevices {
		r.HostPaths = s.hostPaths(l)
	}
	kubelet, _ := s.kubelet() // what it does not tell was not given
	key := l.Namespace + "/" + l.Pod + "/" + l.Name
	names := kubelet.Given[key]
	functions := kubelet.Functions[key]
	if l.Resources != nil { // asked when the node was collected
		names = l.Resources.Names
		functions = l.Resources.Functions
	}
	vfio := slices.ContainsFunc(l.Devices, func(d policy.Device) bool { return strings.HasPrefix(d.Path, "/dev/vfio/") })
	for _, name := range names {
		if resource.IsRDMA(name) && !vfio { // which gives an HCA to a virtual machine
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
		if len(r.Given)+len(functions) == 0 && s.hugePages(l) { // of which function is unknown
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

// hugePages reports whether a container has a file system of huge pages, as DPDK needs it.
func (s *surveyor) hugePages(l Listed) bool {
	if l.Inside != nil {
		return l.Inside.HugePages
	}
	return process.HugePages(s.root, l.PID)
}

// hostPaths returns where the node's /dev/infiniband is mounted for a container.
func (s *surveyor) hostPaths(l Listed) []string {
	if l.Inside != nil {
		return l.Inside.HostPaths
	}
	return process.HostPaths(s.root, l.PID)
}

// note keeps a note about the node, once.
func (s *surveyor) note(text string) {
	if !slices.Contains(s.result.Notes, text) {
		s.result.Notes = append(s.result.Notes, text)
	}
}

// look decides about a container and reads what it has. It is false for one that is not an RDMA container.
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
		r.report(StateRefused, "a new container would be refused: "+d.Refusal.Message)
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

// decide decides about a container that runs. Verbs devices that no resource explains may be those that the policy
// injects, or those of a claim that the kubelet does not report. A container of the former was created with what the
// policy gives: one that has less in its spec is taken for the latter, which may get less.
func (s *surveyor) decide(c *policy.Container, facts policy.Facts, l Listed) policy.Decision {
	c.Injected = s.policy.Injects(*c)
	d := s.policy.Decide(*c, facts)
	if c.Injected && d.Grant != nil && l.Spec.MemlockKnown && l.Spec.Memlock.Soft < d.Grant.Memlock {
		c.Injected = false
		d = s.policy.Decide(*c, facts)
	}
	return d
}

// startable returns the highest memlock with which a container's runtime can start it; 0 if that is unknown. The
// runtimes are not asked about one that was started with all of it: their answer takes a run of containerd.
func (s *surveyor) startable(l Listed) spec.Limit {
	if l.Spec.MemlockKnown && !l.Spec.Memlock.Soft.Finite() {
		return spec.Unlimited
	}
	all, _ := s.runtimes() // of one that is not known, it is unknown
	for _, r := range all.Runtimes {
		if r.Socket == l.Runtime.Socket && r.Startable != nil {
			return *r.Startable
		}
	}
	return 0
}

// afterNRI looks again at a container that may have HCAs from NVIDIA's container runtime, with the devices that its
// process has. If only they make it an RDMA container, the plugin did not see that, and the policy gives nothing.
func (s *surveyor) afterNRI(l Listed, r Container, counts bool, inside process.Inside) (Container, bool) {
	if len(inside.HostPaths) > 0 {
		return r, counts // a mount, which does not let it open them
	}
	l.Devices = slices.Clip(l.Devices)
	for _, n := range inside.Devices {
		l.Devices = append(l.Devices, policy.Device{Type: "c", Major: int64(n.Major), Minor: int64(n.Minor)})
	}
	again, seen := s.look(l)
	if counts || !seen {
		r.HCAs = again.HCAs
		return r, counts
	}
	again.RDMA = false
	again.Signal = policy.SignalNone
	again.Evidence = ""
	again.Rule = ""
	again.Wanted = nil
	again.State = StateUnseen
	again.Fix.Text = fmt.Sprintf("list its runtime handler %q in optIn.mofedRuntimeHandlers, and recreate the pod",
		l.RuntimeHandler)
	again.Problems = []string{"NVIDIA's container runtime added its HCAs after the NRI plugins ran " +
		"(" + policy.MOFEDVariable +
		"enabled), so the plugin did not see them: " + again.Fix.Text}
	return again, true
}

// hcas finds the HCAs whose verbs devices a container holds.
func (s *surveyor) hcas(r *Container, c policy.Container) {
	node, err := s.listed()
	if err != nil {
		s.note(err.Error())
		return
	}
	r.AllDevices = c.AllDevices
	holds := func(verbs hca.Device) bool {
		return slices.ContainsFunc(c.Devices, func(d policy.Device) bool {
			return (d.Type == "c" || d.Type == "u") && d.Major == int64(verbs.Major) && d.Minor == int64(verbs.Minor)
		})
	}
	for _, h := range node.HCAs {
		if verbs, ok := h.Verbs(); ok && (holds(verbs) || r.AllDevices) {
			r.HCAs = append(r.HCAs, h.Name)
		}
	}
	for _, d := range node.Elsewhere {
		if d.Kind.Verbs() && holds(d) {
			r.HCAs = append(r.HCAs, d.HCA)
		}
	}
}

// stale says what became of a container's verbs devices whose HCA has another number now, as after its driver was bound
// again: libraries look for the number that sysfs has.
func (s *surveyor) stale(c policy.Container) (all []string) {
	node, err := s.listed()
	if err != nil || c.AllDevices {
		return nil // hcas notes the error
	}
	for _, d := range c.Devices {
		number := hca.Number{Major: uint32(d.Major), Minor: uint32(d.Minor)} // as the kernel has them
		is, known := node.Lookup(number)
		switch {
		case !process.IsVerbs(d.Path) || d.Type != "c" && d.Type != "u":
		case !known:
			all = append(all, fmt.Sprintf("%s is %s, which no longer belongs to an HCA", d.Path, number))
		case path.Base(is.Path) != path.Base(d.Path):
			all = append(all, fmt.Sprintf("%s is %s, which is now %s of HCA %s", d.Path, number, path.Base(is.Path), is.HCA))
		}
	}
	return all
}

// registers finds how much memory a container can register: each process that has a verbs device open, else the first
// one. That with the least counts.
func (s *surveyor) registers(r *Container) {
	r.Opened = nil
	var using []int
	for _, pid := range s.running[r.ID] {
		if opened := (process.Process{PID: pid}).Opened(s.root); len(opened) > 0 {
			r.Opened = append(r.Opened, opened...)
			using = append(using, pid)
		}
	}
	slices.Sort(r.Opened)
	r.Opened = slices.Compact(r.Opened)
	if len(using) == 0 {
		using = []int{r.PID}
		r.Idle = s.least(r.ID, s.running[r.ID])
	}
	r.Least = s.least(r.ID, using)
	r.Registers = r.Least.Registers
	switch {
	case r.Registers != nil:
		r.OpenFiles = &r.Least.files
	case r.reading.SpecSets && !slices.Contains(r.Bounding, spec.CapIPCLock):
		r.Registers = &r.reading.Spec.Soft
	}
	if r.Registers != nil {
		r.RegistersBytes = uint64(*r.Registers)
	}
}

// least returns the process of a container that can register the least; none where all have ended.
func (s *surveyor) least(id string, pids []int) (found Registering) {
	for _, pid := range pids {
		p, err := s.processes.Process(pid)
		if err != nil || !s.processes.Belongs(pid, id) {
			continue // it has ended
		}
		if n := p.Registers(); found.Registers == nil || n < *found.Registers {
			found = Registering{PID: pid, User: process.Process{PID: pid}.User(s.root), Registers: &n, Memlock: p.Memlock,
				files: p.Files}
		}
	}
	return found
}

// limits reads what a container's processes may lock, and its spec.
func (s *surveyor) limits(r *Container, has cri.Spec) {
	r.reading = process.ReadMemlock(s.processes, s.running[r.ID]).WithSpec(has.Memlock, has.MemlockKnown)
	switch {
	case s.hidden != nil:
		s.note(s.hidden.Error())
	case len(r.reading.Processes) == 0:
		r.Notes = append(r.Notes, fmt.Sprintf("its process %d is not visible", r.PID))
	default:
		first, err := s.processes.Process(r.PID)
		if err == nil && s.processes.Belongs(r.PID, r.ID) {
			effective := first.IPCLock && !first.UserNamespace
			r.IPCLock = &effective
			r.UserNamespace = first.UserNamespace
		}
	}
	s.registers(r)
	if len(r.reading.Processes) == 0 && r.reading.SpecSets {
		r.Notes = append(r.Notes, "the memlock shown is from its spec")
	}
}

// judge compares what containers have with what they are given. A limit counts as low only if a second look finds it
// low as well.
func (s *surveyor) judge(ctx context.Context, containers []Container) {
	low := func(r *Container) bool { return r.Wanted != nil && r.reading.Low(r.Wanted.Memlock) > 0 }
	if slices.ContainsFunc(containers, func(r Container) bool { return low(&r) }) {
		s.processes.Pause(ctx, s.pause)
	}
	for i := range containers {
		r := &containers[i]
		if low(r) {
			s.readAgain(r)
		}
		if memlock, known := r.reading.Lowest(); known {
			r.Memlock = &memlock
		}
		if r.Wanted != nil {
			r.compare(s.Options)
		}
	}
}

// readAgain reads those processes of a container again that have less than is wanted. Others that were made meanwhile
// may be about to get their limits.
func (s *surveyor) readAgain(r *Container) {
	var again []process.Limited
	for _, p := range r.reading.Processes {
		if p.Memlock.Soft < r.Wanted.Memlock {
			limit, err := s.processes.Memlock(p.PID)
			if err != nil || !s.processes.Belongs(p.PID, r.ID) {
				continue // it has ended
			}
			p.Memlock = limit
		}
		again = append(again, p)
	}
	r.reading.Processes = again
}
