// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package requirement knows which versions of the container runtimes an NRI plugin can work with.
package requirement

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/util/version"
)

// Requirement is what a plugin needs of a runtime.
type Requirement struct {
	from   map[string]string // the first version that meets it, by the runtime's name
	defect string            // of earlier versions
	remedy string            // other than an upgrade; "" if there is none
}

// never has runtimes of which no version does what any plugin here needs, and why.
var never = map[string]string{
	// moby's daemon/internal/nri takes environment variables and mounts from plugins, and drops the rest.
	"docker": "Docker ignores rlimits and devices from NRI plugins: stop the plugin here, and use CDI (rdma-spec cdi, " +
		"docker run --device) instead",
}

// Adjusting is the requirement of a plugin that adjusts: NRI passes rlimits on to the container. Earlier runtimes drop
// them silently.
var Adjusting = Requirement{
	from:   map[string]string{"containerd": "1.7.7", "cri-o": "1.29.0"},
	defect: "silently drops rlimits from NRI plugins",
	remedy: ", or replace the plugin with rdma-spec generate",
}

// Validating is the requirement of a validator: NRI asks plugins to validate adjustments.
var Validating = Requirement{
	from:   map[string]string{"containerd": "2.2.0", "cri-o": "1.34.0"},
	defect: "does not call NRI plugins to validate containers",
}

// Met reports whether a version of a runtime meets it, with the first version that does. A runtime that is not known
// meets it, and so does a version that cannot be read, such as that of a development build.
func (q Requirement) Met(runtime, running string) (met bool, first string) {
	first, known := q.from[runtime]
	got, err := version.ParseGeneric(running)
	return !known || err != nil || got.AtLeast(version.MustParseGeneric(first)), first
}

// Check returns an error for a runtime that is too old, or never will do.
func (q Requirement) Check(runtime, running string) error {
	if why := never[runtime]; why != "" {
		return errors.New(why)
	}
	met, first := q.Met(runtime, running)
	if met {
		return nil
	}
	return fmt.Errorf("%s %s %s: upgrade to %s or later%s", runtime, running, q.defect, first, q.remedy)
}
