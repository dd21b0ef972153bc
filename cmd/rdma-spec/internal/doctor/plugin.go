// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"slices"
	"time"
)

// QuestionPlugin asks for the NRI plugins that run, and for the policy in force. The answer is a Plugin.
const QuestionPlugin Question = "plugin.json"

const pluginName = "nri-rdma"

const (
	// installPlugin is the command that installs the plugin as a service.
	installPlugin = "rdma-spec configure plugin && systemctl daemon-reload && systemctl enable --now nri-rdma"
	// The DaemonSet as docs/install.md installs it.
	restartDaemonSet  = "kubectl -n rdma-spec rollout restart daemonset/nri-rdma"
	describeDaemonSet = "kubectl -n rdma-spec describe daemonset nri-rdma"
	checkConfigMap    = `kubectl -n rdma-spec get configmap nri-rdma -o jsonpath='{.data.config\.yaml}' | rdma-spec config check -`
)

// Plugin is what is installed and runs of the plugin.
type Plugin struct {
	Unit      bool            `json:"unit"`               // systemd has its unit
	Launched  string          `json:"launched,omitempty"` // the file that the runtime launches
	Processes []PluginProcess `json:"processes,omitempty"`
	Policy    PolicyInForce   `json:"policy"`
	Tool      string          `json:"tool,omitempty"` // the version of the rdma-spec that looked
}

// PluginProcess is a process of an NRI plugin.
type PluginProcess struct {
	Name        string    `json:"name"` // nri-rdma, or one of those that set the same things
	PID         int       `json:"pid"`
	InContainer bool      `json:"inContainer,omitempty"` // it is not a service, but of a DaemonSet
	Validator   bool      `json:"validator,omitempty"`   // it is nri-rdma --validate
	Started     time.Time `json:"started"`
	Replaced    bool      `json:"replaced,omitempty"`    // its program was replaced since it started
	Config      string    `json:"config,omitempty"`      // its configuration file
	ConfigError string    `json:"configError,omitempty"` // why that file is not a configuration
}

// PolicyInForce is the file that the registered plugin writes.
type PolicyInForce struct {
	Exists bool   `json:"exists"`
	Lives  bool   `json:"lives"` // the plugin that wrote it runs
	Source string `json:"source,omitempty"`
	// Version is the writer's; "" where it does not say.
	Version string `json:"version,omitempty"`
	Error   string `json:"error,omitempty"` // why it cannot be used, apart from a writer that has ended
}

// own returns the processes of the plugin, without those of the validator.
func (p Plugin) own() []PluginProcess {
	return slices.DeleteFunc(slices.Clone(p.Processes), func(q PluginProcess) bool { return q.Name != pluginName || q.Validator })
}

// installed reports whether the node is meant to have the plugin.
func (p Plugin) installed() bool {
	return p.Unit || p.Launched != "" || len(p.own()) > 0 || p.Policy.Exists
}

// restart is the command that starts the plugin again. Where no trace says how it was installed, there are two.
func (p Plugin) restart(v *View) string {
	own := p.own()
	switch {
	case len(own) > 0 && own[0].InContainer:
		return restartDaemonSet
	case p.Unit:
		return "systemctl restart nri-rdma"
	case p.Launched != "":
		return restartRuntimes(v)
	}
	return "For a DaemonSet: " + describeDaemonSet + ". For a service: " + installPlugin
}

// withPluginInstalled looks at the plugin where it is installed.
func withPluginInstalled(look func(v *View, p Plugin) []Finding) func(*View) []Finding {
	return func(v *View) []Finding {
		var plugin Plugin
		if err := v.Ask(QuestionPlugin, &plugin); err != nil {
			return []Finding{unknown("", "The plugin is unknown: "+err.Error()+".")}
		}
		if !plugin.installed() {
			return notApplied("The plugin is not installed.")
		}
		return look(v, plugin)
	}
}

