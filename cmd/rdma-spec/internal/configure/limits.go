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
)

// unitFolders are where systemd finds units.
var unitFolders = []string{"etc/systemd/system", "run/systemd/system", "usr/local/lib/systemd/system", "usr/lib/systemd/system", "lib/systemd/system"}

// runtimeUnits are the units whose limits containers inherit.
var runtimeUnits = []string{"containerd", "docker", "k3s", "k3s-agent", "rke2-server", "rke2-agent", "k0sworker", "k0scontroller"}

const limits = `# Written by rdma-spec configure limits; rdma-spec configure limits --revert removes it.
# It affects the daemon and every container whose spec sets no memlock, from the daemon's next start on.
[Service]
LimitMEMLOCK=infinity
`

// Limits plans that a unit of the node below a root has no limit for locked memory, and returns the unit's name. Without a name, it is
// the only unit of a container runtime.
func Limits(root, unit string) (plan change.Plan, name string, err error) {
	unit = strings.TrimSuffix(unit, ".service")
	if unit != "" && !slices.Contains(runtimeUnits, unit) {
		return nil, "", fmt.Errorf("%q is not a unit of a container runtime: write one of %s", unit, strings.Join(runtimeUnits, ", "))
	}
	var found []string
	for _, known := range runtimeUnits {
		if (unit == "" || unit == known) && HasUnit(root, known) {
			found = append(found, known)
		}
	}
	switch {
	case len(found) == 0 && unit != "":
		return nil, "", fmt.Errorf("systemd has no unit %s.service", unit)
	case len(found) == 0:
		return nil, "", fmt.Errorf("systemd has no unit of a container runtime: none of %s", strings.Join(runtimeUnits, ", "))
	case len(found) > 1:
		return nil, "", fmt.Errorf("the node has several container runtimes: name the unit that the kubelet uses: %s", strings.Join(found, ", "))
	}
	file := filepath.Join(root, "etc/systemd/system", found[0]+".service.d", "90-rdma-spec-memlock.conf")
	return change.Plan{{Path: file, Content: []byte(limits)}}, found[0] + ".service", nil
}

// HasUnit reports whether systemd finds a unit below a root.
func HasUnit(root, name string) bool {
	return slices.ContainsFunc(unitFolders, func(folder string) bool {
		_, err := os.Stat(filepath.Join(root, folder, strings.TrimSuffix(name, ".service")+".service"))
		return err == nil
	})
}
