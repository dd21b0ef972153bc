// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// hcaChecks are about HCAs and what the kernel has of them.
func hcaChecks() []doctor.Check {
	return []doctor.Check{{
		ID: "hca-answers", Family: "hca", Title: "Each HCA answers.",
		Messages: []string{"mlx5_cmd_out_err", "wait_func: timeout. Will cause a leak of a command resource"},
		Why:      "An HCA whose firmware does not answer blocks every program that asks it, monitoring as well.",
		Look:     eachHCA(func(*doctor.View, hca.HCA) []doctor.Finding { return nil }),
	}, {
		ID: "guid-valid", Family: "hca", Title: "Each HCA has a node GUID.",
		Messages: []string{"VF GUID is not valid"},
		Why:      "A function with a zero GUID stays DOWN on InfiniBand, and crashes programs that connect by RDMA_CM.",
		Reads:    []string{"sys/bus/pci/devices/*/virtfn*"}, Needs: []string{"hca-answers"}, Look: eachHCA(zeroGUID),
	}, {
		ID: "guid-unique", Family: "hca", Title: "No two HCAs have the same node GUID.",
		NoMessages: "programs reach the wrong HCA, or time out",
		Why:        "The fabric and RDMA_CM find an HCA by its GUID.",
		Needs:      []string{"hca-answers"}, Look: sharedGUIDs,
	}, {
		ID: "firmware-same", Family: "hca", Title: "HCAs of the same board have the same firmware.",
		NoMessages: "one HCA among several is slow, or fails",
		Why:        "A job is as slow as its slowest HCA, and a fault of one firmware is hard to find among several.",
		Reads:      boardReads, Needs: []string{"hca-answers"}, Look: eachBoard(differentFirmware),
	}, {
		ID: "class-devices", Family: "hca", Title: "Each HCA with an ACTIVE port has the devices of its class.",
		Messages: []string{
			"lstat /dev/infiniband/uverbs0: no such file or directory", "No IB devices found", "can't open UMAD port",
		},
		Why: "Without its verbs device, no program can open an HCA that looks healthy. Without umad, the fabric's tools " +
			"cannot.",
		Reads: slices.Concat(boardReads, []string{"sys/class/infiniband_verbs"}),
		Needs: []string{"hca-answers", "uverbs-module"}, Look: missingClassDevices,
	}}
}

// eachHCA looks at each HCA that answers.
func eachHCA(look func(*doctor.View, hca.HCA) []doctor.Finding) doctor.Look {
	return func(v *doctor.View) []doctor.Finding {
		return ofHCAs(v, func(hcas []hca.HCA) []doctor.Finding {
			return doctor.Each(hcas, func(h hca.HCA) []doctor.Finding { return look(v, h) })
		})
	}
}

// inventory returns the node's HCAs. The findings are why there is nothing to look at.
func inventory(v *doctor.View) (*hca.Inventory, []doctor.Finding) {
	node, err := v.HCAs()
	switch {
	case err != nil:
		return nil, []doctor.Finding{doctor.Unsure("", fmt.Sprintf("The HCAs cannot be listed: %v.", err))}
	case len(node.HCAs) == 0:
		return nil, doctor.Inapplicable("The node has no HCA.")
	}
	return node, nil
}

// ofHCAs looks at the HCAs that answer, but for those that are not the programs': sub-devices, those that manage
// NVSwitches, and those for raw packets alone.
func ofHCAs(v *doctor.View, look func([]hca.HCA) []doctor.Finding) []doctor.Finding {
	node, nothing := inventory(v)
	if nothing != nil {
		return nothing
	}
	var found []doctor.Finding
	var answered []hca.HCA
	for _, h := range node.HCAs {
		if h.Unread != "" {
			// It was asked twice. hca-answers says it, and the others are skipped for it.
			found = append(found, doctor.Fault(object(h), "The HCA hangs: "+h.Unread+".", "Drain the node, and restart it, "+
				"which ends all its pods (see: rdma-spec status). If it hangs again, replace the card. See why: dmesg"))
			continue
		}
		answered = append(answered, h)
	}
	return append(found, look(slices.DeleteFunc(slices.Clone(answered),
		func(h hca.HCA) bool { return h.Manages != "" || isSubDevice(h, answered) || forPackets(h) }))...)
}

// forPackets reports whether an HCA is for raw packets alone, as DPDK uses them: MANA is in Linux 6.8. Its driver tells
// nothing of its ports (NOP), and it has no GUID.
func forPackets(h hca.HCA) bool {
	return h.NodeGUID == noGUID && len(h.Ports) > 0 &&
		!slices.ContainsFunc(h.Ports, func(p hca.Port) bool { return p.State != "NOP" })
}

// isSubDevice reports whether an HCA is a part of another one: ConnectX-8 has one for the management of its planes
// (RDMA_DEVICE_TYPE_SMI in the kernel). It shares the other one's PCI function and node GUID, its ports are that one's
// planes, and no program opens it: it has no verbs device. If neither of them has one, the first is taken for the
// other.
func isSubDevice(h hca.HCA, all []hca.HCA) bool {
	_, opens := h.Verbs()
	return !opens && h.PCI != "" && slices.ContainsFunc(all, func(other hca.HCA) bool {
		_, whole := other.Verbs()
		return other.PCI == h.PCI && (whole || other.Name < h.Name)
	})
}

