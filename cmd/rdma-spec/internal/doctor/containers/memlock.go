// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor/runtimes"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/runtime"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec"
)

// containerMemlock looks at what the kernel lets each container register. What a policy wants beyond that is a note.
func containerMemlock(v *doctor.View, c node.Container) []doctor.Finding {
	switch {
	case !c.RDMA && !c.Uses:
		return nil
	case c.Registers == nil:
		return []doctor.Finding{doctor.Unsure(containerObject(c), doctor.Sentence(append(c.Causes(),
			"the doctor cannot tell how much it can register")))}
	case c.StarvesRDMA():
		return []doctor.Finding{starves(v, c)}
	case isIdleStarved(c):
		return []doctor.Finding{doctor.Unsure(containerObject(c), fmt.Sprintf("No process has an HCA open. Process %d of "+
			"user %d can register at most %s; other processes can register more. A program that cannot register memory falls "+
			"back to sockets. Check what lowers the process's limit, and which user the "+
			"process runs as.", c.Idle.PID, c.Idle.User, *c.Idle.Registers))}
	case c.Fix.Action == node.Nothing:
		return nil
	case c.State != node.StateBelow:
		return []doctor.Finding{doctor.Told(containerObject(c), "Its memlock is below the policy's grant (%s), but "+
			"CAP_IPC_LOCK lets it register more.", c.Wanted.Memlock)}
	}
	return []doctor.Finding{doctor.Told(containerObject(c), "%s", doctor.Sentence(c.Problems))}
}

// isIdleStarved reports whether a process that has no HCA open can register too little, where its container was given
// more.
func isIdleStarved(c node.Container) bool {
	c.Registers = c.Idle.Registers
	return c.StarvesRDMA()
}

// containerIPCLock looks at containers that have the capability, and whose first process does not.
func containerIPCLock(v *doctor.View, c node.Container) []doctor.Finding {
	if !slices.Contains(c.Bounding, spec.CapIPCLock) || c.IPCLock == nil || *c.IPCLock || c.User <= 0 || c.UserNamespace ||
		!c.StarvesRDMA() {
		return nil
	}
	f := starves(v, c)
	f.Text = fmt.Sprintf("The container has CAP_IPC_LOCK, but its process runs as user %d and does not have this "+
		"capability. %s", c.User, f.Text)
	return []doctor.Finding{f}
}

func containerUnseen(_ *doctor.View, c node.Container) []doctor.Finding {
	if c.State != node.StateUnseen || c.Registers == nil || *c.Registers > runtime.Enough {
		return nil
	}
	return []doctor.Finding{doctor.Fault(containerObject(c), fmt.Sprintf("It can register at most %s. %s", *c.Registers,
		doctor.Sentence(c.Causes())), "The image can set this variable. Decide whether to allow that. If so, "+
		c.Fix.Text)}
}

