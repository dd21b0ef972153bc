// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package runtimes

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/change"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/runtime"
)

// The features of configure whose effect shows in a runtime's effective configuration.
const (
	featureNRI     = "nri"
	featureHandler = "handler "
)

// ConfiguredChecks are the checks of what `rdma-spec configure` has done.
func configuredChecks() []doctor.Check {
	return []doctor.Check{{
		ID: "configuration-kept", Family: "plugin", Title: "What rdma-spec configure did is still in effect.",
		NoMessages: "RDMA containers that worked before an upgrade of the node fail",
		Why:        "Another tool rewrote the configuration, and RDMA containers no longer get their memlock.",
		Needs:      []string{"runtime-config", "runtime-rlimits"}, Look: configurationKept,
	}}
}

// configurationKept looks at the effect as well: people may edit the files, as long as it stays.
func configurationKept(v *doctor.View) []doctor.Finding {
	answer, err := v.Configured()
	if err != nil {
		return []doctor.Finding{doctor.Unsure("", "What rdma-spec configure wrote is unknown: "+err.Error()+".")}
	}
	if len(answer.Overwritten) == 0 {
		return nil
	}
	return eachRuntime(func(r runtime.Runtime, all []runtime.Runtime) (found []doctor.Finding) {
		var told []string
		for _, o := range answer.Overwritten {
			object, cure := lost(o, r, all)
			if cure != "" && r.Known && !slices.Contains(told, object) {
				told = append(told, object)
				found = append(found, doctor.Fault(object, doctor.Sentence([]string{o.String()}), cure).Paste())
			}
		}
		return found
	})(v)
}

// lost returns what a runtime has lost, and the command that brings it back; no command where it has lost nothing.
func lost(o change.Overwriting, r runtime.Runtime, all []runtime.Runtime) (object, cure string) {
	name, isHandler := strings.CutPrefix(o.Feature, featureHandler)
	switch {
	case oneOfSeveral(r, all) && !strings.HasPrefix(o.Path, path.Dir(r.Config)+"/"): // it is another one's file
		return "", ""
	case o.Feature == featureNRI && !r.NRI.On:
		return runtimeObject(r), configureRuntime(r, all, featureNRI)
	case !isHandler || r.Name != runtime.NameContainerd:
		return "", ""
	}
	i := slices.IndexFunc(r.Handlers, func(h runtime.Handler) bool { return h.Name == name })
	switch {
	case i < 0:
		return runtimeObject(r) + " handler " + name, configureRuntime(r, all, o.Feature+" --like "+
			cmp.Or(r.DefaultHandler, "runc"))
	case name == r.DefaultHandler && r.GivesMemlock():
	case r.Handlers[i].BaseSpec == "" && name == r.DefaultHandler:
		return runtimeObject(r) + " handler " + name, ownHandler(r, all)
	case r.Handlers[i].BaseSpec == "":
		return runtimeObject(r) + " handler " + name, configureRuntime(r, all, featureHandler+name+" --in-place")
	}
	return "", ""
}
