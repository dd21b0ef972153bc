// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package runtimes

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/goal"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/runtime"
)

// configuredChecks are the checks of the changes that `rdma-spec configure` made.
func configuredChecks() []doctor.Check {
	return []doctor.Check{{
		ID: "configuration-kept", Family: "plugin", Title: "The changes made by rdma-spec configure are still in effect.",
		NoMessages: "after a node upgrade, RDMA containers no longer work",
		Impact:     "RDMA containers start without their grant.",
		Needs:      []string{"runtime-config", "runtime-rlimits"}, Look: configurationKept,
	}}
}

// configurationKept compares the effective configuration, regardless of who changed which files.
func configurationKept(v *doctor.View) []doctor.Finding {
	answer, err := v.Configured()
	if err != nil {
		return []doctor.Finding{doctor.Unsure("", "The changes that rdma-spec configure made are unknown: "+err.Error()+".")}
	}
	if len(answer.Features) == 0 {
		return doctor.Inapplicable("rdma-spec configure has changed nothing on this node.")
	}
	found := []doctor.Finding{}
	for _, f := range answer.Features {
		if f.Config == "" && f.State == goal.Lost {
			text := fmt.Sprintf("The change that rdma-spec configure %s made on %s is no longer in effect. Affected: %s.",
				f.Feature, f.Since.Format(time.DateOnly), keys(f.Differs))
			found = append(found, doctor.Fault("", text, "rdma-spec configure "+configureArguments(f)).Command())
		}
	}
	if !slices.ContainsFunc(answer.Features, func(f goal.Feature) bool { return f.Config != "" }) {
		return found
	}
	return append(found, eachRuntime(func(r runtime.Runtime, all []runtime.Runtime) (found []doctor.Finding) {
		for _, f := range answer.Features {
			if f.Config != "" && f.Config == r.Config {
				found = append(found, notKept(f, r, all)...)
			}
		}
		for _, h := range answer.SideEffects {
			if h.Config == r.Config {
				text := fmt.Sprintf("The lines that rdma-spec configure added to %s change more of the effective configuration "+
					"than intended: %s.", strings.Join(h.Files, ", "), keys(h.Differs))
				found = append(found, doctor.Fault(runtimeObject(r), text, allAgain(answer.Features, r, all)).Command())
			}
		}
		return found
	})(v)...)
}

// notKept returns the findings about a feature of a runtime.
func notKept(f goal.Feature, r runtime.Runtime, all []runtime.Runtime) []doctor.Finding {
	object := runtimeObject(r)
	if name, isHandler := strings.CutPrefix(f.Feature, goal.Handler); isHandler {
		object += " handler " + name
		if name == r.DefaultHandler && r.GivesMemlock() {
			return nil
		}
	}
	since := fmt.Sprintf("the change that rdma-spec configure %s made on %s", f.Feature, f.Since.Format(time.DateOnly))
	switch f.State {
	case goal.Lost:
		text := fmt.Sprintf("The effective configuration no longer contains %s.", since)
		if len(f.Differs) > 0 {
			text = fmt.Sprintf("The effective configuration no longer contains %s. Affected: %s.", since, keys(f.Differs))
		}
		return []doctor.Finding{doctor.Fault(object, text, sameAgain(f, r, all)).Command()}
	case goal.Stale:
		text := fmt.Sprintf("On %s, rdma-spec configure copied the %s handler to the %s handler. The %[2]s handler has "+
			"changed since. Affected: %[4]s.", f.Since.Format(time.DateOnly), f.Asked[goal.Like],
			strings.TrimPrefix(f.Feature, goal.Handler), keys(f.Differs))
		return []doctor.Finding{doctor.Fault(object, text, sameAgain(f, r, all)).Command()}
	case goal.Unknown:
		return []doctor.Finding{doctor.Unsure(object, fmt.Sprintf("It is unknown whether %s is still in effect: "+
			"%s.", since, f.Error))}
	case goal.Kept:
	}
	return nil
}

// keys lists the first of the keys that differ.
func keys(differs []string) string {
	const most = 3
	text := strings.Join(differs[:min(most, len(differs))], ", ")
	if more := len(differs) - most; more > 0 {
		text += " and " + cli.Counted(more, "other", "others")
	}
	return text
}

// sameAgain returns the command that reconfigures a feature of a runtime with its original arguments.
func sameAgain(f goal.Feature, r runtime.Runtime, all []runtime.Runtime) string {
	if name, _ := strings.CutPrefix(f.Feature, goal.Handler); f.Asked[goal.Like] == name && name == r.DefaultHandler {
		return ownHandler(r, all)
	}
	return configureRuntime(r, all, configureArguments(f))
}

// configureArguments returns the arguments of configure with which a feature was requested.
func configureArguments(f goal.Feature) string {
	name, isHandler := strings.CutPrefix(f.Feature, goal.Handler)
	switch like := f.Asked[goal.Like]; {
	case isHandler && like == name:
		return f.Feature + " --in-place"
	case isHandler:
		return f.Feature + " --like " + like
	case f.Asked[goal.Required] == "true":
		return f.Feature + " --required"
	case f.Asked[goal.Unit] != "":
		return f.Feature + " " + f.Asked[goal.Unit]
	}
	return f.Feature
}

// allAgain returns the commands that reconfigure all features of a runtime.
func allAgain(features []goal.Feature, r runtime.Runtime, all []runtime.Runtime) string {
	var what []string
	for _, f := range features {
		if f.Config == r.Config {
			what = append(what, configureArguments(f))
		}
	}
	return configureRuntime(r, all, what...)
}
