// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package configure

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/change"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
)

// runtimeUnits returns the units whose limits containers inherit.
func runtimeUnits() []string { return append(containerd.Units(), "docker.service") }

const limits = `# Written by rdma-spec configure limits; rdma-spec configure limits --revert removes it.
# It affects the daemon and every container whose spec sets no memlock, from the daemon's next start on.
[Service]
LimitMEMLOCK=infinity
`

// Limits plans that a unit of the node below a root has no limit for locked memory, and returns the unit's name.
// Without a name, it is the only unit of a container runtime.
func Limits(root, unit string) (plan change.Plan, name string, err error) {
	known := runtimeUnits()
	if unit != "" {
		unit = strings.TrimSuffix(unit, ".service") + ".service"
		if !slices.Contains(known, unit) {
			return nil, "", fmt.Errorf("%q is not a unit of a container runtime: write one of %s", unit,
				strings.Join(known, ", "))
		}
		known = []string{unit}
	}
	found := slices.DeleteFunc(slices.Clone(known), func(name string) bool { return !process.HasUnit(root, name) })
	if unit == "" {
		for _, d := range containerd.Find(root) { // of a platform's units, the one that runs counts
			if runs := Unit(root, d); runs != "" {
				found = append(slices.DeleteFunc(found, func(name string) bool { return slices.Contains(d.Units, name) }), runs)
			}
		}
		slices.Sort(found)
		found = slices.Compact(found)
	}
	switch {
	case len(found) == 0 && unit != "":
		return nil, "", fmt.Errorf("systemd has no unit %s", unit)
	case len(found) == 0:
		return nil, "", fmt.Errorf("systemd has no unit of a container runtime: none of %s", strings.Join(known, ", "))
	case len(found) > 1:
		return nil, "", fmt.Errorf("the node has several container runtimes: name the unit that the kubelet uses: %s",
			strings.Join(found, ", "))
	}
	file := filepath.Join(root, "etc/systemd/system", found[0]+".d", "90-rdma-spec-memlock.conf")
	plan, err = change.Whole(change.File{Path: file, Content: []byte(limits)})
	return plan, found[0], err
}
