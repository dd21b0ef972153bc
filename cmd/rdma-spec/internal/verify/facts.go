// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"fmt"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/verbs"
	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/spec"
)

// container is what verify tries.
type container struct {
	root     string                                                 // where sys, proc and dev are
	self     int                                                    // the program's process ID
	hcas     node.HCAReader                                         // reads HCAs; nil reads them in this process
	process  func(pid int) (limits.Process, error)                  // what a process may lock
	open     func(path string) error                                // opens a device
	register func(path string, driver verbs.Driver, size int) error // registers memory with an HCA
	lock     func(size int) error                                   // locks memory
}

// note is the status of what is neither good nor bad: not there, and not needed by all programs.
const note doctor.Status = "note"

// shown is how lines begin.
var shown = map[doctor.Status]string{doctor.OK: "ok", note: "-", doctor.Unknown: "?", doctor.Wrong: "FAIL"}

// Result is what a container can do with RDMA.
type Result struct {
	doctor.Diagnosis
	// Verdict is the cause, if RDMA fails.
	Verdict Verdict `json:"verdict"`
}

// verification tries a container.
type verification struct {
	container
	Result

	seen      *node.Snapshot // of the root
	size      spec.Limit
	own       *limits.Process // the limits of the program's own process, nil where they are unknown
	target    int             // the process whose limits count beside, 0 for none
	elsewhere bool            // the container whose programs are judged is not this one, and can open other devices
	judged    process.Inside  // what its programs see
}

// read returns the text of a small file below the root, without spaces around it; "" where there is none.
func (v *verification) read(name string) string {
	text, _ := v.seen.Files.Read(name, 64<<10)
	return strings.TrimSpace(string(text))
}

// processFile returns the name of a process's file.
func processFile(pid int, file string) string { return process.Process{PID: pid}.File("", file) }

func (v *verification) add(check string, is doctor.Status, format string, args ...any) {
	v.Findings = append(v.Findings, doctor.Finding{Check: check, Status: is, Text: fmt.Sprintf(format, args...)})
}

// addFault adds a finding that makes RDMA fail, and why.
func (v *verification) addFault(check string, why cause, format string, args ...any) {
	v.add(check, doctor.Wrong, format, args...)
	v.Findings[len(v.Findings)-1].Impact = causes[why].means
}

// limits reads what the process may lock.
func (v *verification) limits() {
	held, err := v.process(v.self)
	if err != nil {
		v.add("memlock", doctor.Unknown, "memlock of this process: cannot read it: %v", err)
		return
	}
	v.own = &held
	v.showLimits("this process", held)
}

// showLimits adds the findings about the limits of a process.
func (v *verification) showLimits(who string, held limits.Process) {
	enough := note
	if held.Memlock.Soft == spec.Unlimited {
		enough = doctor.OK
	}
	v.add("memlock", enough, "memlock of %s: %s (hard: %s)", who, held.Memlock.Soft, held.Memlock.Hard)
	is := note
	said := "not effective"
	switch {
	case held.IPCLock && held.UserNamespace:
		said = "effective, but the kernel ignores it in a user namespace (hostUsers: false)"
	case held.IPCLock:
		is = doctor.OK
		said = "effective"
	}
	v.add("ipc-lock", is, "CAP_IPC_LOCK of %s: %s", who, said)
}

// mayRegister reports whether memlock and CAP_IPC_LOCK, where the kernel counts it, let a process lock, and register,
// the memory.
func (v *verification) mayRegister(held limits.Process) bool { return held.Registers() >= v.size }

// mayLock reports whether they let this process, as far as its limits are known.
func (v *verification) mayLock() bool { return v.own == nil || v.mayRegister(*v.own) }

// memlockRemedy explains how a container gets a sufficient memlock. A process cannot raise its own.
const memlockFix = "check that nri-rdma is running on the node and treats this container as an RDMA container " +
	"(rdma-spec explain, rdma-spec status); then recreate the pod, or run rdma-spec repair on the node"
