// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"fmt"
	"slices"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
)

// cause is the reason why RDMA fails in a container. The most important causes come first: those of a failed
// registration, then those of earlier steps, and then those of later steps.
type cause int

const (
	causeMemlock cause = iota
	causeMemory
	causeRDMACgroup
	causeCgroup
	causeSecurity
	causeMode
	causeDevice
	causeNamespace
	causeAddress
	causePort
)

var causes = []struct{ name, means string }{
	{"memlock", `"Couldn't allocate MR" is caused by RLIMIT_MEMLOCK`},
	{"memory", `"Couldn't allocate MR" is caused by a lack of pinnable memory, or by an HCA with no memory keys left`},
	{"rdma cgroup", `"Couldn't allocate MR" and similar errors are caused by the cgroup's rdma.max limit`},
	{"device cgroup", "the container cannot open the HCA, so no memory can be registered"},
	{"security module", "a security module prevents the container from opening the HCA, so no memory can be registered"},
	{"file mode", "the container's user cannot open the HCA, so no memory can be registered"},
	{"device", "the container has no usable HCA, so no memory can be registered"},
	{"namespace", "all addresses of an HCA are in another network namespace; this prevents connections, but not " +
		"registrations"},
	{"address", "an HCA's interface has no IP address; this prevents connections, but not registrations"},
	{"port down", "an HCA has no ACTIVE port; this prevents connections, but not registrations"},
}

// Verdict is the cause of "Couldn't allocate MR".
type Verdict struct {
	// Causes are the names of the causes. The list is empty if no fault was found.
	Causes []string `json:"causes"`
	// Text is the verdict in one line.
	Text string `json:"text"`
}

// conclude derives the verdict from the findings.
func (v *verification) conclude() {
	v.Verdict = Verdict{Causes: []string{}, Text: "no fault found: " + v.whatWasTried()}
	between := "; also: "
	for _, c := range causes {
		switch found := slices.ContainsFunc(v.Findings, func(f doctor.Finding) bool { return f.Impact == c.means }); {
		case !found:
			continue
		case len(v.Verdict.Causes) == 0:
			v.Verdict.Text = c.name + ": " + c.means
		default:
			v.Verdict.Text = v.Verdict.Text + between + c.name
			between = ", "
		}
		v.Verdict.Causes = append(v.Verdict.Causes, c.name)
	}
}

// whatWasTried describes the tests if no fault was found.
func (v *verification) whatWasTried() string {
	done := func(check string) bool {
		return slices.ContainsFunc(v.Findings,
			func(f doctor.Finding) bool { return f.Check == check && f.Status == doctor.OK })
	}
	switch {
	case v.elsewhere:
		return fmt.Sprintf("the limits of process %d allow registering %s, but verify did not register memory in "+
			"that process's container", v.target, v.size)
	case done("register"):
		return fmt.Sprintf("%s of memory can be registered; if a program still reports \"Couldn't allocate MR\", "+
			"its buffers might be larger, or in GPU memory (nvidia_peermem, DMA-BUF)", v.size)
	case done("lock"):
		return fmt.Sprintf("%s of memory can be locked, but no memory was registered", v.size)
	}
	return "verify did not register or lock memory"
}
