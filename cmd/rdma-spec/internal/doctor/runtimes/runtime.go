// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package runtimes has the checks of container runtimes, NRI, the plugin, CDI files, and the kubelet.
package runtimes

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/runtime"
)

// unknownSettings is the finding where the effective configuration is not known.
func unknownSettings(r runtime.Runtime) doctor.Finding {
	if r.NotMounted {
		return doctor.Unsure(runtimeObject(r), "Its effective configuration "+node.NotFromHere+".")
	}
	return doctor.Unsure(runtimeObject(r), "Its effective configuration is unknown.")
}

// runtimeObject names a runtime in findings.
func runtimeObject(r runtime.Runtime) string { return "runtime " + cmp.Or(r.Socket, r.Config, r.Name) }

// restartRuntime is the command that restarts the runtime.
func restartRuntime(r runtime.Runtime) string {
	return "systemctl restart " + strings.TrimSuffix(cmp.Or(r.Unit,
		map[string]string{runtime.NameCRIO: "crio"}[r.Name], r.Name), ".service")
}

// configureRuntime is a command that changes the runtime's configuration, and restarts it.
func configureRuntime(r runtime.Runtime, all []runtime.Runtime, what string) string {
	line := "rdma-spec configure " + what
	switch {
	case r.Name == runtime.NameCRIO:
		line += " --runtime crio"
	case r.Config != "" && oneOfSeveral(r, all):
		line += " --config " + r.Config
	}
	return line + " && " + restartRuntime(r)
}

// oneOfSeveral reports whether another runtime of the same name has another configuration.
func oneOfSeveral(r runtime.Runtime, all []runtime.Runtime) bool {
	return slices.ContainsFunc(all, func(other runtime.Runtime) bool {
		return other.Name == r.Name && other.Config != r.Config
	})
}

// badBaseSpec is a fault of a handler's base spec. configure writes another one, but not for the handler of all pods
// that name none: docs/without-nri.md. What configure has written, it leaves as it is.
func badBaseSpec(r runtime.Runtime, all []runtime.Runtime, h runtime.Handler, text string) doctor.Finding {
	switch {
	case h.Name == r.DefaultHandler:
		cure := fmt.Sprintf("Remove base_runtime_spec from %s, the default handler, in %s, and give RDMA pods a handler of "+
			"their own: %s", h.Name, r.Config, ownHandler(r, all))
		return doctor.Fault(handlerObject(h, r), text, cure)
	case path.Base(h.BaseSpec) == "rdma-spec-"+h.Name+".json":
		return doctor.Fault(handlerObject(h, r), text,
			fmt.Sprintf("rdma-spec generate --to %s && %s", h.BaseSpec, restartRuntime(r))).Paste()
	}
	return doctor.Fault(handlerObject(h, r), text, configureRuntime(r, all, "handler "+h.Name+" --in-place")).Paste()
}

// ownHandler is the command that gives RDMA pods a handler of their own, like the default one.
func ownHandler(r runtime.Runtime, all []runtime.Runtime) string {
	return configureRuntime(r, all, "handler rdma --like "+cmp.Or(r.DefaultHandler, "runc"))
}

func olderThan(running, than string) bool { return doctor.CompareVersions(running, than) < 0 }

// eachRuntime looks at the runtimes that are for pods, one by one.
func eachRuntime(look func(r runtime.Runtime, all []runtime.Runtime) []doctor.Finding) doctor.Look {
	return func(v *doctor.View) []doctor.Finding {
		answer, err := v.Runtimes()
		if err != nil {
			return []doctor.Finding{doctor.Unsure("", "The runtimes are unknown: "+err.Error()+".")}
		}
		runtimes := answer.ForPods()
		if len(runtimes) == 0 {
			return doctor.Inapplicable("No container runtime that serves pods was found.")
		}
		return doctor.Each(runtimes, func(r runtime.Runtime) []doctor.Finding { return look(r, answer.Runtimes) })
	}
}

// RuntimeChecks are the checks of the runtimes themselves.
func runtimeChecks() []doctor.Check {
	return []doctor.Check{{
		ID: "runtime-config", Family: "runtime", Title: "Each runtime can load its configuration, and takes all of it over.",
		Messages: []string{"failed to load TOML", "invalid disabled plugin URI"},
		Why:      "The runtime does not start again with this file, and the node is NotReady.",
		Look:     eachRuntime(runtimeConfig),
	}, {
		ID: "cri-serves", Family: "runtime", Title: "Each runtime serves CRI.",
		Messages: []string{"unknown service runtime.v1.RuntimeService"},
		Why:      "The kubelet cannot create containers.",
		Needs:    []string{"runtime-config", "base-spec"}, Look: criServes,
	}, {
		ID: "runtime-rlimits", Family: "runtime", Title: "Each runtime applies the rlimits that an NRI plugin sets.",
		NoMessages: "ulimit -l shows the runtime's own limit in containers, although the plugin is registered",
		Why:        "Containers start without the memlock that the plugin gives them, and nothing reports it.",
		Look:       eachRuntime(runtimeRlimits),
	}, {
		ID: "memlock-source", Family: "runtime",
		Title: "Something gives RDMA containers more memlock than the runtime's own limit.",
		Messages: []string{"Couldn't register MR", "ibv_create_cq() failed: Cannot allocate memory",
			"ibv_reg_mr_iova2 failed with error Cannot allocate memory",
			"Call to ibv_reg_mr failed with error Cannot allocate memory",
			"Please set max locked memory (ulimit -l) to 'unlimited'"},
		Why:   "RDMA containers cannot register their memory.",
		Reads: doctor.GPUReads, Needs: []string{"runtime-rlimits", "runtime-config", "base-spec", "base-spec-memlock"},
		Look: memlockSource,
	}}
}

