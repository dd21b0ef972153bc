// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
)

// NRI is what a runtime's effective configuration says about NRI, and what became of it.
type NRI struct {
	On           bool   `json:"on"`
	Off          string `json:"off,omitempty"` // the setting that turns it off: "disable = true"
	Socket       string `json:"socket,omitempty"`
	SocketExists bool   `json:"socketExists"`
	Listener     int    `json:"listener,omitempty"` // the process that listens at the socket; 0 where it is unknown

	Validator bool     `json:"validator"`          // the default validator is on
	Required  []string `json:"required,omitempty"` // the plugins that every container of the node must have

	// The timeouts of plugins; 0 where they are unknown.
	RegistrationTimeout time.Duration `json:"registrationTimeout,omitempty"`
	RequestTimeout      time.Duration `json:"requestTimeout,omitempty"`
}

// The shortest timeouts that the plugin can work with. It may spend 300 ms on a request.
const (
	shortestRegistration = time.Second
	shortestRequest      = 500 * time.Millisecond
)

// nriChecks are the checks of NRI.
func nriChecks() []Check {
	return []Check{
		{
			ID: "nri-on", Family: "nri", Title: "NRI is on in each runtime.",
			Messages: []string{"pods silently unadjusted"},
			Why:      "The plugin cannot register, and RDMA containers start without their memlock.",
			Asks:     []Question{QuestionRuntimes, QuestionPlugin}, Needs: []string{"runtime-config", "runtime-rlimits", "configuration-kept"}, Look: withPlugin(nriOn),
		},
		{
			ID: "nri-socket", Family: "nri", Title: "The socket of NRI exists.",
			Messages: []string{"nri.sock: no such file or directory"},
			Why:      "The plugin cannot register, and RDMA containers start without their memlock.",
			Asks:     []Question{QuestionRuntimes, QuestionPlugin}, Needs: []string{"nri-on", "cri-serves"}, Look: withPlugin(nriSocket),
		},
		{
			ID: "nri-owner", Family: "nri", Title: "The runtime that has the pods listens at the socket of NRI.",
			Unheard: "The plugin reports that it is registered.",
			Why:     "The plugin registers with a runtime that has no pods, and RDMA containers start without their memlock.",
			Asks:    []Question{QuestionRuntimes, QuestionPlugin}, Needs: []string{"nri-socket"}, Look: withPlugin(nriOwner),
		},
		{
			ID: "nri-required-plugins", Family: "nri", Title: "No NRI plugin is required for every container.",
			Messages: []string{"validation error: required plugin"},
			Why:      "While the plugin is gone, no container of the node starts, neither CNI's nor the plugin's own.",
			Asks:     []Question{QuestionRuntimes}, Needs: []string{"runtime-config"}, Look: eachRuntime(nriRequired),
		},
		{
			ID: "nri-timeouts", Family: "nri", Title: "The timeouts of NRI give a plugin time to answer.",
			Unheard: "Only the runtime's log reports it.",
			Why:     "The runtime drops a plugin that does not answer in time, and goes on without it.",
			Asks:    []Question{QuestionRuntimes}, Needs: []string{"nri-on"}, Look: eachRuntime(nriTimeouts),
		},
		{
			ID: "nri-rivals", Family: "nri", Title: "No other NRI plugin sets memlock or RDMA devices.",
			Messages: []string{"both tried to set"},
			Why:      "Two plugins that set the same limit or device make the creation of the container fail.",
			Asks:     []Question{QuestionPlugin, QuestionRuntimes}, Reads: []string{launchedFolder + "/*"}, Look: nriRivals,
		},
	}
}

// withPlugin looks at the runtimes where the plugin is installed. Without it, nothing here needs NRI.
func withPlugin(look func(r Runtime, all []Runtime) []Finding) func(*View) []Finding {
	return func(v *View) []Finding {
		var plugin Plugin
		if err := v.Ask(QuestionPlugin, &plugin); err != nil {
			return []Finding{unknown("", "Whether the plugin is installed is unknown: "+err.Error()+".")}
		}
		if !plugin.installed() {
			return notApplied("The plugin is not installed.")
		}
		return eachRuntime(func(_ *View, r Runtime, all []Runtime) []Finding { return look(r, all) })(v)
	}
}

func nriOn(r Runtime, all []Runtime) []Finding {
	drops, _ := r.dropsRlimits()
	switch {
	case drops: // NRI would not help: runtime-rlimits says so
		return nil
	case !r.Known:
		return []Finding{r.unknown()}
	case r.NRI.On:
		return nil
	}
	return []Finding{wrong(r.object(), fmt.Sprintf("NRI is off: %s.", r.NRI.Off), r.configure(all, "nri"))}
}