// starves is the fault of a container that can register too little, with the cause that is the case. A repair takes
// nothing from the container.
func starves(v *doctor.View, c node.Container) doctor.Finding {
	has := fmt.Sprintf("It has %s, but can register at most %s", cmp.Or(strings.Join(c.HCAs, ", "), "no HCA"),
		*c.Registers)
	if c.Least.PID != c.PID && c.Least.Registers != nil {
		has = fmt.Sprintf("Its process %d, which runs as user %d and has an HCA open, can register at most %s", c.Least.PID,
			c.Least.User, *c.Registers)
	}
	// Where nothing is known of its capabilities, it may have the one.
	if c.UserNamespace && (len(c.Bounding) == 0 || slices.Contains(c.Bounding, spec.CapIPCLock)) {
		has += ", because the kernel ignores CAP_IPC_LOCK in its user namespace (hostUsers: false)"
	}
	fault := func(fix, format string, args ...any) doctor.Finding {
		return doctor.Fault(containerObject(c), has+": "+fmt.Sprintf(format, args...)+".", fix)
	}
	again := func(format string, args ...any) doctor.Finding { return recreate(c, fault("", format, args...).Text) }
	underPolicy := "the policy grants more, but the container was created under another policy, or without the plugin"
	if c.Signal == policy.SignalResource {
		underPolicy += ", or while the kubelet was not responding"
	}
	hard := c.Memlock
	if c.Least.Registers != nil {
		hard = &c.Least.Memlock
	}
	outside := "it is not an RDMA container"
	if c.AllDevices {
		outside = "it is privileged, so it is not an RDMA container"
	}
	r, all := runtimeOf(v, c)
	own := r.Handler(c.Handler)
	gives := r.Gives(c.Handler)
	giving, others := r.Giving(own)
	plugin, _ := v.Plugin() // plugin-runs says so
	switch {
	case c.Fix.Action == node.Repair:
		return fault(c.Fix.Text, "%s", underPolicy).Command()
	case c.Fix.Action != node.Nothing:
		return again("%s", underPolicy)
	case c.Lowered() && hard != nil && hard.Hard <= runtime.Enough:
		return fault("Find what set the hard limit, which the program cannot raise. Slurm gives a job the limits of the "+
			"shell that submitted it. In that case, set PropagateResourceLimitsExcept=MEMLOCK in slurm.conf, or raise "+
			"memlock in the login pod. Otherwise, check scripts (ulimit -l sets both limits), and the image's "+
			"/etc/security/limits.conf",
			"it was granted more, but something lowered its hard limit")
	case c.Lowered():
		return fault("Raise the limit in the program (ulimit -l unlimited), or find what lowers it: a script, or "+
			"the image's /etc/security/limits.conf", "it was granted more, but its program lowered its own limit or did "+
			"not raise it")
	case gives != nil && *gives > runtime.Enough:
		return again("it was created before its runtime's memlock was set to %s%s: recreate the pod", gives,
			memlockSource(r, own))
	case !c.RDMA:
		return fault("Set the annotation rdma.noderesource.dev: \"true\" in the pod, in a namespace that the policy lists "+
			"in optIn.namespaces, and recreate the pod", "%s, so no policy grants more", outside)
	case c.Wanted != nil && c.Wanted.Memlock == 0:
		return fault("Set memlock in this rule or at the top level of the policy, and recreate the pod",
			"the policy leaves its memlock unchanged (rule %q), and its runtime does not raise it", c.Rule)
	case plugin.Installed():
		return fault("Start nri-rdma (see: rdma-spec doctor --only plugin), and then run: rdma-spec repair "+c.PodName(),
			"it was created while the nri-rdma plugin was not registered")
	case own.Memlock != nil:
		f := runtimes.LowBaseSpec(r, all, own)
		f.Object = containerObject(c)
		f.Text = fault("", "its handler %s uses the base_runtime_spec %s, which limits memlock: run the "+
			"command below, and recreate the pod", own.Name, own.BaseSpec).Text
		return f
	case !r.Known:
		return fault(runtimes.Raise(v, r, all),
			"the plugin is not installed, and the runtime's own limit is unknown").Command()
	case !others:
		return fault(runtimes.Raise(v, r, all)+" && rdma-spec wait && rdma-spec repair "+c.PodName(),
			"nothing on this node raises memlock%s", memlockSource(r, own)).Command()
	case !addsNothing(own) && giving.Program != own.Program:
		name := "rdma-" + own.Name
		return fault(runtimes.HandlerLike(r, all, name, own.Name), "the base_runtime_spec with %s belongs to handler %s, "+
			"but the container uses handler %s, which starts %s: run the command below, set runtimeClassName: %s, and "+
			"recreate the pod",
			giving.Memlock, giving.Name, own.Name, cmp.Or(own.Program, "another program"), name).Command()
	case c.Handler == "":
		return fault(setHandler(giving), "its pod has no RuntimeClass; on this node, the handler %s would set memlock "+
			"to %s", giving.Name, giving.Memlock)
	}
	return fault(setHandler(giving), "its handler is %s%s; the handler %s would set memlock to %s", own.Name,
		memlockSource(r, own), giving.Name, giving.Memlock)
}

// addsNothing reports whether a handler starts an OCI runtime that adds nothing to containers, as NVIDIA's does.
func addsNothing(h runtime.Handler) bool {
	program, _, _ := strings.Cut(h.Program, " ")
	return slices.Contains([]string{"", "crun", "runc"}, program)
}

// setHandler is how a pod gets a handler.
func setHandler(h runtime.Handler) string {
	return fmt.Sprintf("In the pod, set runtimeClassName to the name of a RuntimeClass whose handler is %s, and "+
		"recreate the pod", h.Name)
}

// memlockSource says what a handler's memlock comes from.
func memlockSource(r runtime.Runtime, h runtime.Handler) string {
	switch {
	case h.Memlock != nil:
		return fmt.Sprintf(" (%s, the base_runtime_spec of %s)", h.BaseSpec, h.Name)
	case r.DefaultMemlock != nil:
		return " (default_ulimits)"
	case r.Memlock != nil:
		return fmt.Sprintf(" (%s itself has %s)", r.Name, r.Memlock)
	}
	return ""
}

// runtimeOf returns the runtime of a container, and all.
func runtimeOf(v *doctor.View, c node.Container) (r runtime.Runtime, all []runtime.Runtime) {
	answer, _ := v.Runtimes() // its own checks say so
	for _, r := range answer.ForPods() {
		if r.Socket == c.Runtime.Socket {
			return r, answer.Runtimes
		}
	}
	return append(answer.ForPods(), runtime.Runtime{Name: c.Runtime.Name})[0], answer.Runtimes
}

// manyFiles is the soft limit of open files that systemd gives a service that sets none.
const manyFiles = 1024

// containerFiles looks at how many files each container can open. A program may raise its own limit up to the hard one,
// so that only that one proves a fault.
func containerFiles(v *doctor.View, c node.Container) []doctor.Finding {
	r, _ := runtimeOf(v, c)
	switch {
	case !c.RDMA || c.OpenFiles == nil || c.OpenFiles.Soft == 0 || c.OpenFiles.Soft > manyFiles,
		r.Handler(c.Handler).CapsFiles: // base-spec-files says so
		return nil
	}
	text := fmt.Sprintf("A process can open %d files (%d if it raises its own limit). It inherits this limit from %s, "+
		"whose unit does not set LimitNOFILE. This is the default in containerd 2.0 and "+
		"later.", c.OpenFiles.Soft, c.OpenFiles.Hard,
		cmp.Or(r.Name, "its runtime"))
	if c.OpenFiles.Hard > manyFiles {
		return []doctor.Finding{doctor.Unsure(containerObject(c), text+" Its programs might report \"Too many open files\".")}
	}
	return []doctor.Finding{doctor.Fault(containerObject(c), text, runtimes.LimitFiles(r)+", and recreate the pod")}
}
