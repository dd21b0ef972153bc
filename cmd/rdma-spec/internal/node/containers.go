// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/runtime"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// State is whether a container conforms to policy.
type State string

// The states.
const (
	StateOK      State = "ok"
	StateBelow   State = "below"   // the container lacks part of the policy's grant
	StateRefused State = "refused" // the policy would refuse the container, but it is running
	StateUnseen  State = "unseen"  // the container received its HCAs after NRI, and has no grant
	StateUnknown State = "unknown" // the runtime or the kubelet does not provide enough information
	StateOutside State = "outside" // the container uses RDMA, but is not an RDMA container
)

// Containers are the running containers on a node. Status prints the fields of their JSON.
type Containers struct {
	// Policy is the policy that the containers are compared with.
	Policy   JudgedBy `json:"policy"`
	Unjudged string   `json:"-"` // why no policy is in force; in this case, ignore the states
	// Runtimes are the container runtimes that responded.
	Runtimes []cri.Identity `json:"runtimes"`
	// Containers are the RDMA containers, and the containers that could not be examined.
	Containers []Container `json:"containers"`
	// Outside are other containers that use RDMA, and processes that run outside containers and use RDMA.
	Outside []Container `json:"outside"`
	Others  []Container `json:"-"` // other containers with an allocated or open HCA
	// Notes are further facts about the node.
	Notes  []string `json:"notes,omitempty"`
	Failed int      `json:"-"` // unknown containers, and possible RDMA containers
}

// Report is the status of a container.
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

	// Signal is what makes the container an RDMA container.
	Signal policy.Signal `json:"signal"`
	// Evidence is the device, resource, or annotation key that is the signal.
	Evidence string `json:"evidence,omitempty"`
	// Rule is the policy rule that applies to the container.
	Rule string `json:"rule,omitempty"`
	// Wanted is the container's grant according to the policy.
	Wanted *spec.Grant `json:"wanted,omitempty"`

	// Memlock is the lowest RLIMIT_MEMLOCK of the container's processes. If no process can be read, it is the limit in
	// the container's spec.
	Memlock *spec.Rlimit `json:"memlock,omitempty"`
	// Registers is how much memory each process that uses RDMA can register, according to the kernel.
	Registers *spec.Limit `json:"registers,omitempty"`
	// RegistersBytes is Registers in bytes.
	RegistersBytes uint64 `json:"registersBytes,omitempty"`
	// IPCLock is true if CAP_IPC_LOCK is effective in the first process, in the node's user namespace.
	IPCLock *bool `json:"ipcLock,omitempty"`
	// UserNamespace is true if the container has its own user namespace, in which CAP_IPC_LOCK has no effect.
	UserNamespace bool `json:"userNamespace,omitempty"`
	// HCAs are the names of the HCAs that the container can open.
	HCAs []string `json:"hcas"`
	// AllDevices is true if the container can open every device on the node, for example because it is privileged.
	AllDevices bool `json:"allDevices,omitempty"`
	// Use describes the use of RDMA by the container's processes.
	Use Use `json:"use"`

	// State is the result of the comparison with the policy.
	State State `json:"state"`
	// Problems are the differences from the policy.
	Problems []string `json:"problems"`
	// Fix is a command or an instruction that removes the problems.
	Fix string `json:"fix,omitempty"`
	// Notes are further facts about the container.
	Notes []string `json:"notes,omitempty"`
}

// Container is a running container, with its resources, its grant according to the policy, and how to raise its
// memlock.
type Container struct {
	Report
	process.Inside `json:"-"`
	Runtime        cri.Identity `json:"-"`
	Handler        string       `json:"-"` // the handler of the pod's RuntimeClass; "" if the pod has none
	RDMA           bool         `json:"-"` // a signal applies to the container
	OpenFiles      *spec.Rlimit `json:"-"` // the limit of the process that can register the least memory
	Uses           bool         `json:"-"` // no signal applies, but the container has an open HCA or an RDMA resource
	Opened         []string     `json:"-"` // the verbs devices that the container's processes have open: uverbs0
	// Least is the process that can register the least memory among those with an open verbs device, or else the first
	// process. Idle is the process that can register the least memory among all processes, if none has an open verbs
	// device.
	Least, Idle Registering `json:"-"`
	Given       []string    `json:"-"` // the RDMA resources that the kubelet allocated, if the container has no HCA
	// Functions lists allocated PCI functions of HCAs if the container has no HCA: "PCI function 0000:b1:02.5 (a/b), HCA
	// mlx5_5".
	Functions []string   `json:"-"`
	Stale     []string   `json:"-"` // the verbs devices that no longer belong to their HCA
	Bounding  []string   `json:"-"` // the capabilities in the container's spec
	Env       cri.Env    `json:"-"` // the variables in the spec that select HCAs and interfaces
	GPUs      []int      `json:"-"` // the minor numbers of the container's NVIDIA GPUs
	Lacks     spec.Grant `json:"-"` // the part of Wanted that the container lacks
	Raise     Raise      `json:"-"`

	reading  process.Reading
	unlisted bool // the kubelet does not report the resources, which can be a signal
}