func nriSocket(r Runtime, _ []Runtime) []Finding {
	if !r.Serves || !r.NRI.On || r.NRI.SocketExists {
		return nil
	}
	text := fmt.Sprintf("The configuration turns NRI on, and %s does not exist: the runtime runs with an older configuration, or the socket was removed.", r.NRI.Socket)
	return []Finding{wrong(r.object(), text, r.restart())}
}

// nriOwner knows that a containerd without CRI, as Docker's, leaves the socket alone.
func nriOwner(r Runtime, all []Runtime) []Finding {
	if r.Pods == 0 || r.PID == 0 || r.NRI.Listener == 0 || r.NRI.Listener == r.PID {
		return nil
	}
	other, file := fmt.Sprintf("process %d", r.NRI.Listener), "its configuration"
	if i := slices.IndexFunc(all, func(o Runtime) bool { return o.PID == r.NRI.Listener }); i >= 0 {
		other, file = all[i].object(), all[i].Config
	}
	cure := fmt.Sprintf("Set disable = true in [plugins.'io.containerd.nri.v1.nri'] of %s, restart that runtime, and then: %s && systemctl restart nri-rdma", file, r.restart())
	return []Finding{wrong(r.object(), fmt.Sprintf("Not this runtime, but %s listens at %s.", other, r.NRI.Socket), cure)}
}

func nriRequired(_ *View, r Runtime, _ []Runtime) []Finding {
	if !r.NRI.On || !r.NRI.Validator || len(r.NRI.Required) == 0 {
		return nil
	}
	cure := fmt.Sprintf("Remove required_plugins from %s, write the annotation required-plugins.noderesource.dev into the pods that need a plugin, and then: %s", r.Config, r.restart())
	return []Finding{wrong(r.object(), "Every container of the node must have the plugins "+strings.Join(r.NRI.Required, ", ")+".", cure)}
}

func nriTimeouts(_ *View, r Runtime, _ []Runtime) (found []Finding) {
	for _, limit := range []struct {
		key           string
		set, shortest time.Duration
		containerd    string
	}{
		{"plugin_registration_timeout", r.NRI.RegistrationTimeout, shortestRegistration, "5s"},
		{"plugin_request_timeout", r.NRI.RequestTimeout, shortestRequest, "2s"},
	} {
		if r.NRI.On && limit.set > 0 && limit.set < limit.shortest {
			cure := fmt.Sprintf(`Set %s = "%s" in %s, and then: %s`, limit.key, limit.containerd, r.Config, r.restart())
			found = append(found, wrong(r.object(), fmt.Sprintf("%s is %s, and the plugin may need more.", limit.key, limit.set), cure))
		}
	}
	return found
}

// launchedFolder is where a runtime finds the plugins that it launches.
const launchedFolder = "opt/nri/plugins"

// Rivals are NRI plugins that set the rlimits and devices that pods ask for.
var Rivals = []string{"ulimit-adjuster", "device-injector"}

// nriRivals looks at the plugins that run and at those that a runtime launches when it starts.
func nriRivals(v *View) (found []Finding) {
	var plugin Plugin
	if err := v.Ask(QuestionPlugin, &plugin); err != nil {
		return []Finding{unknown("", "The plugins that run are unknown: "+err.Error()+".")}
	}
	if !plugin.installed() {
		return notApplied("The plugin is not installed.")
	}
	files, err := v.Glob(launchedFolder + "/*")
	if err != nil {
		return []Finding{unknown("", "The plugins that runtimes launch are unknown: "+err.Error()+".")}
	}
	var launched []string
	for _, file := range files {
		_, name, _ := strings.Cut(path.Base(file), "-") // 10-ulimit-adjuster
		if slices.Contains(Rivals, name) {
			launched = append(launched, name)
			found = append(found, wrong("plugin "+name, fmt.Sprintf("The runtime launches /%s, which sets what nri-rdma sets.", file), "rm /"+file+" && "+restartRuntimes(v)))
		}
	}
	running := 0
	for _, p := range plugin.Processes {
		switch {
		case slices.Contains(Rivals, p.Name) && !slices.Contains(launched, p.Name):
			text := fmt.Sprintf("%s runs (PID %d), and sets what nri-rdma sets.", p.Name, p.PID)
			found = append(found, wrong("plugin "+p.Name, text, fmt.Sprintf("Remove it from the node; to stop it now: kill %d", p.PID)))
		case p.Name == pluginName && !p.Validator:
			running++
		}
	}
	if running > 1 {
		found = append(found, wrong("plugin "+pluginName, fmt.Sprintf("nri-rdma runs %d times.", running), "Keep one of the service, the DaemonSet, and the plugin that the runtime launches"))
	}
	return found
}

// restartRuntimes is the command that restarts the runtime for pods.
func restartRuntimes(v *View) string {
	var answer Runtimes
	_ = v.Ask(QuestionRuntimes, &answer) // without an answer, it is containerd's usual unit
	if runtimes := answer.forPods(); len(runtimes) > 0 {
		return runtimes[0].restart()
	}
	return "systemctl restart containerd"
}
