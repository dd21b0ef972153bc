// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor/runtimes"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/runtime"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec"
)

// containerMemlock checks how much memory the kernel lets each container register. If the amount is sufficient but less
// than the policy grants, the finding is a note.
func containerMemlock(v *doctor.View, c node.Container) []doctor.Finding {
	switch {
	case !c.RDMA && !c.Uses:
		return nil
	case c.Registers == nil:
		return []doctor.Finding{doctor.Unsure(containerObject(c), doctor.Sentence(slices.Concat(c.Problems,
			[]string{"the amount of memory that the container can register is unknown"})))}
	case c.StarvesRDMA():
		return []doctor.Finding{starves(v, c)}
	case isIdleStarved(c):
		return []doctor.Finding{doctor.Unsure(containerObject(c), fmt.Sprintf("No process has an HCA open. Process %d of "+
			"user %d can register at most %s of memory, but other processes can register more. A program that cannot "+
			"register memory might fall back to sockets. Find the program or setting that lowers the process's limit, "+
			"and check whether the process is meant to run as this user.", c.Idle.PID, c.Idle.User, *c.Idle.Registers))}
	case c.Raise.Action == node.Nothing:
		return nil
	case c.State != node.StateBelow:
		return []doctor.Finding{doctor.Told(containerObject(c), "The container's memlock is below the policy's grant (%s), "+
			"but CAP_IPC_LOCK lets the container register more memory.", c.Wanted.Memlock)}
	}
	return []doctor.Finding{doctor.Told(containerObject(c), "%s",
		doctor.Sentence([]string{cli.Why(c.Problems, c.Fix, nil)}))}
}

// isIdleStarved reports whether a process that has no HCA open can register too little, although its container was
// granted more.
func isIdleStarved(c node.Container) bool {
	c.Registers = c.Idle.Registers
	return c.StarvesRDMA()
}

// containerIPCLock reports containers that have the capability, but whose first process lacks it.
func containerIPCLock(v *doctor.View, c node.Container) []doctor.Finding {
	if !slices.Contains(c.Bounding, spec.CapIPCLock) || c.IPCLock == nil || *c.IPCLock || c.User <= 0 || c.UserNamespace ||
		!c.StarvesRDMA() {
		return nil
	}
	f := starves(v, c)
	f.Text = fmt.Sprintf("The container has CAP_IPC_LOCK, but its process runs as user %d and lacks this "+
		"capability. %s", c.User, f.Text)
	return []doctor.Finding{f}
}

func containerUnseen(_ *doctor.View, c node.Container) []doctor.Finding {
	if c.State != node.StateUnseen || c.Registers == nil || *c.Registers > runtime.Enough {
		return nil
	}
	return []doctor.Finding{doctor.Fault(containerObject(c), fmt.Sprintf("The container can register at most %s of "+
		"memory. %s", *c.Registers, doctor.Sentence(c.Problems)), "Decide whether to allow images to add "+
		"HCAs through the NVIDIA_MOFED variable. If you allow this, "+c.Fix)}
}

