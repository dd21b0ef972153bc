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

// container is the container that verify tests.
type container struct {
	root     string                                                 // the directory with sys, proc, and dev
	self     int                                                    // the program's process ID
	hcas     node.HCAReader                                         // reads HCAs; nil reads them in this process
	process  func(pid int) (limits.Process, error)                  // reads the limits of a process
	open     func(path string) error                                // opens a device
	register func(path string, driver verbs.Driver, size int) error // registers memory with an HCA
	lock     func(size int) error                                   // locks memory
}

// note is the status of a neutral fact: something is missing, but not all programs need it.
const note doctor.Status = "note"

// shown contains the first word of a line for each status.
var shown = map[doctor.Status]string{doctor.OK: "ok", note: "-", doctor.Unknown: "?", doctor.Wrong: "FAIL"}

// Result contains the findings about RDMA in a container.
type Result struct {
	doctor.Diagnosis
	// Verdict is the cause, if RDMA fails.
	Verdict Verdict `json:"verdict"`
}

// verification tests a container.
type verification struct {
	container
	Result

	seen      *node.Snapshot // the node under the root
	size      spec.Limit
	own       *limits.Process // the limits of the program's own process; nil if unknown
	target    int             // the process whose limits are checked in addition; 0 if none
	elsewhere bool            // the tested programs are in another container, with other devices
	judged    process.Inside  // the view of the tested programs
}

// read returns the text of a small file under the root, without surrounding spaces; "" if the file cannot be read.
func (v *verification) read(name string) string {
	text, _ := v.seen.Files.Read(name, 64<<10)
	return strings.TrimSpace(string(text))
}

// processFile returns the name of a process's file.
func processFile(pid int, file string) string { return process.Process{PID: pid}.File("", file) }

func (v *verification) add(check string, is doctor.Status, format string, args ...any) {
	v.Findings = append(v.Findings, doctor.Finding{Check: check, Status: is, Text: fmt.Sprintf(format, args...)})
}

// addFault adds a finding that makes RDMA fail, with its cause.
func (v *verification) addFault(check string, why cause, format string, args ...any) {
	v.add(check, doctor.Wrong, format, args...)
	v.Findings[len(v.Findings)-1].Impact = causes[why].means
}

// limits reads the limits of the process.
func (v *verification) limits() {
	held, err := v.process(v.self)
	if err != nil {
		v.add("memlock", doctor.Unknown, "memlock of this process: cannot read the limit: %v", err)
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
		said = "not effective, because the kernel ignores it in a user namespace (hostUsers: false)"
	case held.IPCLock:
		is = doctor.OK
		said = "effective"
	}
	v.add("ipc-lock", is, "CAP_IPC_LOCK of %s: %s", who, said)
}

// mayRegister reports whether the memlock or CAP_IPC_LOCK of a process allows it to lock and register the memory.
func (v *verification) mayRegister(held limits.Process) bool { return held.Registers() >= v.size }

// mayLock reports whether the limits of this process allow it to lock the memory. It returns true if the limits are
// unknown.
func (v *verification) mayLock() bool { return v.own == nil || v.mayRegister(*v.own) }

// memlockFix explains how a container gets a sufficient memlock. A process cannot raise its own memlock.
const memlockFix = "check that nri-rdma is running on the node (rdma-spec doctor --only plugin) and treats this " +
	"container as an RDMA container (rdma-spec status); then recreate the pod, or run rdma-spec repair on the node"
