// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/configure/change"
)

// QuestionConfigured asks for the files that `rdma-spec configure` wrote and that were changed since. The answer is a Configured.
const QuestionConfigured Question = "configured.json"

// Configured are the files that `rdma-spec configure` wrote and that somebody changed since.
type Configured struct {
	Overwritten []change.Overwriting `json:"overwritten"`
}

// The features of configure whose effect shows in a runtime's effective configuration.
const (
	featureNRI     = "nri"
	featureHandler = "handler "
)

// configuredChecks are the checks of what `rdma-spec configure` has done.
func configuredChecks() []Check {
	return []Check{{
		ID: "configuration-kept", Family: "plugin", Title: "What rdma-spec configure did is still in effect.",
		Messages: []string{"RDMA gone after an upgrade"},
		Why:      "Another tool rewrote the configuration, and RDMA containers no longer get their memlock.",
		Asks:     []Question{QuestionConfigured, QuestionRuntimes}, Needs: []string{"runtime-config", "runtime-rlimits"}, Look: configurationKept,
	}}
}

// configurationKept looks at the effect as well: people may edit the files, as long as it stays.
func configurationKept(v *View) []Finding {
	var answer Configured
	if err := v.Ask(QuestionConfigured, &answer); err != nil {
		return []Finding{unknown("", "What rdma-spec configure wrote is unknown: "+err.Error()+".")}
	}
	if len(answer.Overwritten) == 0 {
		return nil
	}
	return eachRuntime(func(_ *View, r Runtime, all []Runtime) (found []Finding) {
		var told []string
		for _, o := range answer.Overwritten {
			object, cure := lost(o, r, all)
			if cure != "" && r.Known && !slices.Contains(told, object) {
				told = append(told, object)
				found = append(found, wrong(object, sentence([]string{o.String()}), cure))
			}
		}
		return found
	})(v)
}

// lost returns what a runtime has lost, and the command that brings it back; no command where it has lost nothing.
func lost(o change.Overwriting, r Runtime, all []Runtime) (object, cure string) {
	name, isHandler := strings.CutPrefix(o.Feature, featureHandler)
	switch {
	case o.Feature == featureNRI && !r.NRI.On:
		return r.object(), r.configure(all, featureNRI)
	case !isHandler || r.Name != runtimeContainerd:
		return "", ""
	}
	i := slices.IndexFunc(r.Handlers, func(h Handler) bool { return h.Name == name })
	switch {
	case i < 0:
		return r.object() + " handler " + name, r.configure(all, o.Feature+" --like "+cmp.Or(r.DefaultHandler, "runc"))
	case r.Handlers[i].BaseSpec == "":
		return r.object() + " handler " + name, r.configure(all, o.Feature+" --in-place")
	}
	return "", ""
}