// Registering is a process that can register memory.
type Registering struct {
	PID       int
	User      int // -1 if unknown
	Registers *spec.Limit
	Memlock   spec.Rlimit
	files     spec.Rlimit // the limit on open files
}

// Action is a way to raise a container's memlock.
type Action string

// The actions.
const (
	Nothing  Action = ""
	Repair   Action = "repair"   // rdma-spec repair raises the memlock
	Recreate Action = "recreate" // only a new container gets more; repair can raise this container's Processes
)

// Raise describes how to raise a container's memlock, and what rdma-spec repair can raise.
type Raise struct {
	Action     Action
	Processes  int
	StoredSpec bool
}

// PodName is NAMESPACE/POD.
func (r *Report) PodName() string { return r.Namespace + "/" + r.Pod }

// Lowered reports whether the container's program lowered its own memlock, or did not raise it to the hard limit.
func (c *Container) Lowered() bool {
	return c.Memlock != nil && c.Memlock.Hard > runtime.Enough ||
		c.reading.SpecSets && c.reading.Spec.Soft > runtime.Enough
}

// StarvesRDMA reports whether the container can register too little memory for RDMA according to the kernel. It returns
// false if the container has the memlock that the policy in force grants.
func (c *Container) StarvesRDMA() bool {
	if !c.RDMA && !c.Uses || c.Registers == nil || *c.Registers > runtime.Enough {
		return false
	}
	return c.Wanted == nil || c.Wanted.Memlock == 0 || c.Wanted.Lacks(spec.Has{Memlock: *c.Registers}).Memlock != 0
}

// Editable reports whether the container's stored spec can be edited.
func (c *Container) Editable() bool { return c.Runtime.Name == "containerd" }

// report records a problem. It keeps the first state, and collects all problems.
func (c *Container) report(s State, problem string) {
	if c.State == StateOK {
		c.State = s
	}
	c.Problems = append(c.Problems, problem)
}

// raise returns how to raise the container's memlock.
func (c *Container) raise() Raise {
	if c.Lacks.Memlock == 0 {
		return Raise{}
	}
	want := c.Wanted.Memlock
	r := Raise{Action: Repair, Processes: c.reading.Low(want)}
	r.StoredSpec = c.Editable() && (c.reading.SpecSets && c.reading.Spec.Soft < want ||
		!c.reading.SpecSets && r.Processes > 0)
	if !r.StoredSpec && (r.Processes == 0 || !c.Editable()) {
		r.Action = Recreate
	}
	return r
}

// Repairable reports whether rdma-spec repair gives the container everything that it lacks. Only a new container gets
// devices.
func (c *Container) Repairable() bool { return c.Raise.Action == Repair && len(c.Lacks.Devices) == 0 }

// fix returns the command or the instruction that removes the problems of a container below policy.
func (c *Container) fix(o Options) string {
	switch {
	case c.State != StateBelow:
		return ""
	case c.Repairable():
		return o.Command("repair", c.PodName())
	}
	return "recreate the pod"
}

// compare compares a container's resources with the policy's grant.
func (c *Container) compare(o Options) {
	given, known := c.reading.Given()
	if !known {
		given = c.Wanted.Memlock
	}
	c.Lacks = c.Wanted.Lacks(spec.Has{
		Memlock:  given,
		IPCLock:  c.IPCLock == nil || *c.IPCLock,
		Bounding: c.Bounding,
		Holds:    func(hca.Device) bool { return len(c.HCAs) > 0 }, // the HCAs that it could have had are unknown
	})
	c.Raise = c.raise()
	if c.Wanted.Memlock != 0 && !known {
		c.report(StateUnknown, "memlock is unknown")
	}
	if c.Wanted.Memlock != 0 && known {
		c.compareMemlock(given)
	}
	if len(c.Lacks.Devices) > 0 {
		c.report(StateBelow, "the container has no HCA, but the policy grants "+c.Wanted.DeviceNames())
	}
	if c.IPCLock != nil {
		c.compareIPCLock()
	}
	c.Fix = c.fix(o)
}

