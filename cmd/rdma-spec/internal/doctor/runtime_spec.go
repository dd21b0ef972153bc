// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"fmt"
	"path"
	"strings"
)

// Handler is a runtime handler: what a RuntimeClass names.
type Handler struct {
	Name     string `json:"name"`
	BaseSpec string `json:"baseSpec,omitempty"` // the file that replaces the runtime's default spec
	Error    string `json:"error,omitempty"`    // why the runtime cannot use that file
	// What the file says.
	Memlock    *Bytes `json:"memlock,omitempty"`
	CapsFiles  bool   `json:"capsFiles,omitempty"` // it limits every container to 1024 open files
	OCIVersion string `json:"ociVersion,omitempty"`

	Program string `json:"program,omitempty"` // the OCI runtime and its version: "crun 1.8.1"; without a version where it does not matter
}

// eachHandler looks at the handlers of the runtimes for pods, one by one.
func eachHandler(look func(r Runtime, h Handler, all []Runtime) []Finding) func(*View) []Finding {
	return eachRuntime(func(_ *View, r Runtime, all []Runtime) (found []Finding) {
		if !r.Known && r.ConfigError == "" {
			return []Finding{r.unknown()}
		}
		for _, h := range r.Handlers {
			found = append(found, look(r, h, all)...)
		}
		return found
	})
}

func (h Handler) object(r Runtime) string { return r.object() + " handler " + h.Name }

// baseSpecChecks are the checks of base_runtime_spec.
func baseSpecChecks() []Check {
	return []Check{
		{
			ID: "base-spec", Family: "runtime", Title: "Each base_runtime_spec exists and is an OCI spec.",
			Messages: []string{"failed to load base OCI spec"},
			Why:      "Without the file, the whole CRI plugin does not load and the node is NotReady.",
			Asks:     []Question{QuestionRuntimes}, Needs: []string{"runtime-config"}, Look: eachHandler(baseSpec),
		},
		{
			ID: "base-spec-files", Family: "runtime", Title: "No base_runtime_spec limits containers to 1024 open files.",
			Messages: []string{"every pod has 1024 open files", "Too many open files"},
			Why:      "What ctr oci spec prints has this limit, and it holds for every container of the handler.",
			Asks:     []Question{QuestionRuntimes}, Needs: []string{"base-spec"}, Look: eachHandler(baseSpecFiles),
		},
		{
			ID: "base-spec-memlock", Family: "runtime", Title: "No base_runtime_spec limits the memlock of RDMA containers.",
			Messages: []string{"Couldn't allocate MR"},
			Why:      "RDMA containers of the handler cannot register their memory, and no plugin raises their limit.",
			Asks:     []Question{QuestionRuntimes, QuestionPlugin}, Needs: []string{"base-spec"}, Look: baseSpecMemlock,
		},
		{
			ID: "oci-version", Family: "runtime", Title: "Each OCI runtime accepts the ociVersion of the specs that it gets.",
			Messages: []string{"unknown version specified"},
			Why:      "No container of the handler starts.",
			Asks:     []Question{QuestionRuntimes}, Needs: []string{"base-spec", "configuration-kept"}, Look: eachHandler(ociVersion),
		},
	}
}

// baseSpec names the runtime, not the handler: with one bad file no handler works.
func baseSpec(r Runtime, h Handler, _ []Runtime) []Finding {
	if h.BaseSpec == "" || h.Error == "" {
		return nil
	}
	cure := fmt.Sprintf("rdma-spec generate --output %s && %s", h.BaseSpec, r.restart())
	return []Finding{wrong(r.object(), fmt.Sprintf("The base_runtime_spec of handler %s, %s, cannot be used: %s.", h.Name, h.BaseSpec, h.Error), cure)}
}

func baseSpecFiles(r Runtime, h Handler, all []Runtime) []Finding {
	if !h.CapsFiles {
		return nil
	}
	return []Finding{wrong(h.object(r), fmt.Sprintf("Its base_runtime_spec, %s, limits every container to 1024 open files.", h.BaseSpec), h.rewrite(r, all))}
}

// rewrite is the command that gives a handler a good base spec. configure leaves a file that it has written as it is.
func (h Handler) rewrite(r Runtime, all []Runtime) string {
	if path.Base(h.BaseSpec) == "rdma-spec-"+h.Name+".json" {
		return fmt.Sprintf("rdma-spec generate --output %s && %s", h.BaseSpec, r.restart())
	}
	return r.configure(all, "handler "+h.Name+" --in-place")
}

func baseSpecMemlock(v *View) []Finding {
	var plugin Plugin
	if err := v.Ask(QuestionPlugin, &plugin); err != nil {
		return []Finding{unknown("", "Whether the plugin is installed is unknown: "+err.Error()+".")}
	}
	if plugin.installed() {
		return nil // the plugin raises RDMA containers above it
	}
	return eachHandler(func(r Runtime, h Handler, all []Runtime) []Finding {
		if !h.Memlock.low() {
			return nil
		}
		return []Finding{wrong(h.object(r), fmt.Sprintf("Its base_runtime_spec, %s, limits memlock to %s.", h.BaseSpec, h.Memlock), h.rewrite(r, all))}
	})(v)
}

// ociVersion knows what was tried: runc 1.5.2 takes any version. crun 1.8.1 takes 1.0 and 1.1, and refuses 1.2.0, 1.3.0 and what is not a version.
func ociVersion(r Runtime, h Handler, all []Runtime) []Finding {
	program, version, _ := strings.Cut(h.Program, " ")
	says := h.OCIVersion
	if h.BaseSpec == "" && r.Name == runtimeContainerd && !olderThan(r.Version, "2.3") && r.Version != "" {
		says = "1.3.0"
	}
	if program != "crun" || says == "" || strings.HasPrefix(says, "1.0.") || strings.HasPrefix(says, "1.1.") {
		return nil
	}
	from := cmp.Or(h.BaseSpec, r.Name+" "+r.Version)
	switch {
	case version == "":
		return []Finding{unknown(h.object(r), fmt.Sprintf("The ociVersion of %s is %s, and the version of crun is unknown.", from, says))}
	case !olderThan(version, "1.8.2"):
		return []Finding{unknown(h.object(r), fmt.Sprintf("The ociVersion of %s is %s, and whether crun %s accepts it is unknown.", from, says, version))}
	}
	cure := h.rewrite(r, all)
	if h.BaseSpec != "" {
		cure = fmt.Sprintf(`sed -i 's/"ociVersion": *"[^"]*"/"ociVersion": "1.0.2"/' %s && %s`, h.BaseSpec, r.restart())
	}
	return []Finding{wrong(h.object(r), fmt.Sprintf("The ociVersion of %s is %s, and crun %s refuses it.", from, says, version), cure)}
}