// starves returns the fault of a container that can register too little, with its cause. A repair does not affect the
// container's programs.
func starves(v *doctor.View, c node.Container) doctor.Finding {
	has := fmt.Sprintf("The container has %s, but can register at most %s of memory",
		cmp.Or(strings.Join(c.HCAs, ", "), "no HCA"), *c.Registers)
	if c.Least.PID != c.PID && c.Least.Registers != nil {
		has = fmt.Sprintf("The container's process %d, which runs as user %d and has an HCA open, can register at most %s "+
			"of memory", c.Least.PID, c.Least.User, *c.Registers)
	}
	// If its capabilities are unknown, it might have CAP_IPC_LOCK.
	if c.UserNamespace && (len(c.Bounding) == 0 || slices.Contains(c.Bounding, spec.CapIPCLock)) {
		has += ", because the kernel ignores CAP_IPC_LOCK in the pod's user namespace (hostUsers: false)"
	}
	fault := func(fix, format string, args ...any) doctor.Finding {
		return doctor.Fault(containerObject(c), has+". "+fmt.Sprintf(format, args...)+".", fix)
	}
	again := func(format string, args ...any) doctor.Finding { return recreate(c, fault("", format, args...).Text) }
	underPolicy := "The policy grants more, but the container was created under another policy or without the plugin"
	if c.Signal == policy.SignalResource {
		underPolicy += ", or while the kubelet was not responding"
	}
	hard := c.Memlock
	if c.Least.Registers != nil {
		hard = &c.Least.Memlock
	}
	outside := "The container is not an RDMA container"
	if c.AllDevices {
		outside = "The container is not an RDMA container, because it is privileged"
	}
	r, all := runtimeOf(v, c)
	own := r.Handler(c.Handler)
	gives := r.Gives(c.Handler)
	giving, others := r.Giving(own)
	plugin, _ := v.Plugin() // plugin-runs reports the error
	switch {
	case c.Repairable():
		return fault(c.Fix, "%s", underPolicy).Command()
	case c.Raise.Action != node.Nothing:
		return again("%s", underPolicy)
	case c.Lowered() && hard != nil && hard.Hard <= runtime.Enough:
		return fault("The container's program cannot raise its hard limit, so find out what lowered the limit. "+
			"Slurm gives a job the limits of the shell that submitted it. If Slurm started the program, set "+
			"PropagateResourceLimitsExcept=MEMLOCK in slurm.conf, or raise memlock in the login pod. Otherwise, check "+
			"/etc/security/limits.conf in the image, and check the image's scripts for ulimit -l, which sets both the soft and "+
			"the hard limit",
			"The container was granted a higher limit, but its hard limit was lowered afterward")
	case c.Lowered():
		return fault("Raise the limit in the program (ulimit -l unlimited). Or check whether a script or "+
			"/etc/security/limits.conf in the image lowers the limit",
			"The container was granted a higher limit, but the program lowered its own limit, or did not raise its soft limit")
	case gives != nil && *gives > runtime.Enough:
		return again("The container was created before the runtime's memlock was set to %s%s. Recreate the pod", gives,
			memlockSource(r, own))
	case !c.RDMA:
		return fault("In a namespace that the policy lists in optIn.namespaces, recreate the pod with the annotation "+
			"rdma.noderesource.dev: \"true\"", "%s. The policy grants memlock only to RDMA containers", outside)
	case c.Wanted != nil && c.Wanted.Memlock == 0:
		return fault("In the policy, set memlock in the rule or at the top level. Then recreate the pod",
			"Rule %q of the policy leaves the container's memlock unchanged, and the runtime does not raise it", c.Rule)
	case plugin.Installed():
		return fault("Start nri-rdma (to check the plugin, run rdma-spec doctor --only plugin), and then run: "+
			"rdma-spec repair "+c.PodName(), "The container was created while the nri-rdma plugin was not registered")
	case own.Memlock != nil:
		f := runtimes.LowBaseSpec(r, all, own)
		f.Object = containerObject(c)
		f.Text = fault("", "The container's handler %s uses the base_runtime_spec %s, which limits memlock. Apply the "+
			"fix, and recreate the pod", own.Name, own.BaseSpec).Text
		return f
	case !r.Known:
		return fault(runtimes.Raise(v, r, all),
			"The plugin is not installed, and the runtime's own limit is unknown").Command()
	case !others:
		return fault(runtimes.Raise(v, r, all)+" && rdma-spec wait && rdma-spec repair "+c.PodName(),
			"On this node, neither a plugin nor a runtime setting raises memlock%s", memlockSource(r, own)).Command()
	case !addsNothing(own) && giving.Program != own.Program:
		name := "rdma-" + own.Name
		return fault(runtimes.HandlerLike(r, all, name, own.Name), "The base_runtime_spec of handler %s sets memlock to "+
			"%s. The container uses handler %s, which starts %s. Run the command below, set "+
			"runtimeClassName: %s in the pod, and recreate the pod",
			giving.Name, giving.Memlock, own.Name, cmp.Or(own.Program, "another program"), name).Command()
	case c.Handler == "":
		return fault(setHandler(giving), "The pod has no RuntimeClass. On this node, the %s handler would set memlock "+
			"to %s", giving.Name, giving.Memlock)
	}
	return fault(setHandler(giving), "The container's handler is %s%s. The %s handler would set memlock to %s", own.Name,
		memlockSource(r, own), giving.Name, giving.Memlock)
}

// addsNothing reports whether a handler starts an OCI runtime that adds nothing to containers, unlike NVIDIA's.
func addsNothing(h runtime.Handler) bool {
	program, _, _ := strings.Cut(h.Program, " ")
	return slices.Contains([]string{"", "crun", "runc"}, program)
}

// setHandler returns the instruction for setting a pod's handler.
func setHandler(h runtime.Handler) string {
	return fmt.Sprintf("In the pod, set runtimeClassName to the name of a RuntimeClass whose handler is %s, and "+
		"recreate the pod", h.Name)
}

// memlockSource names the setting that a handler's memlock comes from.
func memlockSource(r runtime.Runtime, h runtime.Handler) string {
	switch {
	case h.Memlock != nil:
		return fmt.Sprintf(" (%s, the base_runtime_spec of %s)", h.BaseSpec, h.Name)
	case r.DefaultMemlock != nil:
		return " (default_ulimits)"
	case r.Memlock != nil:
		return fmt.Sprintf(" (the limit of %s itself is %s)", r.Name, r.Memlock)
	}
	return ""
}

// runtimeOf returns the runtime of a container, and all runtimes.
func runtimeOf(v *doctor.View, c node.Container) (r runtime.Runtime, all []runtime.Runtime) {
	answer, _ := v.Runtimes() // the checks of runtimes report the error
	for _, r := range answer.ForPods() {
		if r.Socket == c.Runtime.Socket {
			return r, answer.Runtimes
		}
	}
	return append(answer.ForPods(), runtime.Runtime{Name: c.Runtime.Name})[0], answer.Runtimes
}

// manyFiles is systemd's default for the soft limit on a service's open files.
const manyFiles = 1024

// containerFiles checks how many files each container can open. A program can raise its own limit up to the hard limit,
// so only a low hard limit proves a fault.
func containerFiles(v *doctor.View, c node.Container) []doctor.Finding {
	r, _ := runtimeOf(v, c)
	switch {
	case !c.RDMA || c.OpenFiles == nil || c.OpenFiles.Soft == 0 || c.OpenFiles.Soft > manyFiles,
		r.Handler(c.Handler).CapsFiles: // base-spec-files reports this fault
		return nil
	}
	text := fmt.Sprintf("The container's processes have a soft limit of %d open files and a hard limit of %d. The "+
		"processes inherit these limits from %s, whose systemd unit does not set LimitNOFILE, as is the default in "+
		"containerd 2.0 and later.", c.OpenFiles.Soft, c.OpenFiles.Hard, cmp.Or(r.Name, "the runtime"))
	if c.OpenFiles.Hard > manyFiles {
		return []doctor.Finding{doctor.Unsure(containerObject(c), text+" The container's programs might "+
			"report \"Too many open files\".")}
	}
	return []doctor.Finding{doctor.Fault(containerObject(c), text, runtimes.LimitFiles(r)+". Then recreate the pod")}
}
