// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package runtimes defines the doctor's checks of container runtimes, NRI, the plugin, CDI files, and the kubelet.
// Package doctor runs the checks.
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

// unknownSettings returns the finding about a runtime whose effective configuration is unknown.
func unknownSettings(r runtime.Runtime) doctor.Finding {
	if r.NotMounted {
		return doctor.Unsure(runtimeObject(r), "The runtime's effective configuration is "+node.NotFromHere+".")
	}
	return doctor.Unsure(runtimeObject(r), "The runtime's effective configuration is unknown.")
}

// runtimeObject names a runtime in findings.
func runtimeObject(r runtime.Runtime) string { return "runtime " + cmp.Or(r.Socket, r.Config, r.Name) }

// restartRuntime returns the command that restarts the runtime.
func restartRuntime(r runtime.Runtime) string {
	return "systemctl restart " + unitOf(r)
}

// unitOf returns the systemd unit of the runtime, or the usual unit if the runtime's unit is unknown.
func unitOf(r runtime.Runtime) string {
	return strings.TrimSuffix(cmp.Or(r.Unit, map[string]string{runtime.NameCRIO: "crio"}[r.Name], r.Name), ".service")
}

// configureRuntime returns the commands that change the runtime's configuration, and restart the runtime.
func configureRuntime(r runtime.Runtime, all []runtime.Runtime, what ...string) string {
	flag := ""
	switch {
	case r.Name == runtime.NameCRIO:
		flag = " --runtime crio"
	case r.Config != "" && oneOfSeveral(r, all):
		flag = " --config " + r.Config
	}
	var lines []string
	for _, feature := range what {
		// configure restarts the runtime only after a change
		lines = append(lines, "rdma-spec configure "+feature+flag+" --restart")
	}
	return strings.Join(lines, " && ")
}

// Raise returns the command that raises the memlock of a runtime's RDMA containers if no other program raises it. The
// command installs the plugin or, if the runtime is too old for the plugin, a handler that pods can name. The runtime
// launches the plugin if the reload that a service needs would remove GPUs from containers.
func Raise(v *doctor.View, r runtime.Runtime, all []runtime.Runtime) string {
	hooked, known := v.Hooked()
	launched := len(hooked) > 0 || !known
	switch drops, _ := r.DropsRlimits(); {
	case drops:
		return ownHandler(r, all)
	case launched && r.NRI.On:
		return launchPlugin + " && " + restartRuntime(r)
	case launched:
		return launchPlugin + " && " + configureRuntime(r, all, "nri")
	case r.NRI.On:
		return installPlugin
	}
	return configureRuntime(r, all, "nri") + " && " + installPlugin
}

// HandlerLike returns the command that copies a handler to a new handler, and raises the memlock of the new handler.
func HandlerLike(r runtime.Runtime, all []runtime.Runtime, name, like string) string {
	return configureRuntime(r, all, "handler "+name+" --like "+like)
}

// oneOfSeveral reports whether another runtime of the same name has another configuration.
func oneOfSeveral(r runtime.Runtime, all []runtime.Runtime) bool {
	return slices.ContainsFunc(all, func(other runtime.Runtime) bool {
		return other.Name == r.Name && other.Config != r.Config
	})
}

// badBaseSpec returns a fault of a handler's base spec. configure writes another base spec, except for the default
// handler (see docs/without-nri.md). configure does not overwrite a base spec that configure wrote.
func badBaseSpec(r runtime.Runtime, all []runtime.Runtime, h runtime.Handler, text string) doctor.Finding {
	switch {
	case h.Name == r.DefaultHandler:
		fix := fmt.Sprintf("In %s, remove base_runtime_spec from the default handler, %s, and restart the runtime. If no "+
			"plugin raises memlock on this node, run '%s', apply the RuntimeClass that this command prints, and set "+
			"runtimeClassName: %s in each RDMA pod", r.Config, h.Name,
			ownHandler(r, all), rdmaHandler)
		return doctor.Fault(handlerObject(h, r), text, fix)
	case path.Base(h.BaseSpec) == "rdma-spec-"+h.Name+".json":
		return doctor.Fault(handlerObject(h, r), text,
			fmt.Sprintf("rdma-spec generate --to %s && %s", h.BaseSpec, restartRuntime(r))).Command()
	}
	return doctor.Fault(handlerObject(h, r), text, configureRuntime(r, all, "handler "+h.Name+" --in-place")).Command()
}

