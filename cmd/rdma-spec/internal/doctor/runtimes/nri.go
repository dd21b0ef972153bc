// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package runtimes

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/agents"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/runtime"
)

// The shortest timeouts that the plugin can work with. The plugin can spend 300 ms on a request.
const (
	shortestRegistration = time.Second
	shortestRequest      = 500 * time.Millisecond
)

// nriChecks are the checks of NRI.
func nriChecks() []doctor.Check {
	return []doctor.Check{{
		ID: "nri-on", Family: "nri", Title: "NRI is enabled in each runtime.",
		NoMessages: "in new containers, `ulimit -l` prints the runtime's own limit",
		Impact:     "The plugin cannot register, so RDMA containers start without their grant.",
		Needs:      []string{"runtime-config", "runtime-rlimits", "configuration-kept"}, Look: adjusting(nriOn),
	}, {
		ID: "nri-socket", Family: "nri", Title: "The NRI socket exists.",
		Impact: "The plugin cannot register, so RDMA containers start without their grant.",
		Needs:  []string{"nri-on", "cri-serves"}, Look: adjusting(nriSocket),
	}, {
		ID: "nri-owner", Family: "nri", Title: "The runtime that runs pods listens on the NRI socket.",
		NoMessages: "the plugin reports that it is registered, but RDMA containers start without their grant",
		Impact:     "The plugin registers with the wrong runtime, so RDMA containers start without their grant.",
		Needs:      []string{"nri-socket"}, Look: adjusting(nriOwner),
	}, {
		ID: "nri-required-plugins", Family: "nri", Title: "Containers that do not use RDMA start even if the plugin is " +
			"not running.",
		Impact: "While the plugin is not running, no container on the node starts, " +
			"not even the plugin's own container.",
		Needs: []string{"runtime-config"}, Look: eachRuntime(nriRequired),
	}, {
		ID: "nri-timeouts", Family: "nri", Title: "The NRI timeouts are long enough for a plugin to answer.",
		Impact: "The runtime drops a plugin that answers too late, and creates containers without it.",
		Needs:  []string{"nri-on"}, Look: eachRuntime(nriTimeouts),
	}, {
		ID: "nri-rivals", Family: "nri", Title: "No other NRI plugin sets memlock or adds RDMA devices.",
		Impact: "If two plugins set the same limit or add the same device, the runtime cannot create the container.",
		Reads:  []string{agents.LaunchedDir + "/*"}, Look: withPlugin(conflictingPlugins),
	}}
}

// adjusting runs a check of each runtime if the plugin is installed. Without the plugin, RDMA containers do not need
// NRI.
func adjusting(look func(r runtime.Runtime, all []runtime.Runtime) []doctor.Finding) doctor.Look {
	return withPlugin(func(v *doctor.View, _ agents.Plugin) []doctor.Finding { return eachRuntime(look)(v) })
}

func nriOn(r runtime.Runtime, all []runtime.Runtime) []doctor.Finding {
	drops, _ := r.DropsRlimits()
	switch {
	case drops: // NRI would not help; runtime-rlimits reports the fault
		return nil
	case !r.Known:
		return []doctor.Finding{unknownSettings(r)}
	case r.NRI.On:
		return nil
	}
	return []doctor.Finding{doctor.Fault(runtimeObject(r), fmt.Sprintf("NRI is off: %s.", r.NRI.Off),
		configureRuntime(r, all, "nri")).Command()}
}

func nriSocket(r runtime.Runtime, _ []runtime.Runtime) []doctor.Finding {
	if !r.Serves || !r.NRI.On || r.NRI.SocketExists {
		return nil
	}
	text := fmt.Sprintf("The configuration turns NRI on, but the socket %s does not exist. The runtime is running with "+
		"an older configuration, or the socket was removed.", r.NRI.Socket)
	return []doctor.Finding{doctor.Fault(runtimeObject(r), text, restartRuntime(r)).Command()}
}

// nriOwner relies on the fact that a containerd without CRI, such as Docker's, does not use the socket.
func nriOwner(r runtime.Runtime, all []runtime.Runtime) []doctor.Finding {
	if r.Pods == 0 || r.PID == 0 || r.NRI.Listener == 0 || r.NRI.Listener == r.PID {
		return nil
	}
	other := fmt.Sprintf("process %d", r.NRI.Listener)
	file := "the other runtime's configuration"
	if i := slices.IndexFunc(all, func(o runtime.Runtime) bool { return o.PID == r.NRI.Listener }); i >= 0 {
		other = runtimeObject(all[i])
		file = all[i].Config
	}
	fix := fmt.Sprintf("In %s, set disable = true in [plugins.'io.containerd.nri.v1.nri']. Restart the other runtime. "+
		"Then run: %s && systemctl restart nri-rdma", file, restartRuntime(r))
	return []doctor.Finding{doctor.Fault(runtimeObject(r), fmt.Sprintf("Instead of this runtime, %s listens on %s.",
		other, r.NRI.Socket), fix)}
}

