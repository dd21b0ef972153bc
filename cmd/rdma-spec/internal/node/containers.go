// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/runtime"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// State reports whether a container is as the policy wants.
type State string

// The states.
const (
	StateOK      State = "ok"
	StateBelow   State = "below"   // it has less than the policy gives
	StateRefused State = "refused" // the policy would refuse it, and it runs
	StateUnseen  State = "unseen"  // it got its HCAs after NRI, and the policy gives it nothing
	StateUnknown State = "unknown" // the runtime or the kubelet does not provide enough information
	StateOutside State = "outside" // it is no RDMA container, and uses RDMA
)

// Containers are the containers that run on a node. The fields of their JSON are what status prints.
type Containers struct {
	// Policy is the policy that the containers are compared with.
	Policy   JudgedBy `json:"policy"`
	Unjudged string   `json:"-"` // why no policy is in force, and the states mean nothing
	// Runtimes are the container runtimes that responded.
	Runtimes []cri.Identity `json:"runtimes"`
	// Containers are the RDMA containers, and the containers that could not be examined.
	Containers []Container `json:"containers"`
	// Outside are other containers that use RDMA, and processes outside containers that use RDMA.
	Outside []Container `json:"outside"`
	Others  []Container `json:"-"` // others that were given HCAs, or have one open
	// Notes are further facts about the node.
	Notes  []string `json:"notes,omitempty"`
	Failed int      `json:"-"` // containers that are unknown, or may be RDMA containers
}

// Report is what status reports about a container.
type Report struct {
	// Namespace is the pod's namespace.
	Namespace string `json:"namespace"`
	// Pod is the pod's name.
	Pod string `json:"pod"`
	// Container is the container's name.
	Container string `json:"container"`
	// ID is the container's ID.
	ID string `json:"id"`
	// PID is the process ID of the container's first process.
	PID int `json:"pid"`

	// Started is when the runtime started the container.
	Started time.Time `json:"started,omitzero"`

	// Signal is why the container is an RDMA container.
	Signal policy.Signal `json:"signal"`
	// Evidence is the device, resource, or annotation key that is the signal.
	Evidence string `json:"evidence,omitempty"`
	// Rule is the policy's rule that applies.
	Rule string `json:"rule,omitempty"`
	// Wanted is what the policy grants.
	Wanted *spec.Grant `json:"wanted,omitempty"`

	// Memlock is the lowest RLIMIT_MEMLOCK of the container's processes. If no process can be read, it is the limit in
	// the container's spec.
	Memlock *spec.Rlimit `json:"memlock,omitempty"`
	// Registers is how much memory each process that uses RDMA can register, as the kernel counts it.
	Registers *spec.Limit `json:"registers,omitempty"`
	// RegistersBytes is the same in bytes.
	RegistersBytes uint64 `json:"registersBytes,omitempty"`
	// IPCLock is whether CAP_IPC_LOCK is effective in the first process, in the node's user namespace.
	IPCLock *bool `json:"ipcLock,omitempty"`
	// UserNamespace is true if the container has its own user namespace, in which CAP_IPC_LOCK has no effect.
	UserNamespace bool `json:"userNamespace,omitempty"`
	// HCAs are the names of the HCAs that the container can open.
	HCAs []string `json:"hcas"`
	// AllDevices is true if the container can open every device on the node, for example because it is privileged.
	AllDevices bool `json:"allDevices,omitempty"`
	// Use is how the container's processes use RDMA.
	Use Use `json:"use"`

	// State is how the container differs from the policy.
	State State `json:"state"`
	// Problems are the differences from the policy, and how to fix them.
	Problems []string `json:"problems"`
	// Notes are further facts about the container.
	Notes []string `json:"notes,omitempty"`
}

