// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// hcaChecks are about HCAs and what the kernel has of them.
func hcaChecks() []Check {
	return []Check{{
		ID: "hca-answers", Family: "hca",
		Title:    "Each HCA answers.",
		Messages: []string{"mlx5_cmd_out_err", "wait_func: timeout. Will cause a leak of a command resource"},
		Why:      "An HCA whose firmware does not answer blocks every program that asks it: those that open it, and monitoring.",
		Look:     eachHCA(func(*View, hca.HCA) []Finding { return nil }),
	}, {
		ID: "guid-valid", Family: "hca",
		Title:    "Each HCA has a node GUID.",
		Messages: []string{"VF GUID is not valid"},
		Why:      "A function with a zero GUID stays DOWN on InfiniBand, and crashes programs that connect by RDMA_CM.",
		Reads:    []string{"sys/bus/pci/devices/*/virtfn*"},
		Needs:    []string{"hca-answers"},
		Look:     eachHCA(zeroGUID),
	}, {
		ID: "guid-unique", Family: "hca",
		Title:   "No two HCAs have the same node GUID.",
		Unheard: "programs reach the wrong HCA, or time out",
		Why:     "The fabric and RDMA_CM find an HCA by its GUID.",
		Needs:   []string{"hca-answers"},
		Look:    sharedGUIDs,
	}, {
		ID: "firmware-same", Family: "hca",
		Title:   "HCAs of the same board have the same firmware.",
		Unheard: "differences of firmware show as one slow or failing HCA among several",
		Why:     "A job is as slow as its slowest HCA, and a fault of one firmware is hard to find among several.",
		Reads:   boardReads,
		Needs:   []string{"hca-answers"},
		Look:    differentFirmware,
	}, {
		ID: "class-devices", Family: "hca",
		Title: "Each HCA with an ACTIVE port has the devices of its class.",
		Messages: []string{
			"lstat /dev/infiniband/uverbs0: no such file or directory", "No IB devices found", "can't open UMAD port",
		},
		Why:   "Without its verbs device, no program can open an HCA that looks healthy. Without umad, the fabric's tools cannot.",
		Reads: slices.Concat(boardReads, []string{"sys/class/infiniband_verbs"}),
		Needs: []string{"hca-answers", "uverbs-module"},
		Look:  missingClassDevices,
	}}
}

// eachHCA looks at each HCA that answers.
func eachHCA(look func(*View, hca.HCA) []Finding) func(*View) []Finding {
	return func(v *View) []Finding {
		return ofHCAs(v, func(hcas []hca.HCA) []Finding {
			var found []Finding
			for _, h := range hcas {
				found = append(found, look(v, h)...)
			}
			return found
		})
	}
}

// inventory returns the node's HCAs. The findings are why there is nothing to look at.
func inventory(v *View) (*hca.Node, []Finding) {
	node, err := v.HCAs()
	switch {
	case err != nil:
		return nil, []Finding{unknown("", fmt.Sprintf("The HCAs cannot be listed: %v.", err))}
	case len(node.HCAs) == 0:
		return nil, notApplied("The node has no HCA.")
	}
	return node, nil
}

// ofHCAs looks at the HCAs that answer.
func ofHCAs(v *View, look func([]hca.HCA) []Finding) []Finding {
	node, nothing := inventory(v)
	if nothing != nil {
		return nothing
	}
	var found []Finding
	var answered []hca.HCA
	for _, h := range node.HCAs {
		if h.Unread != "" {
			found = append(found, unknown(object(h), "The HCA cannot be read: "+h.Unread+"."))
			continue
		}
		answered = append(answered, h)
	}
	return append(found, look(answered)...)
}

// object names an HCA, and portObject a port, in findings.
func object(h hca.HCA) string { return "HCA " + h.Name }

func portObject(h hca.HCA, p hca.Port) string { return fmt.Sprintf("HCA %s port %d", h.Name, p.Number) }

// rebind returns the command that has a device's driver look at it anew.
func rebind(bus, device string) string {
	at := "/sys/bus/" + bus + "/devices/" + device + "/driver"
	return fmt.Sprintf("d=$(readlink -f %s) && echo %s > $d/unbind && echo %s > $d/bind", at, device, device)
}