func nriRequired(r runtime.Runtime, _ []runtime.Runtime) []doctor.Finding {
	required := strings.Join(r.NRI.Required, ", ")
	switch {
	case !r.NRI.On || !r.NRI.Validator || required == "":
		return nil
	case !slices.Contains(r.NRI.Required, "rdma"): // an administrator's decision
		return []doctor.Finding{doctor.Told(runtimeObject(r), "Every container on the node requires these plugins: %s. "+
			"If one of these plugins is not running, no container starts.", required)}
	}
	fix := fmt.Sprintf("In %s, remove \"rdma\" from required_plugins. Add the "+
		"required-plugins.noderesource.dev annotation to the pods that need a plugin. Then run: %s", r.Config,
		restartRuntime(r))
	return []doctor.Finding{doctor.Fault(runtimeObject(r), "Every container on the node requires these plugins: "+
		required+".", fix)}
}

func nriTimeouts(r runtime.Runtime, _ []runtime.Runtime) (found []doctor.Finding) {
	for _, limit := range []struct {
		key           string
		set, shortest time.Duration
		containerd    string
	}{
		{"plugin_registration_timeout", r.NRI.RegistrationTimeout, shortestRegistration, "5s"},
		{"plugin_request_timeout", r.NRI.RequestTimeout, shortestRequest, "2s"},
	} {
		if r.NRI.On && limit.set > 0 && limit.set < limit.shortest {
			fix := fmt.Sprintf(`Set %s = "%s" in %s, and then run: %s`, limit.key, limit.containerd, r.Config, restartRuntime(r))
			found = append(found, doctor.Fault(runtimeObject(r), fmt.Sprintf(
				"%s is %s. The plugin might need more time to answer.", limit.key, limit.set), fix))
		}
	}
	return found
}

// conflictingPlugins checks the running plugins and the plugins that a runtime launches at startup.
func conflictingPlugins(v *doctor.View, plugin agents.Plugin) (found []doctor.Finding) {
	files, err := v.Glob(agents.LaunchedDir + "/*")
	if err != nil {
		return []doctor.Finding{doctor.Unsure("", "The plugins that runtimes launch cannot be listed: "+err.Error()+".")}
	}
	var launched []string
	for _, file := range files {
		_, name, _ := strings.Cut(path.Base(file), "-") // 10-ulimit-adjuster
		if slices.Contains(agents.Conflicting, name) {
			launched = append(launched, name)
			found = append(found, doctor.Fault("plugin "+name,
				fmt.Sprintf("The runtime launches /%s, which can set the same limit or add the same devices as nri-rdma.", file),
				"rm /"+file+" && "+restartRuntime(forPods(v))).Disruptive(
				"Pod annotations for this plugin no longer have an effect.", "kubectl get pods -A -o yaml | grep nri"))
		}
	}
	running := 0
	meet := map[string]bool{}
	for _, p := range plugin.Processes {
		switch {
		case slices.Contains(agents.Conflicting, p.Name) && !slices.Contains(launched, p.Name):
			text := fmt.Sprintf("%s is running (PID %d), and can set the same limit or add the same devices as "+
				"nri-rdma.", p.Name, p.PID)
			found = append(found, doctor.Fault("plugin "+p.Name, text,
				fmt.Sprintf("If no pod on the node needs %s, remove it from the node. If a DaemonSet runs it, exclude this node "+
					"with a node selector, because deleting the DaemonSet affects all nodes. If a systemd unit runs it, disable "+
					"the unit", p.Name)))
		case agents.Injecting[p.Name] != "" && !slices.Contains(agents.Conflicting, p.Name):
			found = append(found, doctor.Told("plugin "+p.Name, "%s is running (PID %d), and adds the devices that a pod "+
				"names in its %s annotation. A container with an HCA from this plugin is an RDMA container only if the "+
				"policy allows opt-ins by annotation in the pod's namespace, or if the kubelet allocated an HCA to the "+
				"container.",
				p.Name, p.PID, agents.Injecting[p.Name]))
		case p.Name == agents.PluginName && !p.Validator && !meet[p.Handover]:
			running++
			meet[p.Handover] = p.Handover != "" // two pods of a DaemonSet, one of which waits for the connection of the other
		}
	}
	if running > 1 {
		found = append(found, doctor.Fault("plugin "+agents.PluginName, fmt.Sprintf("%d nri-rdma processes are running.",
			running),
			"Keep only one installation of nri-rdma: the service, the DaemonSet, or the plugin that the runtime launches"))
	}
	return found
}

// forPods returns the runtime for pods. If the runtime is unknown, it returns containerd with its usual unit.
func forPods(v *doctor.View) runtime.Runtime {
	answer, _ := v.Runtimes()
	return append(answer.ForPods(), runtime.Runtime{Name: runtime.NameContainerd})[0]
}