// Container is a running container: what it has, what the policy gives it, and what should be done about it.
type Container struct {
	Report
	process.Inside `json:"-"`
	Runtime        cri.Identity `json:"-"`
	Handler        string       `json:"-"` // what its pod's RuntimeClass names; "" without one
	RDMA           bool         `json:"-"` // a signal names it
	OpenFiles      *spec.Rlimit `json:"-"` // of the process that can register the least
	Uses           bool         `json:"-"` // none does, and it has an HCA open, or holds a resource with RDMA
	Opened         []string     `json:"-"` // the verbs devices that its processes have open: uverbs0
	// Least is the process that can register the least, of those that have a verbs device open, else the first one. Idle
	// is the one of all where none has.
	Least, Idle Registering `json:"-"`
	Given       []string    `json:"-"` // the resources with RDMA that the kubelet gave it, where it holds no HCA
	// Functions are what it was given, of HCAs, where it holds none: "PCI function 0000:b1:02.5 (a/b), HCA mlx5_5".
	Functions []string   `json:"-"`
	Stale     []string   `json:"-"` // what became of its verbs devices that are those of no HCA now
	Bounding  []string   `json:"-"` // the capabilities of its spec
	Env       cri.Env    `json:"-"` // the variables of its spec that choose HCAs and interfaces
	GPUs      []int      `json:"-"` // the minor numbers of the devices of NVIDIA's GPUs that it holds
	Lacks     spec.Grant `json:"-"` // what of Wanted it lacks
	Fix       Fix        `json:"-"`

	reading  process.Reading
	unlisted bool // the kubelet does not say its resources, which may be a signal
}

// Registering is a process that can register memory.
type Registering struct {
	PID       int
	User      int // -1 where it is unknown
	Registers *spec.Limit
	Memlock   spec.Rlimit
	files     spec.Rlimit // that it may open
}

// Action is what should be done about a container's memlock.
type Action string

// The actions.
const (
	Nothing  Action = ""
	Repair   Action = "repair"   // rdma-spec repair raises it
	Recreate Action = "recreate" // only a new container has more; repair can raise the Processes of this one
)

// Fix is what should be done about a container's memlock.
type Fix struct {
	Action     Action
	Text       string // the command, or what to do
	Processes  int
	StoredSpec bool
}

// PodName is NAMESPACE/POD.
func (r *Report) PodName() string { return r.Namespace + "/" + r.Pod }

// Causes returns the problems without their fix.
func (c *Container) Causes() (all []string) {
	for _, problem := range c.Problems {
		all = append(all, strings.TrimSuffix(problem, ": "+c.Fix.Text))
	}
	return all
}

// Lowered reports whether its program has lowered its own memlock, or did not raise it as far as it may.
func (c *Container) Lowered() bool {
	return c.Memlock != nil && c.Memlock.Hard > runtime.Enough ||
		c.reading.SpecSets && c.reading.Spec.Soft > runtime.Enough
}

// StarvesRDMA reports whether it can register too little for RDMA, by the kernel's number alone: unless the policy in
// force gives it no more.
func (c *Container) StarvesRDMA() bool {
	if !c.RDMA && !c.Uses || c.Registers == nil || *c.Registers > runtime.Enough {
		return false
	}
	return c.Wanted == nil || c.Wanted.Memlock == 0 || c.Wanted.Lacks(spec.Has{Memlock: *c.Registers}).Memlock != 0
}

// Editable reports whether the container's stored spec can be edited.
func (c *Container) Editable() bool { return c.Runtime.Name == "containerd" }

// report records a problem. The first state stays, the problems are collected.
func (c *Container) report(s State, problem string) {
	if c.State == StateOK {
		c.State = s
	}
	c.Problems = append(c.Problems, problem)
}

// fix decides what should be done about the container's memlock.
func (c *Container) fix(o Options) Fix {
	if c.Lacks.Memlock == 0 {
		return Fix{}
	}
	want := c.Wanted.Memlock
	r := Fix{Action: Repair, Text: o.Command("repair", c.PodName()), Processes: c.reading.Low(want)}
	r.StoredSpec = c.Editable() && (c.reading.SpecSets && c.reading.Spec.Soft < want ||
		!c.reading.SpecSets && r.Processes > 0)
	if !r.StoredSpec && (r.Processes == 0 || !c.Editable()) {
		r.Action = Recreate
		r.Text = "recreate the pod"
	}
	return r
}

// compare compares what a container has with what it is given.
func (c *Container) compare(o Options) {
	given, known := c.reading.Given()
	if !known {
		given = c.Wanted.Memlock
	}
	c.Lacks = c.Wanted.Lacks(spec.Has{
		Memlock:  given,
		IPCLock:  c.IPCLock == nil || *c.IPCLock,
		Bounding: c.Bounding,
		Holds:    func(hca.Device) bool { return len(c.HCAs) > 0 }, // which ones it could have had is unknown
	})
	c.Fix = c.fix(o)
	if c.Wanted.Memlock != 0 && !known {
		c.report(StateUnknown, "its memlock is unknown")
	}
	if c.Wanted.Memlock != 0 && known {
		c.compareMemlock(given)
	}
	if len(c.Lacks.Devices) > 0 {
		c.report(StateBelow, fmt.Sprintf("it has no HCA, but the policy grants %s: recreate the pod", c.Wanted.DeviceNames()))
	}
	if c.IPCLock != nil {
		c.compareIPCLock()
	}
}

