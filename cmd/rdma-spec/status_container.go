// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/cri"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec"
)

// state says whether a container is as the policy wants.
type state string

const (
	stateOK      state = "ok"
	stateBelow   state = "below"   // it has less than the policy gives
	stateRefused state = "refused" // the policy would refuse it, and it runs
	stateUnknown state = "unknown" // nobody can tell
)

// runningContainer is an RDMA container that runs.
type runningContainer struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Container string `json:"container"`
	ID        string `json:"id"`
	PID       int    `json:"pid"`

	Signal   policy.Signal `json:"signal"`
	Evidence string        `json:"evidence,omitempty"`
	Rule     string        `json:"rule,omitempty"`
	Wanted   *wanted       `json:"wanted,omitempty"` // what the policy gives

	Memlock       *spec.Rlimit `json:"memlock,omitempty"` // of the first process
	IPCLock       *bool        `json:"ipcLock,omitempty"` // CAP_IPC_LOCK is effective in the first process, in the node's user namespace
	UserNamespace bool         `json:"userNamespace,omitempty"`
	HCAs          []string     `json:"hcas"`
	AllDevices    bool         `json:"allDevices,omitempty"`

	State    state    `json:"state"`
	Problems []string `json:"problems"`
	Notes    []string `json:"notes,omitempty"`

	wanted spec.Grant
	spec   cri.Spec
}

// wanted is what the policy gives a container.
type wanted struct {
	Memlock spec.Limit   `json:"memlock"`
	IPCLock spec.IPCLock `json:"ipcLock,omitempty"`
}

// is says that something is not as the policy wants. The first state stays, the problems are collected.
func (r *runningContainer) is(s state, problem string) {
	if r.State == stateOK {
		r.State = s
	}
	r.Problems = append(r.Problems, problem)
}

// compare compares what a container has with what it is given.
func (r *runningContainer) compare(c cri.Container) {
	if r.Memlock == nil {
		r.is(stateUnknown, "its memlock is not known")
	} else if _, low := r.Memlock.Raise(r.wanted.Memlock); low {
		r.is(stateBelow, fmt.Sprintf("memlock is %s, the policy gives %s: rdma-spec repair %s", r.Memlock.Soft, r.wanted.Memlock, r.pod()))
	}
	if len(r.wanted.Devices) > 0 && len(r.HCAs) == 0 {
		r.is(stateBelow, fmt.Sprintf("it holds no HCA, the policy gives %s: recreate the pod", r.wanted.DeviceNames()))
	}
	if r.IPCLock == nil {
		return
	}
	wantsLock := r.wanted.IPCLock == spec.IPCLockYes || r.wanted.IPCLock == spec.IPCLockUnlessDropped && !spec.DroppedAll(c.Spec.Bounding)
	switch {
	case *r.IPCLock && r.wanted.Memlock.Finite() && r.wanted.IPCLock == spec.IPCLockNo:
		r.Notes = append(r.Notes, "CAP_IPC_LOCK voids its memlock")
	case wantsLock && r.UserNamespace:
		r.Notes = append(r.Notes, "CAP_IPC_LOCK is of no use in a user namespace")
	case wantsLock && !*r.IPCLock:
		r.Notes = append(r.Notes, "no CAP_IPC_LOCK: only a new container can get it")
	}
}

func (r *runningContainer) pod() string { return r.Namespace + "/" + r.Pod }
