// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/plugin/manifest"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec"
)

// verdict gives a container's verdict and its summary.
func verdict(c Container) (Verdict, string) {
	if c.Otherwise != nil {
		return IfInjected, conditional(c)
	}
	switch {
	case c.Decision.Refusal != nil:
		return Refused, summary(c.Decision)
	case c.Decision.Grant != nil:
		return RDMA, summary(c.Decision)
	}
	return NotRDMA, summary(c.Decision)
}

// summary gives a decision on one line.
func summary(d policy.Decision) string {
	switch {
	case d.Refusal != nil:
		return "refused: " + d.Refusal.Message
	case d.Grant != nil:
		return fmt.Sprintf("RDMA by %s, rule %s: %s", d.Signal, d.Rule, d.Grant)
	case d.Reason != "":
		return "not RDMA: " + d.Reason
	}
	return "not RDMA"
}

// conditional gives on one line what hangs on the device plugin.
func conditional(c Container) string {
	condition := "if its device plugin injects verbs devices (" + strings.Join(c.Sources, ", ") + ")"
	line := fmt.Sprintf("not RDMA %s", condition)
	switch d := c.Decision; {
	case d.Refusal != nil:
		line = fmt.Sprintf("refused %s: %s", condition, d.Refusal.Message)
	case d.Grant != nil:
		line = fmt.Sprintf("RDMA %s, rule %s: %s", condition, d.Rule, d.Grant)
	}
	if otherwise := summary(*c.Otherwise); otherwise != "not RDMA" {
		line += "; otherwise " + otherwise
	}
	return line
}

// notes gives what the decision does not say and the container's author should know.
func (e Explainer) notes(pod manifest.Pod, c manifest.Container, out Container) []string {
	var notes []string
	grant := out.Decision.Grant
	if c.Init && !c.Restartable && len(c.Held) > 0 && e.Policy.NeedsResources() {
		notes = append(notes, "the kubelet does not tell the resources of ordinary init containers, so no rule matches by them: only devices and annotations count")
	}
	if c.AllDevices && len(c.Held)+len(c.Claims) > 0 {
		notes = append(notes, "it is privileged and holds every device of the node, so devices are no signal")
	}
	if grant == nil {
		return notes
	}
	switch {
	case grant.IPCLock == spec.IPCLockNo:
		if slices.ContainsFunc(c.AddCapabilities, isIPCLock) && grant.Memlock.Finite() && grant.Memlock != 0 {
			notes = append(notes, "the manifest itself adds IPC_LOCK, which voids the memlock of "+grant.Memlock.String()+" for processes of root")
		}
	case pod.OwnUsers:
		notes = append(notes, "hostUsers: false: the kernel asks for CAP_IPC_LOCK in the node's user namespace, so here it does nothing; memlock works")
	case grant.IPCLock == spec.IPCLockUnlessDropped && slices.Contains(c.DropCapabilities, "ALL") && len(e.Base) > 0 && !slices.ContainsFunc(out.Changes, Change.isIPCLock):
		notes = append(notes, "no CAP_IPC_LOCK: the manifest drops all capabilities; memlock suffices for RDMA")
	}
	return notes
}

func isIPCLock(capability string) bool {
	return strings.TrimPrefix(capability, "CAP_") == strings.TrimPrefix(spec.CapIPCLock, "CAP_") || capability == "ALL"
}
