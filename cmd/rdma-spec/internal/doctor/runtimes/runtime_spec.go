// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package runtimes

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/runtime"
)

// eachHandler runs a check of each handler of the runtimes for pods.
func eachHandler(look func(runtime.Runtime, runtime.Handler, []runtime.Runtime) []doctor.Finding) doctor.Look {
	return eachRuntime(func(r runtime.Runtime, all []runtime.Runtime) []doctor.Finding {
		if !r.Known && r.ConfigError == "" {
			return []doctor.Finding{unknownSettings(r)}
		}
		return doctor.Each(r.Handlers, func(h runtime.Handler) []doctor.Finding { return look(r, h, all) })
	})
}

func handlerObject(h runtime.Handler, r runtime.Runtime) string {
	return runtimeObject(r) + " handler " + h.Name
}

// baseSpecChecks are the checks of base_runtime_spec.
func baseSpecChecks() []doctor.Check {
	return []doctor.Check{{
		ID: "handler-type", Family: "runtime", Title: "Each runtime handler has a runtime_type.",
		Impact: "The runtime loads the handler, but pods that use it do not start.",
		Needs:  []string{"runtime-config"}, Look: eachHandler(handlerType),
	}, {
		ID: "base-spec", Family: "runtime", Title: "Each base_runtime_spec exists and is an OCI spec.",
		Impact: "Without a valid file, containerd's CRI plugin does not start, and the node becomes NotReady.",
		Needs:  []string{"runtime-config"}, Look: eachHandler(baseSpec),
	}, {
		ID: "base-spec-files", Family: "runtime",
		Title: "Containers whose handler has a base_runtime_spec can open more than 1024 files.",
		Impact: "In containers that use the handler, a program can open at most 1024 files unless it raises its soft " +
			"limit.",
		Needs: []string{"base-spec"}, Look: eachHandler(baseSpecFiles),
	}, {
		ID: "base-spec-memlock", Family: "runtime", Title: "Each base_runtime_spec for RDMA containers sets a high " +
			"enough memlock.",
		Impact: "RDMA containers that use the handler cannot register their memory.",
		Needs:  []string{"base-spec"}, Look: withoutPlugin(baseSpecMemlock),
	}, {
		ID: "oci-version", Family: "runtime", Title: "Each OCI runtime accepts the ociVersion of its base specs.",
		Impact: "Containers do not start if their handler's base spec has an ociVersion that the OCI runtime refuses.",
		Needs:  []string{"base-spec", "configuration-kept"}, Look: eachHandler(ociVersion),
	}}
}

func handlerType(r runtime.Runtime, h runtime.Handler, _ []runtime.Runtime) []doctor.Finding {
	if !h.NoType {
		return nil
	}
	fix := fmt.Sprintf(`In %s, set runtime_type = "io.containerd.runc.v2" for the %s handler, or remove the handler. `+
		"Then run: %s", cmp.Or(h.File, r.Config), h.Name, restartRuntime(r))
	return []doctor.Finding{doctor.Fault(handlerObject(h, r), "The handler has no runtime_type.", fix)}
}

// baseSpec names the runtime as the object instead of the handler, because no handler works if one file is invalid.
func baseSpec(r runtime.Runtime, h runtime.Handler, _ []runtime.Runtime) []doctor.Finding {
	if h.BaseSpec == "" || h.Error == "" {
		return nil
	}
	fix := fmt.Sprintf("rdma-spec generate --to %s && %s", h.BaseSpec, restartRuntime(r))
	text := fmt.Sprintf("The %s handler's base_runtime_spec, %s, cannot be used: %s.", h.Name, h.BaseSpec, h.Error)
	return []doctor.Finding{doctor.Fault(runtimeObject(r), text, fix).Command()}
}

func baseSpecFiles(r runtime.Runtime, h runtime.Handler, all []runtime.Runtime) []doctor.Finding {
	if !h.CapsFiles {
		return nil
	}
	return []doctor.Finding{badBaseSpec(r, all, h,
		fmt.Sprintf("The handler's base_runtime_spec, %s, limits each process to 1024 open files.", h.BaseSpec))}
}

// LimitFiles returns the fix that lets the containers of a runtime open more files.
func LimitFiles(r runtime.Runtime) string {
	unit := strings.TrimPrefix(restartRuntime(r), "systemctl restart ")
	return fmt.Sprintf("Run 'systemctl edit %s', and set LimitNOFILE=1048576 under [Service]. Then run: %s", unit,
		restartRuntime(r))
}

// baseSpecMemlock applies to nodes without the plugin, because the plugin raises memlock above the base spec.
func baseSpecMemlock(v *doctor.View) []doctor.Finding {
	return eachHandler(func(r runtime.Runtime, h runtime.Handler, all []runtime.Runtime) []doctor.Finding {
		if !runtime.Low(h.Memlock) || h.Sandboxed {
			return nil
		}
		if _, starved := usedHandlers(v, r); starved[h.Name] {
			return []doctor.Finding{seeContainerMemlock(handlerObject(h, r))}
		}
		return []doctor.Finding{LowBaseSpec(r, all, h)}
	})(v)
}

// LowBaseSpec returns the fault of a handler whose base spec limits memlock.
func LowBaseSpec(r runtime.Runtime, all []runtime.Runtime, h runtime.Handler) doctor.Finding {
	return badBaseSpec(r, all, h,
		fmt.Sprintf("The handler's base_runtime_spec, %s, limits memlock to %s.", h.BaseSpec, h.Memlock))
}

// ociVersion relies on tests of these programs: runc 1.5.2 accepts any version. crun 1.8.1 accepts 1.0 and 1.1, and
// refuses 1.2.0, 1.3.0, and invalid versions.
func ociVersion(r runtime.Runtime, h runtime.Handler, all []runtime.Runtime) []doctor.Finding {
	program, version, _ := strings.Cut(h.Program, " ")
	says := h.OCIVersion
	if h.BaseSpec == "" && r.Name == runtime.NameContainerd && !olderThan(r.Version, "2.3") && r.Version != "" {
		says = "1.3.0"
	}
	if program != "crun" || says == "" || strings.HasPrefix(says, "1.0.") || strings.HasPrefix(says, "1.1.") {
		return nil
	}
	from := cmp.Or(h.BaseSpec, r.Name+" "+r.Version)
	switch {
	case version == "":
		return []doctor.Finding{doctor.Unsure(handlerObject(h, r),
			fmt.Sprintf("%s has ociVersion %s. The version of crun is unknown, so crun might not accept this ociVersion.",
				from, says))}
	case !olderThan(version, "1.8.2"):
		return []doctor.Finding{doctor.Unsure(handlerObject(h, r),
			fmt.Sprintf("%s has ociVersion %s. It is unknown whether crun %s accepts this version.", from, says, version))}
	}
	text := fmt.Sprintf("%s has ociVersion %s, which crun %s refuses.", from, says, version)
	switch {
	case h.BaseSpec != "":
		fix := fmt.Sprintf(`sed -i 's/"ociVersion": *"[^"]*"/"ociVersion": "1.0.2"/' %s && %s`, h.BaseSpec, restartRuntime(r))
		return []doctor.Finding{doctor.Fault(handlerObject(h, r), text, fix).Command()}
	case h.Name == r.DefaultHandler:
		return []doctor.Finding{doctor.Fault(handlerObject(h, r), text,
			"Install a later version of crun, or set runc as the handler's OCI runtime. Then run: "+restartRuntime(r))}
	}
	return []doctor.Finding{badBaseSpec(r, all, h, text)}
}
