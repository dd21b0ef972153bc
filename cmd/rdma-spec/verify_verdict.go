// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"
)

// cause is why RDMA fails in a container.
type cause string

const (
	causeMemlock    cause = "memlock"
	causeMemory     cause = "memory"
	causeRDMACgroup cause = "rdmaCgroup"
	causeCgroup     cause = "deviceCgroup"
	causeMode       cause = "fileMode"
	causeDevice     cause = "device"
	causeNamespace  cause = "namespace"
	causePort       cause = "portDown"
)

// meanings are what the causes prevent, the most important first: those that prevent a registration, those that come before it,
// and those that come after it.
var meanings = []struct {
	cause       cause
	name, means string
}{
	{causeMemlock, "memlock", `"Couldn't allocate MR" is caused by RLIMIT_MEMLOCK`},
	{causeMemory, "memory", `"Couldn't allocate MR" is caused by a lack of memory that can be pinned`},
	{causeRDMACgroup, "rdma cgroup", `"Couldn't allocate MR" and the like are caused by the limit rdma.max of the cgroup`},
	{causeCgroup, "device cgroup", "the container cannot open the HCA, so no memory can be registered"},
	{causeMode, "file mode", "the container's user cannot open the HCA, so no memory can be registered"},
	{causeDevice, "device", "the container has no usable HCA, so no memory can be registered"},
	{causeNamespace, "namespace", "the HCA, or all of its addresses, belong to another network namespace; this does not prevent a registration, but connections"},
	{causePort, "port down", "no port carries traffic; this does not prevent a registration, but connections"},
}

// conclusion is the cause of "Couldn't allocate MR".
type conclusion struct {
	Causes []cause `json:"causes"` // empty: nothing was found
	Text   string  `json:"text"`
}

// verdict draws the conclusion from the facts.
func (v *verification) verdict() conclusion {
	found := conclusion{Causes: []cause{}}
	var others []string
	for _, m := range meanings {
		if !slices.ContainsFunc(v.Facts, func(f fact) bool { return f.Cause == m.cause }) {
			continue
		}
		if len(found.Causes) == 0 {
			found.Text = m.name + ": " + m.means
		} else {
			others = append(others, m.name)
		}
		found.Causes = append(found.Causes, m.cause)
	}
	switch {
	case len(others) > 0:
		found.Text += "; also: " + strings.Join(others, ", ")
	case len(found.Causes) == 0:
		found.Text = "nothing found: " + v.tried()
	}
	return found
}

// tried returns what was tried where no fault was found.
func (v *verification) tried() string {
	done := func(about check) bool {
		return slices.ContainsFunc(v.Facts, func(f fact) bool { return f.Check == about && f.Verdict == good })
	}
	switch {
	case v.elsewhere:
		return fmt.Sprintf("the limits of process %d allow memory of %s, but none was registered in its container", v.Target.PID, v.size)
	case done(checkRegister):
		return fmt.Sprintf(`memory of %s can be registered; if "Couldn't allocate MR" is reported all the same, look at larger buffers, and at GPU memory (nvidia_peermem, DMA-BUF)`, v.size)
	case done(checkLock):
		return fmt.Sprintf("memory of %s can be locked, but no memory was registered", v.size)
	}
	return "but no memory was registered or locked"
}