// pluginChecks are the checks of the plugin.
func pluginChecks() []Check {
	asks := []Question{QuestionPlugin, QuestionRuntimes}
	return []Check{
		{
			ID: "plugin-runs", Family: "plugin", Title: "The plugin runs.",
			Messages: []string{"required plugin \"rdma\" not present"},
			Why:      "RDMA containers start without their memlock.",
			Asks:     asks, Look: withPluginInstalled(pluginRuns),
		},
		{
			ID: "plugin-config", Family: "plugin", Title: "The plugin's configuration can be read.",
			Messages: []string{"the configuration cannot be read: until it can, RDMA containers are refused", "unknown field"},
			Why:      "The plugin keeps the last good configuration. If there was none, it refuses RDMA containers.",
			Asks:     asks, Needs: []string{"plugin-runs"}, Look: withPluginInstalled(pluginConfig),
		},
		{
			ID: "plugin-registered", Family: "plugin", Title: "The plugin is registered with the runtime.",
			Messages: []string{"no policy is in force", "is out of date: the plugin that wrote it has ended"},
			Why:      "RDMA containers start without their memlock.",
			Asks:     asks, Needs: []string{"plugin-runs", "plugin-config", "nri-on", "nri-socket", "policy-readable"}, Look: withPluginInstalled(pluginRegistered),
		},
		{
			ID: "policy-readable", Family: "plugin", Title: "The policy in force can be read.",
			Messages: []string{"cannot be read as a policy", "is not trusted"},
			Why:      "rdma-spec status and repair cannot judge containers.",
			Asks:     asks, Needs: []string{"plugin-runs"}, Look: withPluginInstalled(policyReadable),
		},
		{
			ID: "plugin-current", Family: "plugin", Title: "The plugin runs the program that is installed.",
			Unheard: "The plugin works, and is the former one.",
			Why:     "An upgrade is not in effect before the plugin is restarted.",
			Asks:    asks, Needs: []string{"plugin-runs"}, Look: withPluginInstalled(pluginCurrent),
		},
	}
}

func pluginRuns(v *View, p Plugin) []Finding {
	if len(p.own()) > 0 {
		return nil
	}
	return []Finding{wrong("", "nri-rdma is installed, and does not run.", p.restart(v))}
}

func pluginConfig(_ *View, p Plugin) (found []Finding) {
	for _, q := range p.Processes {
		if q.Name == pluginName && q.ConfigError != "" {
			cure := "Correct the file: the plugin reads it again; see: rdma-spec config check " + q.Config
			if q.InContainer {
				cure = "Correct the ConfigMap nri-rdma, or the value config of the Helm release: the plugin reads it again; see: " + checkConfigMap
			}
			found = append(found, wrong("", fmt.Sprintf("nri-rdma (PID %d) cannot use %s: %s.", q.PID, q.Config, q.ConfigError), cure))
		}
	}
	return found
}

// pluginRegistered names the runtime, so that what is wrong with its NRI explains it.
func pluginRegistered(v *View, p Plugin) []Finding {
	first := p.own()
	switch {
	case len(first) == 0:
		return nil // plugin-runs says so
	case p.Policy.Exists && p.Policy.Lives:
		text := fmt.Sprintf("nri-rdma %s runs since %s, and its policy is from %s", p.Policy.Version, first[0].Started.UTC().Format(time.DateTime), p.Policy.Source)
		if p.Policy.Version != p.Tool {
			text += "; this rdma-spec is " + p.Tool
		}
		return []Finding{{Status: OK, Text: text + "."}}
	}
	var answer Runtimes
	_ = v.Ask(QuestionRuntimes, &answer) // without an answer, the finding is about the node
	object := ""
	if runtimes := answer.forPods(); len(runtimes) > 0 {
		object = runtimes[0].object()
	}
	text := fmt.Sprintf("nri-rdma (PID %d) is not registered with the runtime: no policy is in force.", first[0].PID)
	return []Finding{wrong(object, text, p.restart(v))}
}

func policyReadable(v *View, p Plugin) []Finding {
	if p.Policy.Error == "" {
		return nil
	}
	return []Finding{wrong("", "The policy in force cannot be used: "+p.Policy.Error+".", p.restart(v))}
}

func pluginCurrent(v *View, p Plugin) []Finding {
	for _, q := range p.own() {
		if q.Replaced {
			text := fmt.Sprintf("nri-rdma (PID %d, since %s) runs a program that was replaced.", q.PID, q.Started.UTC().Format(time.DateTime))
			return []Finding{wrong("", text, p.restart(v))}
		}
	}
	return nil
}
