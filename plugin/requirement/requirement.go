// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package requirement defines which versions of container runtimes an NRI plugin can work with.
package requirement

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/util/version"
)

// Requirement describes the versions of runtimes that a plugin requires.
type Requirement struct {
	from   map[string]string // the first version that meets the requirement, by runtime
	defect string            // the defect of earlier versions
	remedy string            // the alternative to an upgrade; "" without an alternative
}

// never lists the runtimes whose versions all fail every requirement, with the reasons.
var never = map[string]string{
	// moby's daemon/internal/nri applies environment variables and mounts from plugins, and ignores all other adjustments.
	"docker": "Docker ignores rlimits and devices from NRI plugins: stop the plugin on this node, and use CDI " +
		"(rdma-spec cdi, docker run --device) instead",
}

// Adjusting is the requirement of a plugin that adjusts containers: the runtime applies rlimits from NRI plugins.
// Earlier versions of runtimes silently ignore rlimits from NRI plugins.
var Adjusting = Requirement{
	from:   map[string]string{"containerd": "1.7.7", "cri-o": "1.29.0"},
	defect: "silently drops rlimits from NRI plugins",
	remedy: ", or use a base spec from rdma-spec generate instead of the plugin",
}

// Validating is the requirement of a validator: the runtime calls NRI plugins to validate adjustments.
var Validating = Requirement{
	from:   map[string]string{"containerd": "2.2.0", "cri-o": "1.34.0"},
	defect: "does not call NRI plugins to validate containers",
}

// Met reports whether a version of a runtime meets the requirement, and returns the first version that meets the
// requirement. Unknown runtimes meet every requirement. Versions that cannot be parsed, such as the versions of
// development builds, also meet every requirement.
func (q Requirement) Met(runtime, running string) (met bool, first string) {
	first, known := q.from[runtime]
	got, err := version.ParseGeneric(running)
	return !known || err != nil || got.AtLeast(version.MustParseGeneric(first)), first
}

// Check returns an error if the runtime is too old, or if no version of the runtime meets the requirement.
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
