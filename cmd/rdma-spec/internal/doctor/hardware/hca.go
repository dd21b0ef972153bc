// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// hcaChecks returns the checks of HCAs, and of the devices that the kernel creates for HCAs.
func hcaChecks() []doctor.Check {
	return []doctor.Check{{
		ID: "hca-answers", Family: "hca", Title: "Each HCA responds.",
		Impact: "All programs that access the HCA, including monitoring tools, hang.",
		Look:   eachHCA(func(*doctor.View, hca.HCA) []doctor.Finding { return nil }),
	}, {
		ID: "guid-valid", Family: "hca", Title: "Each HCA has a node GUID.",
		Impact: "On InfiniBand, a function without a GUID stays DOWN. Programs that use RDMA_CM crash.",
		Reads:  slices.Concat(doctor.FunctionReads, boardReads), Needs: []string{"hca-answers"},
		Look: eachHCA(withoutGUID),
	}, {
		ID: "guid-unique", Family: "hca", Title: "No two HCAs have the same node GUID.",
		NoMessages: "programs reach the wrong HCA, or time out",
		Impact: "The fabric and RDMA_CM identify an HCA by its GUID. If two HCAs have the same GUID, connections " +
			"reach the wrong HCA.",
		Needs: []string{"hca-answers"}, Look: sharedGUIDs,
	}, {
		ID: "firmware-same", Family: "hca", Title: "HCAs on boards of the same model have the same firmware.",
		NoMessages: "only one of several HCAs is slow or fails",
		Impact:     "A job is only as fast as its slowest HCA. A bug in only one of the firmware versions is hard to find.",
		Reads:      boardReads, Needs: []string{"hca-answers"}, Look: eachBoard(differentFirmware),
	}, {
		ID: "class-devices", Family: "hca", Title: "Each HCA with an ACTIVE port has its verbs and umad devices.",
		Impact: "Without the verbs device, no program can open the HCA. Without the umad device, fabric tools cannot use " +
			"the HCA.",
		Reads: slices.Concat(boardReads, []string{"sys/class/infiniband_verbs"}),
		Needs: []string{"hca-answers", "uverbs-module"}, Look: missingClassDevices,
	}}
}

// eachHCA calls look with each HCA that responds.
func eachHCA(look func(*doctor.View, hca.HCA) []doctor.Finding) doctor.Look {
	return func(v *doctor.View) []doctor.Finding {
		return ofHCAs(v, func(hcas []hca.HCA) []doctor.Finding {
			return doctor.Each(hcas, func(h hca.HCA) []doctor.Finding { return look(v, h) })
		})
	}
}

// inventory returns the node's HCAs. If it cannot return any HCA, the findings contain the reason.
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

// ofHCAs calls look with the HCAs that respond, except the HCAs that no program uses for RDMA.
func ofHCAs(v *doctor.View, look func([]hca.HCA) []doctor.Finding) []doctor.Finding {
	node, nothing := inventory(v)
	if nothing != nil {
		return nothing
	}
	var found []doctor.Finding
	var answered []hca.HCA
	for _, h := range node.HCAs {
		if h.Unread != "" {
			// The HCA was queried twice. hca-answers reports this fault, and the other checks skip the HCA.
			found = append(found, doctor.Fault(object(h), "The HCA cannot be read: "+h.Unread+".", "Drain and restart the "+
				"node. The restart stops all pods on the node. To list the RDMA containers, run \"rdma-spec status\". If the HCA "+
				"hangs again, replace the card. To find the reason, run: dmesg"))
			continue
		}
		if h.ForPrograms() {
			answered = append(answered, h)
		}
	}
	return append(found, look(answered)...)
}

// object returns the name of an HCA in findings, and portObject the name of a port.
func object(h hca.HCA) string { return "HCA " + h.Name }

func portObject(h hca.HCA, p hca.Port) string { return fmt.Sprintf("HCA %s port %d", h.Name, p.Number) }

// rebindCommand returns the command that rebinds a device to its driver.
func rebindCommand(bus, device string) string {
	at := "/sys/bus/" + bus + "/devices/" + device + "/driver"
	return fmt.Sprintf("d=$(readlink -f %s) && echo %s > $d/unbind && echo %s > $d/bind", at, device, device)
}

// boardReads are the files that identify boards.
var boardReads = []string{
	"sys/bus/pci/devices/*/vendor", "sys/bus/pci/devices/*/device",
	"sys/bus/pci/devices/*/subsystem_vendor", "sys/bus/pci/devices/*/subsystem_device",
}

// board returns the ID of a physical HCA's board model, "" if the ID is unknown. Mellanox boards have an additional
// identifier.
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

// byBoard groups the physical HCAs by board model.
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

// eachBoard calls look with the physical HCAs of each board model.
func eachBoard(look func(*doctor.View, []hca.HCA) []doctor.Finding) doctor.Look {
	return func(v *doctor.View) []doctor.Finding {
		return ofHCAs(v, func(hcas []hca.HCA) []doctor.Finding {
			return doctor.Each(byBoard(v, hcas), func(group []hca.HCA) []doctor.Finding { return look(v, group) })
		})
	}
}

