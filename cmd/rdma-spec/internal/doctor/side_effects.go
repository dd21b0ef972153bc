// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"regexp"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
)

// sideEffect is what a command takes from what runs on the node.
type sideEffect struct {
	command *regexp.Regexp
	// takes says who loses what by it, and how to see that first; nothing where nobody on the node does.
	takes func(v *View, command []string) (loses, see string)
	// told is true where a check that has a word of its own on it says who loses what.
	told bool
}

// loses is of commands that may take the same from any node.
func loses(what, see string) func(*View, []string) (string, string) {
	return func(*View, []string) (string, string) { return what, see }
}

// sideEffects are all commands of fixes that take something. What is not among them is safe to run.
var sideEffects = []sideEffect{
	{regexp.MustCompile(`systemctl restart (\S+)|configure [^&]*--restart`), restartsRuntime, false},
	// configure restarts the unit that it has changed after a reload.
	{regexp.MustCompile(`systemctl (daemon-reload|(re)?enable|disable|preset)|configure (--all|limits) [^&]*--restart`),
		reloads, false},
	{regexp.MustCompile(`configure plugin --launched`), insteadOfService, false},
	{regexp.MustCompile(`modprobe -r|rmmod`), loses("programs lose the devices that the module drives", "lsmod"), true},
	{regexp.MustCompile(`/(un)?bind\b`), loses("all programs that have the device open lose it, in any network namespace",
		"rdma-spec status; rdma resource show"), true},
	{regexp.MustCompile(`ip link set (dev )?\S+ (down|mtu|name|netns|nomaster|vf)`), loses(
		"programs that use the interface or the function briefly lose their connection", "ip -details link; ip route"), true},
	{regexp.MustCompile(`rdma system set netns`), loses("pods that share HCAs lose them", "rdma-spec status"), true},
}

// unharmful are units whose restart takes nothing from containers.
var unharmful = []string{"docker", "kubelet", "nri-rdma", "nri-rdma-validator"}

// restartsRuntime knows that the kubelet of K3s is one with its containerd.
func restartsRuntime(_ *View, command []string) (loses, see string) {
	if slices.Contains(unharmful, command[1]) {
		return "", ""
	}
	return "a restart of the runtime ends exec sessions, and jobs that were started through them",
		"ss -tnp | grep -e containerd -e crio -e k3s"
}

// reloads is about what a hook has given, as that of NVIDIA's container runtime.
func reloads(v *View, _ []string) (loses, see string) { return v.ReloadTakes(), node.ShowsScopes }

// insteadOfService says why the runtime is to launch the plugin.
func insteadOfService(v *View, _ []string) (loses, see string) {
	if takes := v.ReloadTakes(); takes != "" {
		return "installation as a service would have a further side effect: " + takes, node.ShowsScopes
	}
	return "", ""
}

// weighed gives a fault the type of its fix on this node, and says who loses what by it. A manual fix stays one.
func (f Finding) weighed(v *View) Finding {
	if f.Status != Wrong {
		return f
	}
	var taken, looks []string
	if what, see, found := strings.Cut(f.Warning, "; check first: "); found {
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
	f.Warning = strings.Join(taken, "; ") + "; check first: " + strings.Join(looks, "; ")
	if f.FixType == FixSafe {
		f.FixType = FixDisruptive
	}
	return f
}
