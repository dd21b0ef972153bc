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
	// takes returns who loses what, and the command that shows the affected programs. It returns "" if nobody does.
	takes func(v *View, command []string) (loses, see string)
	// told means that a check's own warning replaces the one here.
	told bool
}

// loses is for commands with the same effect on every node.
func loses(what, see string) func(*View, []string) (string, string) {
	return func(*View, []string) (string, string) { return what, see }
}

// sideEffects are all commands of fixes that have a side effect. Other commands are safe to run.
var sideEffects = []sideEffect{
	{regexp.MustCompile(`systemctl restart (\S+)|configure [^&]*--restart`), restartsRuntime, false},
	// configure restarts the unit that it has changed after a reload.
	{regexp.MustCompile(`systemctl (daemon-reload|(re)?enable|disable|preset)|configure (--all|limits) [^&]*--restart`),
		reloads, false},
	{regexp.MustCompile(`configure plugin --launched`), insteadOfService, false},
	{regexp.MustCompile(`modprobe -r|rmmod`), loses("programs lose access to the module's devices", "lsmod"), true},
	{regexp.MustCompile(`/(un)?bind\b`), loses("programs in all network namespaces lose access to the device",
		"rdma-spec status; rdma resource show"), true},
	{regexp.MustCompile(`ip link set (dev )?\S+ (down|mtu|name|netns|nomaster|vf)`), loses(
		"programs that use the interface or the function briefly lose their connections",
		"ip -details link; ip route"), true},
	{regexp.MustCompile(`rdma system set netns`), loses("pods that share HCAs lose access to them",
		"rdma-spec status"), true},
}

// unharmful are units whose restart does not affect containers.
var unharmful = []string{"docker", "kubelet", "nri-rdma", "nri-rdma-validator"}

// restartsRuntime relies on the fact that K3s runs the kubelet and containerd in one unit.
func restartsRuntime(_ *View, command []string) (loses, see string) {
	if slices.Contains(unharmful, command[1]) {
		return "", ""
	}
	return "a restart of the runtime ends exec sessions and the jobs that were started in them",
		"ss -tnp | grep -e containerd -e crio -e k3s"
}

// reloads is about devices that a hook added, such as the hook of NVIDIA's container runtime.
func reloads(v *View, _ []string) (loses, see string) { return v.ReloadTakes(), node.ShowsScopes }

// insteadOfService returns the reason why the runtime launches the plugin.
func insteadOfService(v *View, _ []string) (loses, see string) {
	if takes := v.ReloadTakes(); takes != "" {
		return "installing the plugin as a service would have this side effect: " + takes, node.ShowsScopes
	}
	return "", ""
}

// weighed sets the type of a fault's fix on this node, and adds a warning about side effects. A manual fix stays
// manual.
func (f Finding) weighed(v *View) Finding {
	if f.Status != Wrong {
		return f
	}
	var taken, looks []string
	if what, see, found := strings.Cut(f.Warning, CheckFirst); found {
		taken = append(taken, what)
		looks = append(looks, see)
	}
	for _, h := range sideEffects {
		if h.told && (f.Warning != "" || f.FixType == "") {
			continue
		}
		for _, command := range h.command.FindAllStringSubmatch(f.Fix, -1) {
			if what, see := h.takes(v, command); what != "" {
				taken = append(taken, what)
				looks = append(looks, see)
				break
			}
		}
	}
	if len(taken) == 0 {
		return f
	}
	f.Warning = strings.Join(taken, "; ") + CheckFirst + strings.Join(looks, "; ")
	if f.FixType == FixSafe {
		f.FixType = FixDisruptive
	}
	return f
}
