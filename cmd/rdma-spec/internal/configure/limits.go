// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package configure

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/configure/change"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/goal"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/files"
	"github.com/rdma-spec/rdma-spec/spec/platform"
)

const limitsFile = "90-rdma-spec-memlock.conf"

// Limits plans to remove the memlock limit of a unit on the node below a root, and returns the unit's name. If the unit
// has no limit even without our file, the plan is empty. If unit is "", it is the node's only unit of a container
// runtime.
func Limits(root, unit string, daemons []containerd.Daemon) (plan change.Plan, name string, err error) {
	known := append(containerd.Units(), "docker.service", crioUnit) // whose limits containers inherit
	if unit != "" {
		unit = strings.TrimSuffix(unit, ".service") + ".service"
		if !slices.Contains(known, unit) {
			return nil, "", fmt.Errorf("%q is not a unit of a supported container runtime: use one of %s", unit,
				strings.Join(known, ", "))
		}
		known = []string{unit}
	}
	found := slices.DeleteFunc(slices.Clone(known), func(name string) bool { return !process.HasUnit(root, name) })
	if unit == "" {
		for _, d := range daemons { // if several units can run a daemon, use the unit that runs it
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
		return nil, "", fmt.Errorf("systemd has no unit for a supported container runtime (%s)",
			strings.Join(known, ", "))
	case len(found) > 1:
		return nil, "", fmt.Errorf("the node has several container runtimes (%s): specify the unit of the runtime "+
			"that the kubelet uses", strings.Join(found, ", "))
	}
	ours := "/" + filepath.Join(unitDir, found[0]+".d", limitsFile)
	last, unlimited := goal.Memlock(root, found[0], ours)
	switch {
	case unlimited:
		return nil, found[0], nil
	case strings.HasSuffix(filepath.Dir(last.File), ".d") && filepath.Base(last.File) > limitsFile:
		return nil, "", fmt.Errorf("%[1]s, which systemd reads after %[3]s, sets LimitMEMLOCK=%[2]s: change the value "+
			"in %[1]s", files.Below(root, last.File), last.Value, files.Below(root, ours))
	}
	systemd, err := platform.Find("systemd")
	if err != nil {
		return nil, "", err
	}
	text, err := systemd.Config(spec.Grant{Memlock: spec.Unlimited}, nil)
	if err != nil {
		return nil, "", err
	}
	plan, err = change.Whole(change.File{Path: files.Below(root, ours), Content: text})
	return plan, found[0], err
}
