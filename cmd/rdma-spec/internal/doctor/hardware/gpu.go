// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"encoding/binary"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// gpuReads is what tells GPUs and the ways to them.
var gpuReads = []string{
	pciDevices + "*", pciDevices + "*/class", pciDevices + "*/vendor", pciDevices + "*/driver", pciDevices + "*/numa_node",
	pciDevices + "*/config",
}

// gpuChecks are about transfers between HCAs and the memory of GPUs.
func gpuChecks() []doctor.Check {
	return []doctor.Check{{
		ID: "gpu-direct", Family: "gpu", Title: "HCAs can reach the memory of GPUs.",
		Messages: []string{"GPU Direct RDMA Disabled for HCA", "ibv_reg_mr failed: Bad address",
			"ibv_reg_mr_iova2 failed with error Bad address"},
		Why: "Without nvidia_peermem, and without DMA-BUF, which only the open kernel modules have, memory of a GPU " +
			"cannot be registered.",
		Reads: slices.Concat(gpuReads, []string{
			"proc/driver/nvidia/version", "sys/kernel/mm/memory_peers/nv_mem/version", "sys/module/nvidia_peermem",
			"sys/module/efa_nv_peermem",
		}),
		Needs: []string{"module-symbols"}, Look: withGPUs(noGPUDirect),
	}, {
		ID: "acs", Family: "gpu", Title: "No PCIe switch redirects transfers between a GPU and an HCA to the CPU.",
		Messages: []string{"vendor err 81"},
		Why:      "ACS sends what goes from device to device up to the CPU: slow, and on some machines it hangs.",
		Reads:    gpuReads, Look: withGPUs(redirected),
	}, {
		ID: "gpu-hca-distance", Family: "gpu", Title: "Each GPU has an HCA below its host bridge.",
		NoMessages: "it shows in bandwidth tests alone",
		Why:        "Transfers that cross the CPU are slower.",
		Reads:      gpuReads, Look: withGPUs(distances),
	}}
}

// gpus returns the PCI addresses of the GPUs that the node's own driver uses. Those that a virtual machine has do not
// count.
func gpus(v *doctor.View) (found []string, err error) {
	devices, err := v.Glob(pciDevices + "*")
	for _, at := range devices {
		driver, _ := v.Readlink(at + "/driver")
		ours := path.Base(driver) == "nvidia" || path.Base(driver) == "amdgpu"
		if ours && strings.HasPrefix(doctor.Attribute(v, at+"/class"), "0x03") {
			found = append(found, path.Base(at))
		}
	}
	return found, err
}

// withGPUs looks at the GPUs and the HCAs of cards.
func withGPUs(look func(v *doctor.View, gpus []string,
	hcas []hca.HCA) []doctor.Finding) func(*doctor.View) []doctor.Finding {
	return func(v *doctor.View) []doctor.Finding {
		node, nothing := inventory(v)
		if nothing != nil {
			return nothing
		}
		hcas := slices.DeleteFunc(slices.Clone(node.HCAs), func(h hca.HCA) bool { return h.PCI == "" })
		found, err := gpus(v)
		switch {
		case err != nil:
			return []doctor.Finding{doctor.Unsure("", fmt.Sprintf("The GPUs cannot be listed: %v.", err))}
		case len(found) == 0:
			return doctor.Inapplicable("The node has no GPU.")
		case len(hcas) == 0:
			return doctor.Inapplicable("The node has no HCA on a card.")
		}
		return look(v, found, hcas)
	}
}

func noGPUDirect(v *doctor.View, _ []string, _ []hca.HCA) []doctor.Finding {
	version, err := v.Read("proc/driver/nvidia/version")
	if err != nil {
		return doctor.Inapplicable("The node has no GPU of NVIDIA.")
	}
	if strings.Contains(version, "Open Kernel Module") {
		return nil // DMA-BUF
	}
	for _, peer := range []string{"sys/kernel/mm/memory_peers/nv_mem/version", "sys/module/nvidia_peermem",
		"sys/module/efa_nv_peermem"} {
		if there, err := v.Exists(peer); there || err != nil {
			return nil
		}
	}
	return []doctor.Finding{doctor.Fault("module nvidia_peermem",
		"It is not loaded, and the GPU driver is not the open one, which has DMA-BUF.", load("nvidia_peermem"))}
}

