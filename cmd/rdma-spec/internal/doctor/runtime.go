// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"

	"github.com/rdma-spec/rdma-spec/plugin/requirement"
	"github.com/rdma-spec/rdma-spec/spec"
)

// QuestionRuntimes asks for the node's container runtimes. The answer is a Runtimes.
const QuestionRuntimes Question = "runtimes.json"

// The runtimes as they call themselves over CRI.
const (
	runtimeContainerd = "containerd"
	runtimeCRIO       = "cri-o"
)

// kernelDefault is the highest memlock that a kernel gives without being asked. Older kernels give 64 KiB.
const kernelDefault = spec.Limit(8 << 20)

// Runtimes are the container runtimes that run on a node, or are installed.
type Runtimes struct {
	Runtimes []Runtime `json:"runtimes"`
}

// Runtime is a container runtime: a daemon, its effective configuration, and how it answers.
type Runtime struct {
	Name    string `json:"name"`              // containerd, cri-o
	Version string `json:"version,omitempty"` // as the daemon or its program says
	PID     int    `json:"pid,omitempty"`     // 0 where no process was found
	Unit    string `json:"unit,omitempty"`    // of systemd, where it is known
	Memlock *Bytes `json:"memlock,omitempty"` // the daemon's own soft limit, which containers inherit

	Socket string `json:"socket,omitempty"`
	Serves bool   `json:"serves"`          // CRI
	Pods   int    `json:"pods"`            // how many it has
	Error  string `json:"error,omitempty"` // why CRI does not answer
	Late   bool   `json:"late,omitempty"`  // it did not answer in time

	Config         string    `json:"config,omitempty"`      // the file
	ConfigError    string    `json:"configError,omitempty"` // why the runtime cannot load it
	NotSeen        bool      `json:"notSeen,omitempty"`     // a container does not have the file, or the program that reads it
	Known          bool      `json:"known"`                 // the effective configuration is known: what follows is from it
	CRIDisabled    bool      `json:"criDisabled,omitempty"` // as in a containerd that is Docker's
	DefaultHandler string    `json:"defaultHandler,omitempty"`
	DefaultMemlock *Bytes    `json:"defaultMemlock,omitempty"` // what CRI-O's default_ulimits say
	Handlers       []Handler `json:"handlers,omitempty"`
	NRI            NRI       `json:"nri"`
	CDIOff         bool      `json:"cdiOff,omitempty"`
	CDIFolders     []string  `json:"cdiFolders,omitempty"` // where it looks for CDI files; empty where it does not say
}

// Bytes is a limit in bytes. Unlimited is 2^64-1.
type Bytes uint64

// low reports whether a limit is known, and no more than a kernel gives.
func (b *Bytes) low() bool { return b != nil && spec.Limit(*b) <= kernelDefault }

func (b *Bytes) String() string { return spec.Limit(*b).String() }

// unknown is the finding where the effective configuration is not known.
func (r Runtime) unknown() Finding {
	if r.NotSeen {
		return unknown(r.object(), "Its effective configuration "+notFromHere+".")
	}
	return unknown(r.object(), "Its effective configuration is unknown.")
}

// object names a runtime in findings.
func (r Runtime) object() string { return "runtime " + cmp.Or(r.Socket, r.Config, r.Name) }

// forPods returns the runtimes that Kubernetes could use: those that run and, where none serves CRI, those that are installed.
func (all Runtimes) forPods() []Runtime {
	serves := slices.ContainsFunc(all.Runtimes, func(r Runtime) bool { return r.Serves })
	return slices.DeleteFunc(slices.Clone(all.Runtimes), func(r Runtime) bool { return r.CRIDisabled || serves && !r.Serves && r.PID == 0 })
}

// restart is the command that restarts the runtime.
func (r Runtime) restart() string {
	return "systemctl restart " + strings.TrimSuffix(cmp.Or(r.Unit, map[string]string{runtimeCRIO: "crio"}[r.Name], r.Name), ".service")
}