// object names an HCA, and portObject a port, in findings.
func object(h hca.HCA) string { return "HCA " + h.Name }

func portObject(h hca.HCA, p hca.Port) string { return fmt.Sprintf("HCA %s port %d", h.Name, p.Number) }

// rebind returns the command that binds a device to its driver again.
func rebind(bus, device string) string {
	at := "/sys/bus/" + bus + "/devices/" + device + "/driver"
	return fmt.Sprintf("d=$(readlink -f %s) && echo %s > $d/unbind && echo %s > $d/bind", at, device, device)
}

// boardReads are the files that identify boards.
var boardReads = []string{
	"sys/bus/pci/devices/*/vendor", "sys/bus/pci/devices/*/device",
	"sys/bus/pci/devices/*/subsystem_vendor", "sys/bus/pci/devices/*/subsystem_device",
}

// board names the board that a physical HCA is, "" where that is not known. Mellanox's boards have an identifier of
// their own.
func board(v *doctor.View, h hca.HCA) string {
	if h.Function != hca.FunctionPhysical || h.PCI == "" {
		return ""
	}
	if id := doctor.Attribute(v, "sys/class/infiniband/"+h.Name+"/board_id"); id != "" {
		return id
	}
	var ids []string
	for _, name := range []string{"vendor", "device", "subsystem_vendor", "subsystem_device"} {
		id := doctor.Attribute(v, "sys/bus/pci/devices/"+h.PCI+"/"+name)
		if id == "" {
			return ""
		}
		ids = append(ids, strings.TrimPrefix(id, "0x"))
	}
	return strings.Join(ids, ":")
}

// byBoard returns the physical HCAs of each board.
func byBoard(v *doctor.View, hcas []hca.HCA) (groups [][]hca.HCA) {
	boards := map[string][]hca.HCA{}
	for _, h := range hcas {
		if id := board(v, h); id != "" {
			boards[id] = append(boards[id], h)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(boards)) {
		groups = append(groups, boards[id])
	}
	return groups
}

// eachBoard looks at the physical HCAs of each board.
func eachBoard(look func(*doctor.View, []hca.HCA) []doctor.Finding) doctor.Look {
	return func(v *doctor.View) []doctor.Finding {
		return ofHCAs(v, func(hcas []hca.HCA) []doctor.Finding {
			return doctor.Each(byBoard(v, hcas), func(group []hca.HCA) []doctor.Finding { return look(v, group) })
		})
	}
}

func differentFirmware(_ *doctor.View, group []hca.HCA) (found []doctor.Finding) {
	newest := slices.MaxFunc(group, func(a, b hca.HCA) int { return doctor.CompareVersions(a.Firmware, b.Firmware) })
	for _, h := range group {
		if h.Firmware != "" && h.Firmware != newest.Firmware {
			found = append(found, doctor.Fault(object(h), fmt.Sprintf("It has firmware %s, and HCA %s of the same board has %s.",
				h.Firmware, newest.Name,
				newest.Firmware), "Install one firmware on all of them, for instance: mlxfwmanager -d "+h.PCI+" --online -u"))
		}
	}
	return found
}

func missingClassDevices(v *doctor.View) []doctor.Finding {
	return ofHCAs(v, func(hcas []hca.HCA) (found []doctor.Finding) {
		check := func(h hca.HCA, kind hca.Kind, wanted bool) {
			if wanted && h.Active() && !has(h, kind) {
				found = append(found, reload(h, doctor.Fault(object(h), fmt.Sprintf("It has an ACTIVE port and no %s device.",
					kind), "")))
			}
		}
		for _, h := range hcas {
			check(h, hca.KindVerbs, true)
		}
		// Not all drivers have umad. One HCA without it among others of its board is a fault. issm is missing normally:
		// see GB300.
		for _, group := range byBoard(v, hcas) {
			usual := slices.ContainsFunc(group, func(other hca.HCA) bool { return has(other, hca.KindUMAD) })
			for _, h := range group {
				check(h, hca.KindUMAD, usual && has(h, hca.KindVerbs))
			}
		}
		return found
	})
}

func has(h hca.HCA, kind hca.Kind) bool {
	return slices.ContainsFunc(h.Devices, func(d hca.Device) bool { return d.Kind == kind })
}

// reload adds to a finding the cure that makes an HCA's devices again.
func reload(h hca.HCA, f doctor.Finding) doctor.Finding {
	switch {
	case h.PCI == "":
		f.Cure = "modprobe -r ib_uverbs && modprobe ib_uverbs"
		return f.WithCare("programs that use an HCA end it", "rdma resource show ctx")
	case h.Function == hca.FunctionVirtual:
		f.Cure = rebind("pci", h.PCI)
		return f.WithCare("the pod that has virtual function "+h.PCI+" loses it", "rdma-spec status")
	}
	f.Cure = fmt.Sprintf("Restart the node, or bind the driver of PCI device %s again. Either takes from the node the "+
		"card's network interfaces, which may be its own way to the cluster (see: ls /sys/bus/pci/devices/%[1]s/net; "+
		"ip route), and from pods the card's virtual functions (see: cat /sys/bus/pci/devices/%[1]s/sriov_numvfs; "+
		"rdma-spec status).", h.PCI)
	return f
}
