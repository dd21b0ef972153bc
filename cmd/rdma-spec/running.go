// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/cri"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/plugin/repair"
	"github.com/rdma-spec/rdma-spec/spec"
)

// state reports whether a container is as the policy wants.
type state string

const (
	stateOK      state = "ok"
	stateBelow   state = "below"   // it has less than the policy gives
	stateRefused state = "refused" // the policy would refuse it, and it runs
	stateUnknown state = "unknown" // the runtime or the kubelet does not provide enough information
)

// runningContainer is a running RDMA container, or a container that cannot be examined.
type runningContainer struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Container string `json:"container"`
	ID        string `json:"id"`
	PID       int    `json:"pid"`

	Signal   policy.Signal `json:"signal"`
	Evidence string        `json:"evidence,omitempty"`
	Rule     string        `json:"rule,omitempty"`
	Wanted   *spec.Grant   `json:"wanted,omitempty"` // what the policy gives

	Memlock       *spec.Rlimit `json:"memlock,omitempty"` // the lowest of its processes; where none can be seen, its spec's
	IPCLock       *bool        `json:"ipcLock,omitempty"` // CAP_IPC_LOCK is effective in the first process, in the node's user namespace
	UserNamespace bool         `json:"userNamespace,omitempty"`
	HCAs          []string     `json:"hcas"`
	AllDevices    bool         `json:"allDevices,omitempty"`

	State    state    `json:"state"`
	Problems []string `json:"problems"`
	Notes    []string `json:"notes,omitempty"`

	found   cri.Container
	reading repair.Reading
}

// is records a problem. The first state stays, the problems are collected.
func (r *runningContainer) is(s state, problem string) {
	if r.State == stateOK {
		r.State = s
	}
	r.Problems = append(r.Problems, problem)
}

// isLow reports whether processes, or the stored spec, have less memlock than the policy gives.
func (r *runningContainer) isLow() bool {
	verdict := r.reading.Judge(r.Wanted.Memlock)
	return verdict == repair.Below || verdict == repair.SpecBelow
}

// toRaise returns what rdma-spec repair raises: how many processes, and whether the stored spec.
func (r *runningContainer) toRaise() (processes int, stored bool) {
	want := r.Wanted.Memlock
	processes = r.reading.Low(want)
	stored = r.reading.SpecSets && r.reading.Spec.Soft < want
	if !r.reading.SpecSets { // processes of execs have the runtime's own
		stored = processes > 0
	}
	return processes, stored && editable(r.found)
}

// compare compares what a container has with what it is given.
func (r *runningContainer) compare(o nodeOptions) {
	switch want := r.Wanted.Memlock; r.reading.Judge(want) {
	case repair.Below:
		r.is(stateBelow, fmt.Sprintf("memlock is %s, the policy gives %s: %s", r.Memlock.Soft, want, o.command("repair", r.pod())))
	case repair.SpecBelow:
		remedy := o.command("repair", r.pod())
		if !editable(r.found) {
			remedy = "recreate the pod"
		}
		r.is(stateBelow, fmt.Sprintf("its spec gives processes of an exec %s, the policy gives %s: %s", r.reading.Spec.Soft, want, remedy))
	case repair.Unknown:
		r.is(stateUnknown, "its memlock is unknown")
	case repair.Lowered:
		r.Notes = append(r.Notes, fmt.Sprintf("its program has lowered its own memlock from %s", r.Memlock.Hard))
	case repair.Sufficient:
	}
	if len(r.Wanted.Devices) > 0 && len(r.HCAs) == 0 {
		r.is(stateBelow, fmt.Sprintf("it holds no HCA, the policy gives %s: recreate the pod", r.Wanted.DeviceNames()))
	}
	if r.IPCLock != nil {
		r.compareIPCLock()
	}
}

// compareIPCLock notes where CAP_IPC_LOCK is not as the policy wants. Memlock alone suffices, so this is not a problem.
func (r *runningContainer) compareIPCLock() {
	switch bounding := r.found.Spec.Bounding; {
	case *r.IPCLock && r.Wanted.Memlock.Finite() && r.Wanted.IPCLock == spec.IPCLockNo:
		r.Notes = append(r.Notes, "CAP_IPC_LOCK voids its memlock")
	case *r.IPCLock || !r.Wanted.IPCLock.Adds(bounding):
	case r.UserNamespace:
		r.Notes = append(r.Notes, "the kernel does not count CAP_IPC_LOCK in a user namespace")
	case slices.Contains(bounding, spec.CapIPCLock):
		r.Notes = append(r.Notes, "no CAP_IPC_LOCK: the container has it and its program does not, as after a change of the user")
	case !editable(r.found):
		r.Notes = append(r.Notes, fmt.Sprintf("no CAP_IPC_LOCK: with %s a container has it from its pod or from the runtime's configuration", r.found.Runtime.Name))
	default:
		r.Notes = append(r.Notes, "no CAP_IPC_LOCK: recreate the pod to get it")
	}
}

func (r *runningContainer) pod() string { return r.Namespace + "/" + r.Pod }
