// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package runtimes

import (
	"fmt"
	"slices"
	"time"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/agents"
)

const (
	// installPlugin is the command that installs the plugin as a service.
	installPlugin = "rdma-spec configure plugin && systemctl daemon-reload && systemctl enable --now nri-rdma"
	// launchPlugin is the command that installs the plugin so that the runtime launches it at startup, without systemd.
	launchPlugin = "rdma-spec configure plugin --launched"
	// The commands for the DaemonSet that docs/install.md installs.
	listPods          = "kubectl get pods -A -l app.kubernetes.io/name=nri-rdma -o wide"
	describeDaemonSet = "kubectl -n rdma-spec describe daemonset nri-rdma"
	checkAnnotation   = "kubectl -n rdma-spec get daemonset nri-rdma -o " +
		`jsonpath='{.spec.template.metadata.annotations.rdma-spec\.github\.io/policy}' | rdma-spec config check -`
)

// restarted returns a fault that a restart of a process of the plugin fixes. If the plugin has no process, starting the
// plugin fixes the fault. The fix is manual if the node does not show how the plugin was installed.
func restarted(object, text string, which []agents.PluginProcess, p agents.Plugin, v *doctor.View) []doctor.Finding {
	fix := ""
	switch {
	case len(which) > 0 && which[0].InContainer:
		return []doctor.Finding{recreated(object, text, which[0], p, v)}
	case p.Unit:
		fix = "systemctl restart nri-rdma"
	case p.Launched != "":
		fix = restartRuntime(forPods(v))
	default:
		return []doctor.Finding{doctor.Fault(object, text,
			"For a DaemonSet, run: "+describeDaemonSet+". For a service, run: "+installPlugin)}
	}
	return []doctor.Finding{doctor.Fault(object, text, fix).Command()}
}

// recreated returns a fault of a process of the plugin that a new pod fixes. The fix deletes only this node's pod,
// because a restart of the DaemonSet would restart the plugin on all nodes. Without a rollout, no other process takes
// over the connection.
func recreated(object, text string, q agents.PluginProcess, p agents.Plugin, v *doctor.View) doctor.Finding {
	listing, _ := v.Listing() // without it, the pod is unknown
	i := slices.IndexFunc(listing.Containers, func(l node.Listed) bool { return l.PID == q.PID })
	if i < 0 {
		return doctor.Fault(object, text,
			"Delete the plugin's pod on this node, so that the DaemonSet recreates it. To find the pod, run: "+listPods)
	}
	namespace := listing.Containers[i].Namespace
	pod := listing.Containers[i].Pod
	remove := fmt.Sprintf("kubectl -n %s delete pod %s", namespace, pod)
	if registered := p.Policy.Error != "" || p.Policy.Exists && p.Policy.Lives; registered {
		return doctor.Fault(object, text, remove).Disruptive("For a few seconds, until the plugin in the new pod is "+
			"registered, the memlock of new RDMA containers is not raised.",
			"kubectl get pods -A -o wide | grep -e Pending -e ContainerCreating")
	}
	// The log shows why the plugin is not registered, and is deleted together with the pod.
	show := fmt.Sprintf("kubectl -n %s logs %s --tail 20", namespace, pod)
	return doctor.Fault(object, text, show+"; "+remove).Command()
}

// withPlugin runs a check of the plugin if the plugin is installed.
func withPlugin(look func(v *doctor.View, p agents.Plugin) []doctor.Finding) doctor.Look {
	return func(v *doctor.View) []doctor.Finding {
		plugin, err := v.Plugin()
		if err != nil {
			return []doctor.Finding{doctor.Unsure("", "The plugin's state is unknown: "+err.Error()+".")}
		}
		if !plugin.Installed() {
			return doctor.Inapplicable("The plugin is not installed.")
		}
		return look(v, plugin)
	}
}

// withoutPlugin runs a check if the plugin, which raises the memlock of RDMA containers, is not installed.
func withoutPlugin(look doctor.Look) doctor.Look {
	return func(v *doctor.View) []doctor.Finding {
		plugin, err := v.Plugin()
		if err != nil {
			return []doctor.Finding{doctor.Unsure("", "It is unknown whether the plugin is installed: "+err.Error()+".")}
		}
		if plugin.Installed() {
			return nil
		}
		return look(v)
	}
}