// compareMemlock reports a memlock below policy, or adds a note about the memlock.
func (c *Container) compareMemlock(given spec.Limit) {
	want := c.Wanted.Memlock
	enough := c.Memlock.Soft >= want
	switch {
	case c.Lacks.Memlock == 0 && !enough:
		c.Notes = append(c.Notes, fmt.Sprintf("the program lowered its own memlock from %s", given))
	case c.Lacks.Memlock == 0:
	case enough:
		c.report(StateBelow, fmt.Sprintf("the container's spec sets memlock to %s for processes started with "+
			"exec, but the policy grants %s", given, want))
	case c.IPCLock != nil && *c.IPCLock && c.Registers != nil && *c.Registers >= want:
		c.Notes = append(c.Notes, fmt.Sprintf("memlock is %s, but the policy grants %s; with CAP_IPC_LOCK, the "+
			"container can register more memory than its memlock allows", c.Memlock.Soft, want))
	default:
		c.report(StateBelow, fmt.Sprintf("memlock is %s, but the policy grants %s", c.Memlock.Soft, want))
	}
}

// compareIPCLock adds a note if CAP_IPC_LOCK differs from the policy. This is not a problem, because memlock alone
// suffices.
func (c *Container) compareIPCLock() {
	note := "the container lacks CAP_IPC_LOCK: to add the capability, recreate the pod"
	switch {
	case *c.IPCLock && c.Wanted.Memlock.Finite() && c.Wanted.IPCLock == spec.IPCLockNo:
		note = "CAP_IPC_LOCK overrides the container's memlock"
	case c.Lacks.IPCLock == spec.IPCLockNo:
		return
	case c.UserNamespace:
		note = "the kernel ignores CAP_IPC_LOCK in a user namespace"
	case slices.Contains(c.Bounding, spec.CapIPCLock):
		note = "the program lacks CAP_IPC_LOCK, although the container has it: the program switched to another user, or " +
			"started before the container got the capability (if so, recreate the pod)"
	case !c.Editable():
		note = fmt.Sprintf("the container lacks CAP_IPC_LOCK: on %s, add the capability in the pod's spec or in "+
			"the runtime's configuration", c.Runtime.Name)
	}
	c.Notes = append(c.Notes, note)
}

// readContainers queries the runtimes for the running containers, reads their resources and processes, and compares
// them with the policy's grants. Without a policy, the default policy identifies the RDMA containers, and no grants are
// compared.
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
			c.RDMA = c.RDMA || c.State == StateUnseen // without a policy, no rule excludes the container
			c.State = StateUnknown
			c.Problems = []string{}
			c.Wanted = nil
			c.Lacks = spec.Grant{}
			c.Fix = ""
			c.Raise = Raise{}
		}
	}
	return found, err
}

// Incomplete returns an error if some containers could not be examined.
func (c *Containers) Incomplete() error {
	if c.Failed == 0 {
		return nil
	}
	return errors.New("cannot examine " + cli.Counted(c.Failed, "container", "containers"))
}

// Sources lists the policy and the runtimes from which a result comes.
func (c *Containers) Sources() []string {
	lines := []string{"policy: " + c.Policy.String()}
	for _, r := range c.Runtimes {
		lines = append(lines, fmt.Sprintf("runtime: %s %s at %s", r.Name, r.Version, r.Socket))
	}
	return lines
}

// JudgedContainers returns the containers of the requested pods, or all containers. Without a policy, it fails.
func (s *Snapshot) JudgedContainers() (found Containers, err error) {
	if _, _, err := s.Policy(); err != nil {
		return found, err
	}
	found, err = s.Containers()
	return found, s.inCopy(err)
}

// inCopy adds to an error from an archive that it occurred when the archive was written.
func (s *Snapshot) inCopy(err error) error {
	if err == nil || !s.Archived {
		return err
	}
	return fmt.Errorf("an error occurred when the support bundle was written: %w", err)
}