// configure is a command that changes the runtime's configuration, and restarts it.
func (r Runtime) configure(all []Runtime, what string) string {
	line := "rdma-spec configure " + what
	containerds := 0
	for _, other := range all {
		if other.Name == runtimeContainerd {
			containerds++
		}
	}
	switch {
	case r.Name == runtimeCRIO:
		line += " --runtime crio"
	case containerds > 1 && r.Config != "":
		line += " --config " + r.Config
	}
	return line + " && " + r.restart()
}

// dropsRlimits reports whether a version of the runtime ignores the rlimits that an NRI plugin sets, and which one does not.
func (r Runtime) dropsRlimits() (drops bool, since string) {
	met, since := requirement.Adjusting.Met(r.Name, r.Version)
	return !met, since
}

// olderThan compares versions such as v1.7.35 or 1.29.0+git. One that cannot be read is not older.
func olderThan(running, than string) bool {
	got, err := version.ParseGeneric(running)
	return err == nil && got.LessThan(version.MustParseGeneric(than))
}

// eachRuntime looks at the runtimes that are for pods, one by one.
func eachRuntime(look func(v *View, r Runtime, all []Runtime) []Finding) func(*View) []Finding {
	return func(v *View) []Finding {
		var answer Runtimes
		if err := v.Ask(QuestionRuntimes, &answer); err != nil {
			return []Finding{unknown("", "The runtimes are unknown: "+err.Error()+".")}
		}
		runtimes := answer.forPods()
		if len(runtimes) == 0 {
			return notApplied("No container runtime that serves pods was found.")
		}
		var found []Finding
		for _, r := range runtimes {
			found = append(found, look(v, r, answer.Runtimes)...)
		}
		return found
	}
}

// runtimeChecks are the checks of the runtimes themselves.
func runtimeChecks() []Check {
	return []Check{
		{
			ID: "runtime-config", Family: "runtime", Title: "Each runtime can load its configuration.",
			Messages: []string{"failed to load TOML", "invalid disabled plugin URI"},
			Why:      "The runtime does not start again with this file, and the node is NotReady.",
			Asks:     []Question{QuestionRuntimes}, Look: eachRuntime(runtimeConfig),
		},
		{
			ID: "cri-serves", Family: "runtime", Title: "Each runtime serves CRI.",
			Messages: []string{"unknown service runtime.v1.RuntimeService"},
			Why:      "The kubelet cannot create containers.",
			Asks:     []Question{QuestionRuntimes, QuestionKubelet}, Needs: []string{"runtime-config", "base-spec"}, Look: criServes,
		},
		{
			ID: "runtime-rlimits", Family: "runtime", Title: "Each runtime applies the rlimits that an NRI plugin sets.",
			Unheard: "ulimit -l shows the runtime's own limit in containers, although the plugin is registered",
			Why:     "Containers start without the memlock that the plugin gives them, and nothing reports it.",
			Asks:    []Question{QuestionRuntimes}, Look: eachRuntime(runtimeRlimits),
		},
		{
			ID: "memlock-source", Family: "runtime", Title: "Something gives RDMA containers more memlock than the runtime's own limit.",
			Messages: []string{"Couldn't register MR", "ibv_create_cq() failed: Cannot allocate memory"},
			Why:      "RDMA containers cannot register their memory.",
			Asks:     []Question{QuestionRuntimes, QuestionPlugin}, Needs: []string{"runtime-rlimits", "runtime-config", "base-spec", "base-spec-memlock"},
			Look: memlockSource,
		},
	}
}

func runtimeConfig(_ *View, r Runtime, _ []Runtime) []Finding {
	if r.ConfigError == "" {
		return nil
	}
	return []Finding{wrong(r.object(), fmt.Sprintf("%s cannot load %s: %s.", r.Name, r.Config, r.ConfigError), "Correct "+r.Config+", and then: "+r.restart())}
}