// boardReads is what tells boards apart.
var boardReads = []string{
	"sys/bus/pci/devices/*/vendor", "sys/bus/pci/devices/*/device",
	"sys/bus/pci/devices/*/subsystem_vendor", "sys/bus/pci/devices/*/subsystem_device",
}

// board names the board that a physical HCA is, "" where that is not known. Mellanox's boards have an identifier of their own.
func board(v *View, h hca.HCA) string {
	if h.Function != hca.FunctionPhysical || h.PCI == "" {
		return ""
	}
	if id := attribute(v, "sys/class/infiniband/"+h.Name+"/board_id"); id != "" {
		return id
	}
	var ids []string
	for _, name := range []string{"vendor", "device", "subsystem_vendor", "subsystem_device"} {
		id := attribute(v, "sys/bus/pci/devices/"+h.PCI+"/"+name)
		if id == "" {
			return ""
		}
		ids = append(ids, strings.TrimPrefix(id, "0x"))
	}
	return strings.Join(ids, ":")
}

// attribute returns a line of sysfs, "" where there is none.
func attribute(v *View, name string) string {
	text, _ := v.Read(name)
	return strings.TrimSpace(strings.TrimRight(text, "\x00"))
}

// byBoard returns the physical HCAs of each board, in the order of the HCAs.
func byBoard(v *View, hcas []hca.HCA) [][]hca.HCA {
	index := map[string]int{}
	var groups [][]hca.HCA
	for _, h := range hcas {
		id := board(v, h)
		if id == "" {
			continue
		}
		i, known := index[id]
		if !known {
			i = len(groups)
			index[id], groups = i, append(groups, nil)
		}
		groups[i] = append(groups[i], h)
	}
	return groups
}

func differentFirmware(v *View) []Finding {
	return ofHCAs(v, func(hcas []hca.HCA) []Finding {
		var found []Finding
		for _, group := range byBoard(v, hcas) {
			newest := slices.MaxFunc(group, func(a, b hca.HCA) int { return compareVersions(a.Firmware, b.Firmware) })
			for _, h := range group {
				if h.Firmware != "" && h.Firmware != newest.Firmware {
					found = append(found, wrong(object(h), fmt.Sprintf("It has firmware %s, and HCA %s of the same board has %s.", h.Firmware, newest.Name,
						newest.Firmware), "Install one firmware on all of them, for instance: mlxfwmanager -d "+h.PCI+" --online -u"))
				}
			}
		}
		return found
	})
}

// compareVersions compares versions such as 28.39.2048 number by number.
func compareVersions(a, b string) int {
	numbers := func(s string) []int {
		var all []int
		for part := range strings.SplitSeq(s, ".") {
			n := 0
			_, _ = fmt.Sscan(part, &n)
			all = append(all, n)
		}
		return all
	}
	return slices.Compare(numbers(a), numbers(b))
}

func missingClassDevices(v *View) []Finding {
	return ofHCAs(v, func(hcas []hca.HCA) []Finding {
		has := func(h hca.HCA, kind hca.Kind) bool {
			return slices.ContainsFunc(h.Devices, func(d hca.Device) bool { return d.Kind == kind })
		}
		lacks := func(h hca.HCA, kind hca.Kind) Finding {
			return wrong(object(h), fmt.Sprintf("It has an ACTIVE port and no %s device.", kind), reload(h))
		}
		var found []Finding
		for _, h := range hcas {
			if h.Active() && !has(h, hca.KindVerbs) {
				found = append(found, lacks(h, hca.KindVerbs))
			}
		}
		// Not all drivers have umad. One HCA without it among others of its board is a fault. issm is missing normally: see GB300.
		for _, group := range byBoard(v, hcas) {
			for _, h := range group {
				if h.Active() && has(h, hca.KindVerbs) && !has(h, hca.KindUMAD) &&
					slices.ContainsFunc(group, func(other hca.HCA) bool { return has(other, hca.KindUMAD) }) {
					found = append(found, lacks(h, hca.KindUMAD))
				}
			}
		}
		return found
	})
}

// reload returns the command that makes an HCA's devices anew.
func reload(h hca.HCA) string {
	if h.PCI == "" {
		return "modprobe -r ib_uverbs && modprobe ib_uverbs"
	}
	return rebind("pci", h.PCI)
}