// differentFirmware finds the HCAs of a board model whose firmware differs from the most common version. If two
// versions are equally common, the older version counts as different.
func differentFirmware(_ *doctor.View, group []hca.HCA) (found []doctor.Finding) {
	group = slices.DeleteFunc(slices.Clone(group), func(h hca.HCA) bool { return h.Firmware == "" })
	count := map[string]int{}
	for _, h := range group {
		count[h.Firmware]++
	}
	if len(count) < 2 {
		return nil
	}
	usual := slices.MaxFunc(group, func(a, b hca.HCA) int {
		return cmp.Or(cmp.Compare(count[a.Firmware], count[b.Firmware]), doctor.CompareVersions(a.Firmware, b.Firmware))
	})
	for _, h := range group {
		if h.Firmware == usual.Firmware {
			continue
		}
		tools := h.Tools(hca.Port{Number: 1})
		reset := "restart the node"
		if tools.Reset != "" {
			reset = "run: " + tools.Reset
		}
		found = append(found, doctor.Fault(object(h), fmt.Sprintf(
			"The HCA has firmware %s. Firmware %s is installed on %d of the %d HCAs with this board model, "+
				"for example on HCA %s.", h.Firmware, usual.Firmware, count[usual.Firmware], len(group),
			usual.Name),
			fmt.Sprintf("Drain the node, install firmware %s with %s, and then %s.", usual.Firmware,
				cmp.Or(tools.Firmware, "the vendor's tool"), reset)))
	}
	return found
}

// withoutFabricManager finds HCAs of NVSwitches that the switches' fabric manager cannot open. Without the fabric, CUDA
// does not start on the GPUs.
func withoutFabricManager(v *doctor.View) []doctor.Finding {
	node, _ := inventory(v) // ofHCAs reports the reason
	if node == nil || !slices.ContainsFunc(node.HCAs, func(h hca.HCA) bool {
		return h.Manages == hca.NVSwitches && !hasDevice(h, hca.KindUMAD) && !slices.Contains(h.Unlisted, hca.KindUMAD)
	}) {
		return nil
	}
	return []doctor.Finding{doctor.Fault("module ib_umad", "The HCAs that manage NVSwitches have no umad device. "+
		"Therefore, NVIDIA's fabric manager does not start, and CUDA programs report that the system is not ready.",
		loadCommand("ib_umad")).Command()}
}

func missingClassDevices(v *doctor.View) []doctor.Finding {
	return append(withoutFabricManager(v), ofHCAs(v, func(hcas []hca.HCA) (found []doctor.Finding) {
		check := func(h hca.HCA, kind hca.Kind, wanted bool) {
			if wanted && h.Active() && !hasDevice(h, kind) {
				found = append(found, reload(h, doctor.Fault(object(h), fmt.Sprintf("The HCA has an ACTIVE port but no %s device.",
					kind), "")))
			}
		}
		for _, h := range hcas {
			check(h, hca.KindVerbs, true)
		}
		// Some drivers create no umad device. An HCA without umad is a fault if another HCA of the same board model has umad.
		// A missing issm device is normal: see GB300.
		for _, group := range byBoard(v, hcas) {
			usual := slices.ContainsFunc(group, func(other hca.HCA) bool { return hasDevice(other, hca.KindUMAD) })
			for _, h := range group {
				check(h, hca.KindUMAD, usual && hasDevice(h, hca.KindVerbs))
			}
		}
		return found
	})...)
}

func hasDevice(h hca.HCA, kind hca.Kind) bool {
	return slices.ContainsFunc(h.Devices, func(d hca.Device) bool { return d.Kind == kind })
}

// reload adds the fix that recreates an HCA's devices to a finding.
func reload(h hca.HCA, f doctor.Finding) doctor.Finding {
	switch {
	case h.PCI == "":
		// Software drivers use functions in ib_uverbs, so that module cannot be reloaded while a software HCA exists.
		f.Fix = fmt.Sprintf("Recreate the software HCA. Programs that use the HCA lose it. To list these programs, run "+
			"\"rdma resource show ctx\". To recreate the HCA, run \"rdma link delete %[1]s\", and then the command that "+
			"created the HCA, such as \"rdma link add %[1]s type rxe netdev NETDEV\".", h.Name)
		return f
	case h.Function == hca.FunctionVirtual:
		f.Fix = rebindCommand("pci", h.PCI)
		return f.Disruptive("The pod that uses virtual function "+h.PCI+" loses the HCA.", "rdma-spec status")
	}
	f.Fix = fmt.Sprintf("Restart the node, or rebind the driver of PCI device %s. Either action removes the card's "+
		"network interfaces and virtual functions. The network interfaces might connect the node to the cluster. To find "+
		"out, run \"ls /sys/bus/pci/devices/%[1]s/net; ip route\". Pods might be using the virtual functions. "+
		"To print the number of virtual functions, and to list the containers that use HCAs, run \"cat "+
		"/sys/bus/pci/devices/%[1]s/sriov_numvfs; rdma-spec status\".", h.PCI)
	return f
}
