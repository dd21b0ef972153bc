// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"regexp"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
)

// sideEffect is a command's effect on the programs that are running on the node.
type sideEffect struct {
	command *regexp.Regexp
	// on returns who loses what, and a command that shows the affected programs. It returns "" if nobody loses anything.
	on func(v *View, command []string) (warning, affected string)
	// told means that a check's own warning replaces the one here.
	told bool
}

// loses is for commands with the same effect on every node.
func loses(warning, affected string) func(*View, []string) (string, string) {
	return func(*View, []string) (string, string) { return warning, affected }
}

// sideEffects are all commands of fixes that have a side effect. Other commands are safe to run.
var sideEffects = []sideEffect{
	{regexp.MustCompile(`systemctl restart ([\w@.-]*\w)|configure [^&]*--restart`), restartsRuntime, false},
	// configure restarts the unit that it has changed after a reload.
	{regexp.MustCompile(`systemctl (daemon-reload|(re)?enable|disable|preset)|configure (--all|limits) [^&]*--restart`),
		reloads, false},
	{regexp.MustCompile(`configure plugin --launched`), insteadOfService, false},
	{regexp.MustCompile(`modprobe -r|rmmod`), loses("Programs lose access to the module's devices.", "lsmod"), true},
	{regexp.MustCompile(`/(un)?bind\b`), loses("Programs in all network namespaces lose access to the device.",
		"rdma-spec status; rdma resource show"), true},
	{regexp.MustCompile(`ip link set (dev )?\S+ (down|mtu|name|netns|nomaster|vf)`), loses(
		"Programs that use the interface or the function lose their connections for a short time.",
		"ip -details link; ip route"), true},
	{regexp.MustCompile(`rdma system set netns`), loses("Pods that share HCAs lose access to them.",
		"rdma-spec status"), true},
}

// unharmful are units whose restart does not affect containers.
var unharmful = []string{"docker", "kubelet", "nri-rdma", "nri-rdma-validator"}

// restartsRuntime relies on the fact that K3s runs the kubelet and containerd in one unit.
func restartsRuntime(_ *View, command []string) (warning, affected string) {
	if slices.Contains(unharmful, command[1]) {
		return "", ""
	}
	return "Restarting the runtime ends exec sessions and the processes started in them. Containers keep running.",
		"ss -tnp | grep -e containerd -e crio -e k3s"
}

// reloads is about devices that a hook added, such as the hook of NVIDIA's container runtime.
func reloads(v *View, _ []string) (warning, affected string) {
	return v.ReloadTakes(), node.ShowsScopes
}

// insteadOfService returns the reason why the runtime launches the plugin.
func insteadOfService(v *View, _ []string) (warning, affected string) {
	if takes := v.ReloadTakes(); takes != "" {
		return "Installing the plugin as a service would reload systemd. " + takes, node.ShowsScopes
	}
	return "", ""
}

// weighed sets the type of a fault's fix on this node, and adds a warning about side effects. A manual fix stays
// manual.
func (f Finding) weighed(v *View) Finding {
	if f.Status != Wrong {
		return f
	}
	var warnings, affected []string
	if f.Warning != "" {
		warnings = append(warnings, f.Warning)
		affected = append(affected, f.Affected)
	}
	for _, effect := range sideEffects {
		if effect.told && (f.Warning != "" || f.FixType == "") {
			continue
		}
		for _, command := range effect.command.FindAllStringSubmatch(f.Fix, -1) {
			if warning, shows := effect.on(v, command); warning != "" {
				warnings = append(warnings, warning)
				affected = append(affected, shows)
				break
			}
		}
	}
	if len(warnings) == 0 {
		return f
	}
	f.Warning = strings.Join(warnings, " ")
	f.Affected = strings.Join(affected, "; ")
	if f.FixType == FixSafe {
		f.FixType = FixDisruptive
	}
	return f
}