// compareMemlock reports a memlock that is below policy, or has a note on it.
func (c *Container) compareMemlock(given spec.Limit) {
	want := c.Wanted.Memlock
	enough := c.Memlock.Soft >= want
	switch {
	case c.Lacks.Memlock == 0 && !enough:
		c.Notes = append(c.Notes, fmt.Sprintf("its program lowered its own memlock from %s", given))
	case c.Lacks.Memlock == 0:
	case enough:
		c.report(StateBelow, fmt.Sprintf("its spec sets %s for processes that are started with exec, but the policy "+
			"grants %s: %s", given, want,
			c.Fix.Text))
	case c.IPCLock != nil && *c.IPCLock && c.Registers != nil && *c.Registers >= want:
		c.Notes = append(c.Notes, fmt.Sprintf("memlock is %s, but the policy grants %s; with CAP_IPC_LOCK, the "+
			"container can register more than its memlock", c.Memlock.Soft, want))
	default:
		c.report(StateBelow, fmt.Sprintf("memlock is %s, but the policy grants %s: %s", c.Memlock.Soft, want, c.Fix.Text))
	}
}

// compareIPCLock notes where CAP_IPC_LOCK is not as the policy wants. Memlock alone suffices, so this is not a problem.
func (c *Container) compareIPCLock() {
	note := "no CAP_IPC_LOCK: recreate the pod to get it"
	switch {
	case *c.IPCLock && c.Wanted.Memlock.Finite() && c.Wanted.IPCLock == spec.IPCLockNo:
		note = "CAP_IPC_LOCK overrides its memlock"
	case c.Lacks.IPCLock == spec.IPCLockNo:
		return
	case c.UserNamespace:
		note = "the kernel ignores CAP_IPC_LOCK in a user namespace"
	case slices.Contains(c.Bounding, spec.CapIPCLock):
		note = "its program lacks CAP_IPC_LOCK, although the container has it: either the program switched to another " +
			"user, or the container got the capability after it started (in that case, recreate the pod)"
	case !c.Editable():
		note = fmt.Sprintf("no CAP_IPC_LOCK: with %s, request it in the pod, or set it in the runtime's configuration",
			c.Runtime.Name)
	}
	c.Notes = append(c.Notes, note)
}

// readContainers asks the runtimes which containers run, what they have and what their processes see, and compares that
// with what the policy gives. If there is no policy, the default one tells the RDMA containers, and nothing else is
// judged.
func (s *Snapshot) readContainers(ctx context.Context) (found Containers, err error) {
	p, source, unjudged := s.Policy()
	if unjudged != nil {
		if p, err = policy.New(policy.Default()); err != nil {
			return found, err
		}
	}
	found, err = s.survey(ctx, p, source)
	if unjudged != nil {
		found.Unjudged = unjudged.Error()
		for i := range found.Containers {
			c := &found.Containers[i]
			c.RDMA = c.RDMA || c.State == StateUnseen // without a policy, nobody's rules leave it out
			c.State = StateUnknown
			c.Problems = []string{}
			c.Wanted = nil
			c.Lacks = spec.Grant{}
			c.Fix = Fix{}
		}
	}
	return found, err
}

// Incomplete is the error of a look that does not know everything; nil where it does.
func (c *Containers) Incomplete() error {
	if c.Failed == 0 {
		return nil
	}
	return errors.New("cannot examine " + cli.Counted(c.Failed, "container", "containers"))
}

// Sources names the policy and the runtimes that a result comes from.
func (c *Containers) Sources() []string {
	lines := []string{"policy: " + c.Policy.String()}
	for _, r := range c.Runtimes {
		lines = append(lines, fmt.Sprintf("runtime: %s %s at %s", r.Name, r.Version, r.Socket))
	}
	return lines
}

// JudgedContainers returns the containers of the pods that were asked for, or all. It fails where there is no policy to
// judge them by.
func (s *Snapshot) JudgedContainers() (found Containers, err error) {
	if _, _, err := s.Policy(); err != nil {
		return found, err
	}
	found, err = s.Containers()
	return found, s.inCopy(err)
}

// inCopy adds to an error that an archive has of a part when it happened.
func (s *Snapshot) inCopy(err error) error {
	if err == nil || !s.Archived {
		return err
	}
	return fmt.Errorf("when the support bundle was written: %w", err)
}
