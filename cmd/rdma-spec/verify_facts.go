// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/verbs"
	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/spec"
)

// container is what verify tries.
type container struct {
	root      string                                                 // where sys, proc and dev are
	self      int                                                    // the program's process ID
	process   func(pid int) (limits.Process, error)                  // what a process may lock
	open      func(path string) error                                // opens a device
	register  func(path string, driver verbs.Driver, size int) error // registers memory with an HCA
	lock      func(size int) error                                   // locks memory
	room      func() (bytes uint64, known bool)                      // how much memory is left within the container's limit
	addresses func() (map[netip.Addr]bool, error)                    // those of the network namespace
	shared    func(folder string) (bytes uint64, mounted bool)       // the size of a /dev/shm
}

// judgement says what a fact means for RDMA.
type judgement string

const (
	good    judgement = "ok"
	note    judgement = "note"    // neither good nor bad: not there, and not needed by all programs
	unknown judgement = "unknown" // verify cannot find out, which is not a fault
	bad     judgement = "fail"    // RDMA would fail
)

// shown is how lines begin.
var shown = map[judgement]string{good: "ok", note: "-", unknown: "?", bad: "FAIL"}

// check is what a fact is about.
type check string

const (
	checkMemlock  check = "memlock"
	checkIPCLock  check = "ipcLock"
	checkDevice   check = "device"
	checkPort     check = "port"
	checkGID      check = "gid"
	checkRegister check = "register"
	checkLock     check = "lock"
	checkLibrary  check = "library"
	checkShared   check = "sharedMemory"
)

// fact is one line of verify.
type fact struct {
	Check   check     `json:"check"`
	Verdict judgement `json:"verdict"`
	Cause   cause     `json:"cause,omitempty"` // of a fault
	Text    string    `json:"text"`
}

// verified is the result of verify.
type verified struct {
	APIVersion string       `json:"apiVersion"`
	Memlock    *spec.Rlimit `json:"memlock,omitempty"` // of the program's own process
	IPCLock    bool         `json:"ipcLock"`           // effective, and not in a user namespace of its own
	Target     *targetLimit `json:"target,omitempty"`
	Fails      bool         `json:"fails"`
	Facts      []fact       `json:"facts"`
	Verdict    conclusion   `json:"verdict"`
}

// verification tries a container.
type verification struct {
	container
	verified
	size      spec.Limit
	image     string // the folder that shows the files of the container whose programs are judged
	elsewhere bool   // this container is not that one, and can open other devices
}

func (v *verification) add(about check, is judgement, format string, args ...any) {
	v.Facts = append(v.Facts, fact{Check: about, Verdict: is, Text: fmt.Sprintf(format, args...)})
}

// fails adds a fact that makes RDMA fail, and why.
func (v *verification) fails(about check, why cause, format string, args ...any) {
	v.Facts = append(v.Facts, fact{Check: about, Verdict: bad, Cause: why, Text: fmt.Sprintf(format, args...)})
	v.Fails = true
}

// limits reads what the process may lock.
func (v *verification) limits() {
	held, err := v.process(v.self)
	if err != nil {
		v.add(checkMemlock, unknown, "memlock of this process: cannot be read: %v", err)
		return
	}
	v.Memlock, v.IPCLock = &held.Memlock, counts(held)
	v.showLimits("this process", held)
}

// showLimits adds the facts about the limits of a process.
func (v *verification) showLimits(who string, held limits.Process) {
	is := note
	if held.Memlock.Soft == spec.Unlimited {
		is = good
	}
	v.add(checkMemlock, is, "memlock of %s: %s (hard: %s)", who, held.Memlock.Soft, held.Memlock.Hard)
	switch {
	case held.IPCLock && held.UserNamespace:
		v.add(checkIPCLock, note, "CAP_IPC_LOCK of %s: effective, but the kernel does not count it in a user namespace (hostUsers: false)", who)
	case held.IPCLock:
		v.add(checkIPCLock, good, "CAP_IPC_LOCK of %s: effective", who)
	default:
		v.add(checkIPCLock, note, "CAP_IPC_LOCK of %s: not effective", who)
	}
}

// counts reports whether a process has CAP_IPC_LOCK where the kernel counts it.
func counts(held limits.Process) bool { return held.IPCLock && !held.UserNamespace }

// mayLock reports whether memlock and CAP_IPC_LOCK let the process lock, and register, the memory.
func (v *verification) mayLock() bool {
	return v.IPCLock || v.Memlock == nil || v.Memlock.Soft >= v.size
}

// memlockRemedy explains how a container gets a sufficient memlock. A process cannot raise its own.
const memlockRemedy = "see that nri-rdma runs on the node and takes this container for an RDMA container (rdma-spec explain, rdma-spec status), and recreate the pod or run rdma-spec repair on the node"