// rdmaHandler is the name of the handler that ownHandler creates.
const rdmaHandler = "rdma"

// ownHandler returns the command that creates a separate handler for RDMA pods. The new handler is a copy of the
// default handler, or of runc if the default handler's containers do not use the node's kernel.
func ownHandler(r runtime.Runtime, all []runtime.Runtime) string {
	like := cmp.Or(r.DefaultHandler, "runc")
	if r.Handler(like).Sandboxed {
		like = "runc"
	}
	return configureRuntime(r, all, "handler "+rdmaHandler+" --like "+like)
}

func olderThan(running, than string) bool { return doctor.CompareVersions(running, than) < 0 }

// unknownRuntimes returns the result of a check for which the runtimes could not be determined.
func unknownRuntimes(err error) []doctor.Finding {
	return []doctor.Finding{doctor.Unsure("", "The node's container runtimes cannot be determined: "+err.Error()+".")}
}

// eachRuntime runs a check of each runtime that serves pods.
func eachRuntime(look func(r runtime.Runtime, all []runtime.Runtime) []doctor.Finding) doctor.Look {
	return func(v *doctor.View) []doctor.Finding {
		answer, err := v.Runtimes()
		if err != nil {
			return unknownRuntimes(err)
		}
		runtimes := answer.ForPods()
		if len(runtimes) == 0 {
			return doctor.Inapplicable("No container runtime for pods was found.")
		}
		return doctor.Each(runtimes, func(r runtime.Runtime) []doctor.Finding { return look(r, answer.Runtimes) })
	}
}

// runtimeChecks are the checks of the runtimes themselves.
func runtimeChecks() []doctor.Check {
	return []doctor.Check{{
		ID: "runtime-config", Family: "runtime",
		Title: "Each runtime loads its configuration without errors and applies all of it.",
		Impact: "The runtime ignores some of its settings, or cannot restart. If the runtime cannot restart, the node " +
			"becomes NotReady.",
		Look: runtimeConfig,
	}, {
		ID: "cri-serves", Family: "runtime", Title: "Each runtime provides the CRI.",
		Impact: "The kubelet cannot create containers.",
		Needs:  []string{"runtime-config", "base-spec"}, Look: criServes,
	}, {
		ID: "runtime-rlimits", Family: "runtime", Title: "Each runtime applies the rlimits that an NRI plugin sets.",
		Impact: "Containers start without the memlock that the plugin grants, and nothing reports the problem.",
		Look:   runtimeRlimits,
	}, {
		ID: "memlock-source", Family: "runtime",
		Title:  "A plugin or a handler raises the memlock of RDMA containers.",
		Impact: "RDMA containers cannot register their memory.",
		Reads:  doctor.GPUReads,
		Needs:  []string{"runtime-rlimits", "runtime-config", "base-spec", "base-spec-memlock"},
		Look:   memlockSource,
	}}
}

