// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package configure

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/change"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/spec/files"
)

const (
	limits = `# Written by rdma-spec configure limits; rdma-spec configure limits --revert removes it.
# It affects the daemon and every container whose spec sets no memlock, from the daemon's next start on.
[Service]
LimitMEMLOCK=infinity
`
	limitsFile = "90-rdma-spec-memlock.conf"
)

// memlockSetting is a line of a drop-in.
var memlockSetting = regexp.MustCompile(`(?m)^[ \t]*LimitMEMLOCK[ \t]*=[ \t]*(.*?)[ \t]*$`)

// Limits plans that a unit of the node below a root has no limit for locked memory, and returns the unit's name.
// Without a name, it is the only unit of a container runtime.
func Limits(root, unit string, daemons []containerd.Daemon) (plan change.Plan, name string, err error) {
	known := append(containerd.Units(), "docker.service") // whose limits containers inherit
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
		for _, d := range daemons { // of a platform's units, the one that runs counts
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
	ours := files.Below(root, filepath.Join(unitFolder, found[0]+".d", limitsFile))
	if file, limit := laterLimit(root, found[0]); limit != "" && limit != "infinity" {
		return nil, "", fmt.Errorf("%s says LimitMEMLOCK=%s, and systemd reads it after %s: change it there", file, limit,
			ours)
	}
	plan, err = change.Whole(change.File{Path: ours, Content: []byte(limits)})
	return plan, found[0], err
}

// laterLimit returns the last drop-in of a unit that systemd reads after ours and that sets the limit, and the limit;
// empty where none does.
func laterLimit(root, unit string) (file, limit string) {
	last := limitsFile
	for _, folder := range process.UnitFolders {
		dir := files.Below(root, folder+"/"+unit+".d")
		entries, _ := os.ReadDir(dir) // it needs not be there
		for _, entry := range entries {
			name := entry.Name()
			if name <= last || filepath.Ext(name) != ".conf" { // of one name, that in the first folder counts
				continue
			}
			text, _ := os.ReadFile(files.Below(root, folder+"/"+unit+".d/"+name)) // systemd ignores what cannot be read
			if found := memlockSetting.FindAllSubmatch(text, -1); found != nil {
				last, file, limit = name, filepath.Join(dir, name), string(found[len(found)-1][1])
			}
		}
	}
	return file, limit
}