// The capability Access Control Services of PCI Express.
const (
	FirstExtended = 0x100
	CapabilityACS = 0x0d
	controlACS    = 6                  // where its control register is
	Redirects     = 1<<2 | 1<<3 | 1<<5 // request, completion, egress control
)

// redirected finds bridges between GPUs and HCAs of one switch that redirect transfers between them.
func redirected(v *doctor.View, gpus []string, hcas []hca.HCA) []doctor.Finding {
	var between []string
	for _, gpu := range gpus {
		a := bridges(v, gpu)
		for _, h := range hcas {
			b := bridges(v, h.PCI)
			common := 0
			for common < min(len(a), len(b)) && a[common] == b[common] {
				common++
			}
			if common > 0 { // else what goes between them passes the CPU anyway
				between = append(between, slices.Concat(a[common:], b[common:])...)
			}
		}
	}
	slices.Sort(between)
	var redirecting []string
	for _, bridge := range slices.Compact(between) {
		config, err := v.Read(pciDevices + bridge + "/config")
		switch control, found := acs([]byte(config)); {
		case err != nil || len(config) < FirstExtended+4:
			return []doctor.Finding{doctor.Unsure("", "The bridges' configuration can be read by root only.")}
		case found && control&Redirects != 0:
			redirecting = append(redirecting, bridge)
		}
	}
	if len(redirecting) == 0 {
		return nil
	}
	text := fmt.Sprintf("ACS redirects what passes %s.", strings.Join(redirecting, ", "))
	for _, bridge := range bridges(v, hcas[0].PCI) {
		if doctor.Attribute(v, pciDevices+bridge+"/vendor") == "0x10de" {
			return []doctor.Finding{doctor.Unsure("", text+" GB200 and GB300 need some of that, see: rdma_topo check")}
		}
	}
	return []doctor.Finding{doctor.Fault("", text,
		"With setpci, clear bits 2, 3, and 5 of ECAP_ACS+0x6.w of these bridges, after each boot. "+
			"Devices below them are no longer isolated from each other then: do not, if a virtual machine has one (see: ls "+
			"/sys/bus/pci/drivers/vfio-pci).")}
}

// acs returns the control register of ACS from a configuration space.
func acs(config []byte) (control uint16, found bool) {
	at := FirstExtended
	for range 64 {
		if at < FirstExtended || at+controlACS+2 > len(config) {
			return 0, false
		}
		header := binary.LittleEndian.Uint32(config[at:])
		if header&0xffff == CapabilityACS {
			return binary.LittleEndian.Uint16(config[at+controlACS:]), true
		}
		at = int(header >> 20 &^ 3)
	}
	return 0, false
}

// distances reports GPUs without an HCA below their host bridge. That is how the machine is built, and not a fault.
func distances(v *doctor.View, gpus []string, hcas []hca.HCA) []doctor.Finding {
	var found []doctor.Finding
	for _, gpu := range gpus {
		host, _ := pciPath(v, gpu)
		near := slices.ContainsFunc(hcas, func(h hca.HCA) bool { other, _ := pciPath(v, h.PCI); return other == host })
		if host == "" || near {
			continue
		}
		text, node := "No HCA is below its host bridge", doctor.Attribute(v, pciDevices+gpu+"/numa_node")
		on := slices.IndexFunc(hcas, func(h hca.HCA) bool { return fmt.Sprint(h.NUMANode) == node && h.NUMANode >= 0 })
		if on >= 0 {
			text += ": the nearest one, " + hcas[on].Name + ", is on its NUMA node"
		} else if node != "" && node != "-1" {
			text += ", and none is on its NUMA node " + node
		}
		found = append(found, doctor.Finding{Status: doctor.OK, Object: "GPU " + gpu, Text: text + "."})
	}
	return found
}