func runtimeConfig(v *doctor.View) []doctor.Finding {
	configured, _ := v.Configured() // configuration-kept reports the error
	return eachRuntime(func(r runtime.Runtime, _ []runtime.Runtime) []doctor.Finding {
		if r.ConfigError != "" {
			return []doctor.Finding{doctor.Fault(runtimeObject(r), fmt.Sprintf("%s cannot load %s: %s.", r.Name, r.Config,
				r.ConfigError), "Correct the configuration, and then run: "+restartRuntime(r))}
		}
		return doctor.Each(r.Ignored, func(i runtime.Ignored) []doctor.Finding {
			for _, h := range configured.SideEffects {
				if slices.Contains(h.Files, i.By) {
					return nil // configuration-kept says that, with its fix
				}
			}
			return []doctor.Finding{doctor.Fault(runtimeObject(r), fmt.Sprintf("%s ignores settings in %s: %s.", r.Name, i.File,
				i.Reason), fmt.Sprintf("%s, and then run: %s", strings.ToUpper(i.Fix[:1])+i.Fix[1:], restartRuntime(r)))}
		})
	})(v)
}

// criServes needs all runtimes, because a containerd without CRI is not a fault if another runtime serves CRI.
func criServes(v *doctor.View) []doctor.Finding {
	answer, err := v.Runtimes()
	if err != nil {
		return unknownRuntimes(err)
	}
	serves := slices.ContainsFunc(answer.Runtimes, func(r runtime.Runtime) bool { return r.Serves })
	kubelet, err := v.Kubelet()
	used := err == nil && kubelet.PID > 0
	var found []doctor.Finding
	for _, r := range answer.Runtimes {
		running := r.PID > 0 || r.Socket != ""
		switch {
		case r.Late:
			found = append(found, doctor.Unsure(runtimeObject(r), "The runtime did not answer in time."))
		case r.Serves || r.CRIDisabled && (serves || !used) || !running && (serves || !used):
		case r.CRIDisabled:
			fix := fmt.Sprintf("Remove cri from disabled_plugins in %s, and then run: %s", r.Config, restartRuntime(r))
			found = append(found, doctor.Fault(runtimeObject(r),
				fmt.Sprintf("%s does not provide the CRI, because its configuration disables the CRI plugin.", r.Name), fix))
		default:
			found = append(found, doctor.Fault(runtimeObject(r), fmt.Sprintf("%s cannot be used through the CRI: %s.", r.Name,
				cmp.Or(r.Error, "the runtime is not running")), restartRuntime(r)).Command())
		}
	}
	if len(found) == 0 && !serves {
		return doctor.Inapplicable("No runtime provides the CRI, and no kubelet was found.")
	}
	return found
}

// runtimeRlimits checks whether a runtime can apply limits that are higher than its own limits.
func runtimeRlimits(v *doctor.View) []doctor.Finding {
	plugin, _ := v.Plugin() // plugin-runs says so
	return eachRuntime(func(r runtime.Runtime, all []runtime.Runtime) []doctor.Finding {
		if r.Startable == nil || !r.Startable.Finite() || !plugin.Installed() && !r.GivesMemlock() {
			return dropsRlimits(r, all)
		}
		return append(dropsRlimits(r, all), doctor.Fault(runtimeObject(r), fmt.Sprintf("The runtime lacks CAP_SYS_RESOURCE "+
			"in the node's user namespace, and its own hard memlock is %s. Containers with a higher memlock do not "+
			"start, so the plugin does not grant more than this limit.", r.Startable), "rdma-spec configure limits "+unitOf(r)+
			" --restart").Command())
	})(v)
}

func dropsRlimits(r runtime.Runtime, all []runtime.Runtime) []doctor.Finding {
	drops, since := r.DropsRlimits()
	switch {
	case r.Version == "":
		return []doctor.Finding{doctor.Unsure(runtimeObject(r), "The runtime's version is unknown.")}
	case !drops || r.GivesMemlock():
		return nil
	}
	fix := ownHandler(r, all)
	until := "Until then, use the command below to create a handler that sets memlock. Apply the RuntimeClass that the " +
		"command prints, set runtimeClassName: " + rdmaHandler + " in the RDMA pods, and recreate them"
	if r.Name == runtime.NameCRIO {
		until = "Until then, use CRI-O's configuration to set the memlock of all containers"
		fix = "rdma-spec generate --for crio --to /etc/crio/crio.conf.d/90-rdma-spec.conf && " + restartRuntime(r)
	}
	return []doctor.Finding{doctor.Fault(runtimeObject(r),
		fmt.Sprintf("%s %s ignores the rlimits that NRI plugins set. Upgrade to version %s or later, which applies them. "+
			"%s.", r.Name, r.Version, since, until), fix).Command()}
}

