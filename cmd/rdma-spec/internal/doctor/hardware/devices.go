// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// deviceChecks returns the checks of device nodes and of cgroup limits on RDMA objects.
func deviceChecks() []doctor.Check {
	return []doctor.Check{{
		ID: "device-nodes", Family: "devices",
		Title:  "Each HCA's device nodes exist, with the device numbers that sysfs reports.",
		Impact: "Programs and runtimes cannot open the device, or they open the wrong one.",
		Reads:  []string{"dev/infiniband"}, Look: badNodes,
	}, {
		ID: "cgroup-rdma", Family: "devices", Title: "Each pod is below its limits on RDMA objects.",
		Impact: "At the limit, creating an RDMA object fails with \"Resource temporarily unavailable\".",
		Reads:  cgroupReads, Look: exhaustedCgroups,
	}}
}

// badNodes finds device nodes that are missing, or that differ from the devices that sysfs lists.
func badNodes(v *doctor.View) []doctor.Finding {
	node, err := v.HCAs()
	if err != nil {
		return []doctor.Finding{doctor.Unsure("", fmt.Sprintf("The devices cannot be listed: %v.", err))}
	}
	var all []hca.Device
	for _, h := range node.HCAs {
		all = append(all, h.Devices...)
	}
	if node.RDMACM != nil {
		all = append(all, *node.RDMACM)
	}
	if len(all) == 0 {
		return doctor.Inapplicable("The node has no RDMA devices.")
	}
	var found []doctor.Finding
	missing := 0
	for _, d := range all {
		if d.Sound() {
			continue
		}
		on := "device " + d.Path
		if d.HCA != "" {
			on = "HCA " + d.HCA + " " + on
		}
		make := fmt.Sprintf("mknod -m %04o %s c %d %d && { restorecon %[2]s 2>/dev/null || true; }", d.Mode,
			d.Path, d.Major, d.Minor)
		if d.Missing {
			missing++
			found = append(found, doctor.Fault(on, "The device node is missing.",
				"mkdir -p "+path.Dir(d.Path)+" && "+make).Command())
			continue
		}
		found = append(found, doctor.Fault(on, d.Problem+".", "rm -rf "+d.Path+" && "+make).Command())
	}
	if dir, err := v.Exists("dev/infiniband"); missing == len(all) && (!dir || err != nil) {
		return []doctor.Finding{doctor.Unsure("", "The doctor cannot check the device nodes, because it cannot see the "+
			"node's /dev.")}
	}
	return found
}

// cgroupReads are the files with the limits and the usage of the cgroups of pods and containers, in the layouts of
// systemd and cgroupfs. In cgroup version 1, each controller has a separate directory.
var cgroupReads = func() (all []string) {
	for _, pods := range []string{"sys/fs/cgroup/kubepods*", "sys/fs/cgroup/rdma/kubepods*"} {
		for _, below := range []string{"", "/*", "/*/*", "/*/*/*"} {
			all = append(all, pods+below+"/rdma.max", pods+below+"/rdma.current")
		}
	}
	return all
}()

// exhaustedCgroups finds cgroups that have reached a limit on RDMA objects. The kernel refuses further objects.
func exhaustedCgroups(v *doctor.View) (found []doctor.Finding) {
	for limit := range slices.Chunk(cgroupReads, 2) {
		names, err := v.Glob(limit[0])
		if err != nil {
			return []doctor.Finding{doctor.Unsure("", fmt.Sprintf("The cgroups cannot be listed: %v.", err))}
		}
		for _, name := range names {
			limits := objects(doctor.Attribute(v, name))
			for what, used := range objects(doctor.Attribute(v, path.Dir(name)+"/rdma.current")) {
				if most, limited := limits[what]; limited && used >= most {
					device, kind, _ := strings.Cut(what, " ")
					found = append(found, doctor.Fault("cgroup /"+strings.TrimPrefix(path.Dir(name), "sys/fs/cgroup/"),
						fmt.Sprintf("The cgroup's limit for %s on HCA %s is %d, and the cgroup uses %d.", kind, device, most, used),
						fmt.Sprintf("echo '%s %s=max' > /%s", device, kind, name)).Disruptive(
						"Without the limit, the pod can use up the HCA's RDMA objects, which other pods need.", "rdma resource show"))
				}
			}
		}
	}
	return found
}

// objects parses "mlx5_0 hca_handle=2 hca_object=max" into numbers by device and kind. It skips kinds without a limit.
func objects(text string) map[string]int {
	all := map[string]int{}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		for i := 1; i < len(fields); i++ {
			kind, number, _ := strings.Cut(fields[i], "=")
			if n, err := strconv.Atoi(number); err == nil {
				all[fields[0]+" "+kind] = n
			}
		}
	}
	return all
}