// criServes needs all runtimes: a containerd without CRI is not a fault where another runtime serves it.
func criServes(v *View) []Finding {
	var answer Runtimes
	if err := v.Ask(QuestionRuntimes, &answer); err != nil {
		return []Finding{unknown("", "The runtimes are unknown: "+err.Error()+".")}
	}
	serves := slices.ContainsFunc(answer.Runtimes, func(r Runtime) bool { return r.Serves })
	var kubelet Kubelet
	used := v.Ask(QuestionKubelet, &kubelet) == nil && kubelet.PID > 0
	var found []Finding
	for _, r := range answer.Runtimes {
		running := r.PID > 0 || r.Socket != ""
		switch {
		case r.Late:
			found = append(found, unknown(r.object(), "It did not answer in time."))
		case r.Serves || r.CRIDisabled && (serves || !used) || !running && (serves || !used):
		case r.CRIDisabled:
			cure := fmt.Sprintf("Remove cri from disabled_plugins in %s, and then: %s", r.Config, r.restart())
			found = append(found, wrong(r.object(), fmt.Sprintf("%s does not serve CRI, because its configuration disables it.", r.Name), cure))
		default:
			found = append(found, wrong(r.object(), fmt.Sprintf("%s does not serve CRI: %s.", r.Name, cmp.Or(r.Error, "it does not run")), r.restart()))
		}
	}
	if len(found) == 0 && !serves {
		return notApplied("No runtime serves CRI, and no kubelet needs one.")
	}
	return found
}

func runtimeRlimits(_ *View, r Runtime, all []Runtime) []Finding {
	drops, since := r.dropsRlimits()
	switch {
	case r.Version == "":
		return []Finding{unknown(r.object(), "Its version is unknown.")}
	case !drops || r.givesMemlock():
		return nil
	}
	cure := r.configure(all, "handler "+cmp.Or(r.DefaultHandler, "runc")+" --in-place")
	if r.Name == runtimeCRIO {
		cure = "rdma-spec generate --for crio --output /etc/crio/crio.conf.d/90-rdma-spec.conf && " + r.restart()
	}
	return []Finding{wrong(r.object(), fmt.Sprintf("%s %s ignores the rlimits that NRI plugins set; %s and later apply them.", r.Name, r.Version, since), cure)}
}

// givesMemlock reports whether the runtime's configuration raises memlock for some containers.
func (r Runtime) givesMemlock() bool {
	return r.DefaultMemlock != nil && !r.DefaultMemlock.low() ||
		slices.ContainsFunc(r.Handlers, func(h Handler) bool { return h.Memlock != nil && !h.Memlock.low() })
}

// memlockSource looks at whatever can raise memlock, on a node with HCAs.
func memlockSource(v *View) []Finding {
	if hcas, err := v.HCAs(); err != nil || len(hcas.HCAs) == 0 {
		return notApplied("The node has no HCA.")
	}
	var plugin Plugin
	if err := v.Ask(QuestionPlugin, &plugin); err != nil {
		return []Finding{unknown("", "Whether the plugin is installed is unknown: "+err.Error()+".")}
	}
	if plugin.installed() {
		return nil
	}
	return eachRuntime(func(_ *View, r Runtime, all []Runtime) []Finding {
		limited := slices.ContainsFunc(r.Handlers, func(h Handler) bool { return h.Memlock.low() }) // base-spec-memlock says so
		if !r.Memlock.low() || r.givesMemlock() || limited || !r.Known {
			return nil
		}
		cure := r.configure(all, "nri") + " && " + installPlugin
		return []Finding{wrong(r.object(), fmt.Sprintf("Containers inherit the memlock of %s, %s, and nothing raises it.", r.Name, r.Memlock), cure)}
	})(v)
}

// SamePath compares paths of a node. /var/run is a link to /run.
func SamePath(a, b string) bool {
	clean := func(name string) string { return strings.TrimPrefix(path.Clean(name), "/var") }
	return clean(a) == clean(b)
}