// memlockSource checks whether a plugin or a handler raises memlock on a node that uses RDMA.
func memlockSource(v *doctor.View) []doctor.Finding {
	if hcas, err := v.HCAs(); err != nil || len(hcas.HCAs) == 0 {
		return doctor.Inapplicable("The node has no HCA.")
	}
	if gpus, _ := v.GPUs(); !v.UsesRDMA(len(gpus)) { // devices that cannot be listed count as missing
		return doctor.Unused()
	}
	return withoutPlugin(eachRuntime(func(r runtime.Runtime, all []runtime.Runtime) (found []doctor.Finding) {
		handlers, starved := usedHandlers(v, r)
		for _, name := range handlers {
			if gives := r.Gives(name); runtime.Low(gives) && !starved[name] {
				found = append(found, doctor.Told(handlerObject(r.Handler(name), r),
					"The handler sets memlock to %s, but RDMA containers with this handler can register more memory, "+
						"for example because they run as root with CAP_IPC_LOCK.", gives))
			}
		}
		switch {
		case len(starved) > 0:
			return append(found, seeContainerMemlock(runtimeObject(r)))
		case len(handlers) > 0:
			return found
		case r.Memlock == nil && r.Known && !r.GivesMemlock():
			return []doctor.Finding{doctor.Unsure(runtimeObject(r),
				"The memlock that containers inherit from the runtime is unknown because the runtime is not running or not "+
					"visible.")}
		}
		// base-spec-memlock says so
		limited := slices.ContainsFunc(r.Handlers,
			func(h runtime.Handler) bool { return runtime.Low(h.Memlock) && !h.Sandboxed })
		if !runtime.Low(r.Memlock) || r.GivesMemlock() || limited || !r.Known {
			return nil
		}
		text := fmt.Sprintf("Containers inherit a memlock of %s from %s, and no plugin or handler raises this limit.",
			r.Memlock, r.Name)
		if drops, _ := r.DropsRlimits(); !drops {
			text += " To install the plugin on all nodes of a cluster, use the Helm chart instead of rdma-spec configure " +
				"plugin. Afterward, recreate the RDMA pods."
		}
		return []doctor.Finding{doctor.Fault(runtimeObject(r), text, Raise(v, r, all)).Command()}
	}))(v)
}

// usedHandlers returns the handlers that a runtime's RDMA containers use, and the handlers with containers that cannot
// register their memory.
func usedHandlers(v *doctor.View, r runtime.Runtime) (handlers []string, starved map[string]bool) {
	answer, _ := v.Containers() // without it, none is known
	starved = map[string]bool{}
	for _, c := range answer.Containers {
		if !c.RDMA || c.Runtime.Socket != r.Socket {
			continue
		}
		name := r.Handler(c.Handler).Name
		handlers = append(handlers, name)
		if c.StarvesRDMA() {
			starved[name] = true
		}
	}
	slices.Sort(handlers)
	return slices.Compact(handlers), starved
}

// seeContainerMemlock returns the finding that refers to the check container-memlock, which names each affected
// container and the cause.
func seeContainerMemlock(object string) doctor.Finding {
	return doctor.Finding{Status: doctor.Skipped, Object: object,
		Text: "The container-memlock check names the affected containers and the cause."}
}

// Checks returns all checks of this package except those of the kubelet, which run last.
func Checks() []doctor.Check {
	return slices.Concat(runtimeChecks(), baseSpecChecks(), nriChecks(), pluginChecks(), configuredChecks(), cdiChecks())
}