// pluginChecks are the checks of the plugin.
func pluginChecks() []doctor.Check {
	return []doctor.Check{{
		ID: "plugin-runs", Family: "plugin", Title: "The plugin is running.",
		Impact: "RDMA containers start without their grant.",
		Look:   withPlugin(pluginRuns),
	}, {
		ID: "plugin-config", Family: "plugin", Title: "The plugin's configuration is valid.",
		Impact: "The plugin keeps enforcing the last valid policy or, if there is none, refuses RDMA containers.",
		Needs:  []string{"plugin-runs"}, Look: withPlugin(pluginConfig),
	}, {
		ID: "plugin-registered", Family: "plugin", Title: "The plugin is registered with the runtime.",
		Impact: "RDMA containers start without their grant.",
		Needs:  []string{"plugin-runs", "plugin-config", "nri-on", "nri-socket", "policy-readable"},
		Look:   withPlugin(pluginRegistered),
	}, {
		ID: "policy-readable", Family: "plugin", Title: "The policy in force is readable.",
		Impact: "rdma-spec status and rdma-spec repair cannot compare containers with the policy.",
		Needs:  []string{"plugin-runs"}, Look: withPlugin(policyReadable),
	}, {
		ID: "plugin-current", Family: "plugin", Title: "The running plugin matches the installed version.",
		NoMessages: "the plugin works, but the previous version is still running",
		Impact:     "An upgrade takes effect only when the plugin restarts.",
		Needs:      []string{"plugin-runs"}, Look: withPlugin(pluginCurrent),
	}}
}

func pluginRuns(v *doctor.View, p agents.Plugin) []doctor.Finding {
	if len(p.Own()) > 0 {
		return nil
	}
	return restarted("", "nri-rdma is installed, but is not running.", nil, p, v)
}

func pluginConfig(_ *doctor.View, p agents.Plugin) (found []doctor.Finding) {
	for _, q := range p.Processes {
		if q.Name == agents.PluginName && q.ConfigError != "" {
			fix := "Correct the file; the plugin reloads it automatically. To check the file, run: rdma-spec config check " +
				q.Config
			if q.InContainer {
				fix = "Correct the Helm value \"config\", or the kustomization's config.yaml. To check the DaemonSet's " +
					"policy, run: " + checkAnnotation
			}
			found = append(found, doctor.Fault("", fmt.Sprintf("nri-rdma (PID %d) cannot use %s: %s.", q.PID,
				q.Config, q.ConfigError), fix))
		}
	}
	return found
}

// pluginRegistered names the runtime as the object, so that a fault of the runtime's NRI explains the finding.
func pluginRegistered(v *doctor.View, p agents.Plugin) []doctor.Finding {
	first := p.Own()
	switch {
	case len(first) == 0:
		return nil // plugin-runs says so
	case p.Policy.Exists && p.Policy.Lives:
		running := "is running"
		if !first[0].Started.IsZero() {
			running = "has been running since " + first[0].Started.UTC().Format(time.DateTime)
		}
		text := fmt.Sprintf("nri-rdma %s %s with the policy from %s", p.Policy.Version, running, p.Policy.Source)
		if p.Policy.Version != p.Tool {
			text += "; the version of rdma-spec is " + p.Tool
		}
		return []doctor.Finding{doctor.Told("", "%s.", text)}
	}
	answer, _ := v.Runtimes() // without an answer, the finding is about the node
	object := ""
	if runtimes := answer.ForPods(); len(runtimes) > 0 {
		object = runtimeObject(runtimes[0])
	}
	text := fmt.Sprintf("nri-rdma (PID %d) is not registered with the runtime, so no policy is in force.", first[0].PID)
	return restarted(object, text, first, p, v)
}

func policyReadable(v *doctor.View, p agents.Plugin) []doctor.Finding {
	if p.Policy.Error == "" {
		return nil
	}
	return restarted("", "The policy in force cannot be used: "+p.Policy.Error+".", p.Own(), p, v)
}

func pluginCurrent(v *doctor.View, p agents.Plugin) []doctor.Finding {
	for _, q := range p.Processes {
		text := fmt.Sprintf("nri-rdma (PID %d, started %s) is still running the version that an upgrade replaced.", q.PID,
			q.Started.UTC().Format(time.DateTime))
		switch {
		case q.Name != agents.PluginName || !q.Replaced:
		case q.Validator && !q.InContainer:
			return []doctor.Finding{doctor.Fault("", text, "systemctl restart nri-rdma-validator").Command()}
		default:
			return restarted("", text, []agents.PluginProcess{q}, p, v)
		}
	}
	return nil
}
