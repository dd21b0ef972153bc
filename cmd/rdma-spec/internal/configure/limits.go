// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package configure

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/configure/change"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/configure/containerd"
)

// unitFolders are where systemd finds units.
var unitFolders = []string{"etc/systemd/system", "run/systemd/system", "usr/local/lib/systemd/system", "usr/lib/systemd/system", "lib/systemd/system"}

// runtimeUnits returns the units whose limits containers inherit.
func runtimeUnits() []string { return append(containerd.Units(), "docker.service") }

const limits = `# Written by rdma-spec configure limits; rdma-spec configure limits --revert removes it.
# It affects the daemon and every container whose spec sets no memlock, from the daemon's next start on.
[Service]
LimitMEMLOCK=infinity
`

// Limits plans that a unit of the node below a root has no limit for locked memory, and returns the unit's name. Without a name, it is
// the only unit of a container runtime.
func Limits(root, unit string) (plan change.Plan, name string, err error) {
	known := runtimeUnits()
	if unit != "" {
		unit = strings.TrimSuffix(unit, ".service") + ".service"
		if !slices.Contains(known, unit) {
			return nil, "", fmt.Errorf("%q is not a unit of a container runtime: write one of %s", unit, strings.Join(known, ", "))
		}
		known = []string{unit}
	}
	found := slices.DeleteFunc(slices.Clone(known), func(name string) bool { return !HasUnit(root, name) })
	switch {
	case len(found) == 0 && unit != "":
		return nil, "", fmt.Errorf("systemd has no unit %s", unit)
	case len(found) == 0:
		return nil, "", fmt.Errorf("systemd has no unit of a container runtime: none of %s", strings.Join(known, ", "))
	case len(found) > 1:
		return nil, "", fmt.Errorf("the node has several container runtimes: name the unit that the kubelet uses: %s", strings.Join(found, ", "))
	}
	file := filepath.Join(root, "etc/systemd/system", found[0]+".d", "90-rdma-spec-memlock.conf")
	return change.Plan{{Path: file, Content: []byte(limits)}}, found[0], nil
}

// HasUnit reports whether systemd finds a unit, such as containerd.service, below a root.
func HasUnit(root, unit string) bool {
	return slices.ContainsFunc(unitFolders, func(folder string) bool {
		_, err := os.Stat(filepath.Join(root, folder, unit))
		return err == nil
	})
}