func runtimeConfig(r runtime.Runtime, _ []runtime.Runtime) []doctor.Finding {
	if r.ConfigError == "" {
		return doctor.Each(r.Ignored, func(i runtime.Ignored) []doctor.Finding {
			return []doctor.Finding{doctor.Fault(runtimeObject(r), fmt.Sprintf("%s ignores settings of %s: %s.", r.Name, i.File,
				i.Why), fmt.Sprintf("%s, and then: %s", strings.ToUpper(i.Cure[:1])+i.Cure[1:], restartRuntime(r)))}
		})
	}
	return []doctor.Finding{doctor.Fault(runtimeObject(r), fmt.Sprintf("%s cannot load %s: %s.", r.Name, r.Config,
		r.ConfigError), "Correct "+r.Config+", and then: "+restartRuntime(r))}
}

// criServes needs all runtimes: a containerd without CRI is not a fault where another runtime serves it.
func criServes(v *doctor.View) []doctor.Finding {
	answer, err := v.Runtimes()
	if err != nil {
		return []doctor.Finding{doctor.Unsure("", "The runtimes are unknown: "+err.Error()+".")}
	}
	serves := slices.ContainsFunc(answer.Runtimes, func(r runtime.Runtime) bool { return r.Serves })
	kubelet, err := v.Kubelet()
	used := err == nil && kubelet.PID > 0
	var found []doctor.Finding
	for _, r := range answer.Runtimes {
		running := r.PID > 0 || r.Socket != ""
		switch {
		case r.Late:
			found = append(found, doctor.Unsure(runtimeObject(r), "It did not answer in time."))
		case r.Serves || r.CRIDisabled && (serves || !used) || !running && (serves || !used):
		case r.CRIDisabled:
			cure := fmt.Sprintf("Remove cri from disabled_plugins in %s, and then: %s", r.Config, restartRuntime(r))
			found = append(found, doctor.Fault(runtimeObject(r),
				fmt.Sprintf("%s does not serve CRI, because its configuration disables it.", r.Name), cure))
		default:
			found = append(found, doctor.Fault(runtimeObject(r), fmt.Sprintf("%s does not serve CRI: %s.", r.Name,
				cmp.Or(r.Error, "it does not run")), restartRuntime(r)).Paste())
		}
	}
	if len(found) == 0 && !serves {
		return doctor.Inapplicable("No runtime serves CRI, and no kubelet needs one.")
	}
	return found
}

func runtimeRlimits(r runtime.Runtime, all []runtime.Runtime) []doctor.Finding {
	drops, since := r.DropsRlimits()
	switch {
	case r.Version == "":
		return []doctor.Finding{doctor.Unsure(runtimeObject(r), "Its version is unknown.")}
	case !drops || r.GivesMemlock():
		return nil
	}
	cure := ownHandler(r, all)
	if r.Name == runtime.NameCRIO {
		cure = "rdma-spec generate --for crio --to /etc/crio/crio.conf.d/90-rdma-spec.conf && " + restartRuntime(r)
	}
	return []doctor.Finding{doctor.Fault(runtimeObject(r),
		fmt.Sprintf("%s %s ignores the rlimits that NRI plugins set; %s and later apply them.", r.Name,
			r.Version, since), cure).Paste()}
}

// memlockSource looks at whatever can raise memlock, on a node that uses RDMA.
func memlockSource(v *doctor.View) []doctor.Finding {
	if hcas, err := v.HCAs(); err != nil || len(hcas.HCAs) == 0 {
		return doctor.Inapplicable("The node has no HCA.")
	}
	if gpus, _ := v.GPUs(); !v.UsesRDMA(len(gpus)) { // what cannot be listed is not there
		return doctor.Unused()
	}
	return withoutPlugin(eachRuntime(func(r runtime.Runtime, all []runtime.Runtime) []doctor.Finding {
		if r.Memlock == nil && r.Known && !r.GivesMemlock() {
			return []doctor.Finding{doctor.Unsure(runtimeObject(r),
				"The memlock that containers inherit from it is unknown: it does not run, or cannot be seen.")}
		}
		// base-spec-memlock says so
		limited := slices.ContainsFunc(r.Handlers, func(h runtime.Handler) bool { return runtime.Low(h.Memlock) })
		if !runtime.Low(r.Memlock) || r.GivesMemlock() || limited || !r.Known {
			return nil
		}
		cure := configureRuntime(r, all, "nri") + " && " + installPlugin
		return []doctor.Finding{doctor.Fault(runtimeObject(r),
			fmt.Sprintf("Containers inherit the memlock of %s, %s, and nothing raises it.", r.Name, r.Memlock), cure).Paste()}
	}))(v)
}

// Checks returns the family's checks but those of the kubelet, which come last of all.
func Checks() []doctor.Check {
	return slices.Concat(runtimeChecks(), baseSpecChecks(), nriChecks(), pluginChecks(), configuredChecks(), cdiChecks())
}
