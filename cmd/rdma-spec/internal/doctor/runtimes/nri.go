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

// The shortest timeouts that the plugin can work with. It may spend 300 ms on a request.
const (
	shortestRegistration = time.Second
	shortestRequest      = 500 * time.Millisecond
)

// NRIChecks are the checks of NRI.
func nriChecks() []doctor.Check {
	return []doctor.Check{{
		ID: "nri-on", Family: "nri", Title: "NRI is on in each runtime.",
		NoMessages: "in new containers, `ulimit -l` prints the runtime's own limit",
		Impact:     "The plugin cannot register, so RDMA containers start without their grant.",
		Needs:      []string{"runtime-config", "runtime-rlimits", "configuration-kept"}, Look: adjusting(nriOn),
	}, {
		ID: "nri-socket", Family: "nri", Title: "The NRI socket exists.",
		Impact: "The plugin cannot register, so RDMA containers start without their grant.",
		Needs:  []string{"nri-on", "cri-serves"}, Look: adjusting(nriSocket),
	}, {
		ID: "nri-owner", Family: "nri", Title: "The runtime that runs pods listens on the NRI socket.",
		NoMessages: "the plugin reports that it is registered",
		Impact:     "The plugin registers with the wrong runtime, so RDMA containers start without their grant.",
		Needs:      []string{"nri-socket"}, Look: adjusting(nriOwner),
	}, {
		ID: "nri-required-plugins", Family: "nri", Title: "Containers that do not use RDMA start even if the plugin is " +
			"not running.",
		Impact: "While the plugin is not running, no container on the node starts, not even the plugin's own.",
		Needs:  []string{"runtime-config"}, Look: eachRuntime(nriRequired),
	}, {
		ID: "nri-timeouts", Family: "nri", Title: "The NRI timeouts are long enough for a plugin to answer.",
		Impact: "The runtime drops a plugin that answers too late, and creates containers without it.",
		Needs:  []string{"nri-on"}, Look: eachRuntime(nriTimeouts),
	}, {
		ID: "nri-rivals", Family: "nri", Title: "No other NRI plugin sets memlock or RDMA devices.",
		Impact: "If two plugins set the same limit or device, the container cannot be created.",
		Reads:  []string{agents.LaunchedDir + "/*"}, Look: withPlugin(conflictingPlugins),
	}}
}

// adjusting looks at the runtimes where the plugin is installed. Without it, nothing here needs NRI.
func adjusting(look func(r runtime.Runtime, all []runtime.Runtime) []doctor.Finding) doctor.Look {
	return withPlugin(func(v *doctor.View, _ agents.Plugin) []doctor.Finding { return eachRuntime(look)(v) })
}

func nriOn(r runtime.Runtime, all []runtime.Runtime) []doctor.Finding {
	drops, _ := r.DropsRlimits()
	switch {
	case drops: // NRI would not help: runtime-rlimits says so
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
	text := fmt.Sprintf("The configuration turns NRI on, but %s does not exist. The runtime is running with an older "+
		"configuration, or the socket was removed.", r.NRI.Socket)
	return []doctor.Finding{doctor.Fault(runtimeObject(r), text, restartRuntime(r)).Command()}
}

// nriOwner knows that a containerd without CRI, as Docker's, leaves the socket alone.
func nriOwner(r runtime.Runtime, all []runtime.Runtime) []doctor.Finding {
	if r.Pods == 0 || r.PID == 0 || r.NRI.Listener == 0 || r.NRI.Listener == r.PID {
		return nil
	}
	other := fmt.Sprintf("process %d", r.NRI.Listener)
	file := "its configuration"
	if i := slices.IndexFunc(all, func(o runtime.Runtime) bool { return o.PID == r.NRI.Listener }); i >= 0 {
		other = runtimeObject(all[i])
		file = all[i].Config
	}
	fix := fmt.Sprintf("Set disable = true in [plugins.'io.containerd.nri.v1.nri'] of %s, restart that runtime, and "+
		"then run: %s && systemctl restart nri-rdma", file, restartRuntime(r))
	return []doctor.Finding{doctor.Fault(runtimeObject(r), fmt.Sprintf("%s, not this runtime, listens on %s.",
		other, r.NRI.Socket), fix)}
}

func nriRequired(r runtime.Runtime, _ []runtime.Runtime) []doctor.Finding {
	required := strings.Join(r.NRI.Required, ", ")
	switch {
	case !r.NRI.On || !r.NRI.Validator || required == "":
		return nil
	case !slices.Contains(r.NRI.Required, "rdma"): // an administrator's will
		return []doctor.Finding{doctor.Told(runtimeObject(r), "Every container on the node requires these plugins: %s. "+
			"If one of them is not running, no container starts.", required)}
	}
	fix := fmt.Sprintf("Remove \"rdma\" from required_plugins in %s, add the annotation "+
		"required-plugins.noderesource.dev to the pods that need a plugin, and then run: %s", r.Config, restartRuntime(r))
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
			found = append(found, doctor.Fault(runtimeObject(r), fmt.Sprintf("%s is %s. The plugin might need more time.",
				limit.key, limit.set), fix))
		}
	}
	return found
}

// conflictingPlugins looks at the plugins that run and at those that a runtime launches when it starts.
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
				"pods no longer get what their annotations request from this plugin", "kubectl get pods -A -o yaml | grep nri"))
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
				fmt.Sprintf("Remove it from the node; to stop it now: kill %d", p.PID)))
		case agents.Injecting[p.Name] != "" && !slices.Contains(agents.Conflicting, p.Name):
			found = append(found, doctor.Told("plugin "+p.Name, "%s is running (PID %d), and adds the devices that a pod "+
				"names in its annotation %s. An HCA added this way makes a container an RDMA container only if the pod's "+
				"namespace is allowed to opt in by annotation, or if the kubelet allocated an HCA to the "+
				"container.", p.Name, p.PID, agents.Injecting[p.Name]))
		case p.Name == agents.PluginName && !p.Validator && !meet[p.Handover]:
			running++
			meet[p.Handover] = p.Handover != "" // two pods of a DaemonSet, of which one waits for the other's connection
		}
	}
	if running > 1 {
		found = append(found, doctor.Fault("plugin "+agents.PluginName, fmt.Sprintf("%d processes of nri-rdma are "+
			"running.", running),
			"Keep only one of these: the service, the DaemonSet, or the plugin that the runtime launches"))
	}
	return found
}

// forPods returns the runtime for pods: without an answer, it is containerd with its usual unit.
func forPods(v *doctor.View) runtime.Runtime {
	answer, _ := v.Runtimes()
	return append(answer.ForPods(), runtime.Runtime{Name: runtime.NameContainerd})[0]
}
