// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/binary"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// gpuReads is what tells GPUs and the ways to them.
var gpuReads = []string{
	pciDevices + "*", pciDevices + "*/class", pciDevices + "*/vendor", pciDevices + "*/driver", pciDevices + "*/numa_node", pciDevices + "*/config",
}

// gpuChecks are about transfers between HCAs and the memory of GPUs.
func gpuChecks() []Check {
	return []Check{{
		ID: "gpu-direct", Family: "gpu",
		Title:    "HCAs can reach the memory of GPUs.",
		Messages: []string{"GPU Direct RDMA Disabled for HCA", "ibv_reg_mr failed: Bad address", "ibv_reg_mr_iova2 failed with error Bad address"},
		Why:      "Without nvidia_peermem, and without DMA-BUF, which only the open kernel modules have, memory of a GPU cannot be registered.",
		Reads: slices.Concat(gpuReads, []string{
			"proc/driver/nvidia/version", "sys/kernel/mm/memory_peers/nv_mem/version", "sys/module/nvidia_peermem", "sys/module/efa_nv_peermem",
		}),
		Needs: []string{"module-symbols"},
		Look:  noGPUDirect,
	}, {
		ID: "acs", Family: "gpu",
		Title:    "No PCIe switch redirects transfers between a GPU and an HCA to the CPU.",
		Messages: []string{"vendor err 81"},
		Why:      "ACS sends what goes from device to device up to the CPU: slow, and on some machines it hangs.",
		Reads:    gpuReads,
		Look:     redirected,
	}, {
		ID: "gpu-hca-distance", Family: "gpu",
		Title:   "Each GPU has an HCA below its host bridge.",
		Unheard: "it shows in bandwidth tests alone",
		Why:     "Transfers that cross the CPU are slower.",
		Reads:   gpuReads,
		Look:    distances,
	}}
}

// gpus returns the PCI addresses of the GPUs that the node's own driver uses. Those that a virtual machine has do not count.
func gpus(v *View) ([]string, error) {
	devices, err := v.Glob(pciDevices + "*")
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(mapped(devices, path.Base), func(address string) bool {
		if !strings.HasPrefix(attribute(v, pciDevices+address+"/class"), "0x03") {
			return true
		}
		driver, _ := v.Readlink(pciDevices + address + "/driver")
		return path.Base(driver) != "nvidia" && path.Base(driver) != "amdgpu"
	}), nil
}

func mapped(names []string, by func(string) string) []string {
	all := make([]string, len(names))
	for i, name := range names {
		all[i] = by(name)
	}
	return all
}

// gpuNode returns the GPUs and the HCAs of cards. The findings are why there is nothing to look at.
func gpuNode(v *View) ([]string, []hca.HCA, []Finding) {
	node, nothing := inventory(v)
	if nothing != nil {
		return nil, nil, nothing
	}
	hcas := slices.DeleteFunc(slices.Clone(node.HCAs), func(h hca.HCA) bool { return h.PCI == "" })
	found, err := gpus(v)
	switch {
	case err != nil:
		return nil, nil, []Finding{unknown("", fmt.Sprintf("The GPUs cannot be listed: %v.", err))}
	case len(found) == 0:
		return nil, nil, notApplied("The node has no GPU.")
	case len(hcas) == 0:
		return nil, nil, notApplied("The node has no HCA on a card.")
	}
	return found, hcas, nil
}

func noGPUDirect(v *View) []Finding {
	if _, _, nothing := gpuNode(v); nothing != nil {
		return nothing
	}
	version, err := v.Read("proc/driver/nvidia/version")
	if err != nil {
		return notApplied("The node has no GPU of NVIDIA.")
	}
	if strings.Contains(version, "Open Kernel Module") {
		return nil // DMA-BUF
	}
	for _, peer := range []string{"sys/kernel/mm/memory_peers/nv_mem/version", "sys/module/nvidia_peermem", "sys/module/efa_nv_peermem"} {
		if there, err := v.Exists(peer); there || err != nil {
			return nil
		}
	}
	return []Finding{wrong("module nvidia_peermem", "It is not loaded, and the GPU driver is not the open one, which has DMA-BUF.", load("nvidia_peermem"))}
}

// The capability Access Control Services of PCI Express.
const (
	firstExtended = 0x100
	capabilityACS = 0x0d
	controlACS    = 6                  // where its control register is
	redirects     = 1<<2 | 1<<3 | 1<<5 // request, completion, egress control
)

// redirected finds bridges between GPUs and HCAs of one switch that redirect transfers between them.
func redirected(v *View) []Finding {
	gpus, hcas, nothing := gpuNode(v)
	if nothing != nil {
		return nothing
	}
	var between []string
	for _, gpu := range gpus {
		a := bridges(v, gpu)
		for _, h := range hcas {
			b := bridges(v, h.PCI)
			common := shared(a, b)
			if common == 0 {
				continue // what goes between them passes the CPU anyway
			}
			between = append(between, slices.Concat(a[common:], b[common:])...)
		}
	}
	slices.Sort(between)
	var redirecting []string
	for _, bridge := range slices.Compact(between) {
		config, err := v.Read(pciDevices + bridge + "/config")
		switch control, found := acs([]byte(config)); {
		case err != nil || len(config) < firstExtended+4:
			return []Finding{unknown("", "The bridges' configuration can be read by root only.")}
		case found && control&redirects != 0:
			redirecting = append(redirecting, bridge)
		}
	}
	if len(redirecting) == 0 {
		return nil
	}
	text := fmt.Sprintf("ACS redirects what passes %s.", strings.Join(redirecting, ", "))
	for _, bridge := range bridges(v, hcas[0].PCI) {
		if attribute(v, pciDevices+bridge+"/vendor") == "0x10de" {
			return []Finding{unknown("", text+" GB200 and GB300 need some of that, see: rdma_topo check")}
		}
	}
	return []Finding{wrong("", text, "for b in "+strings.Join(redirecting, " ")+"; do setpci -s $b ECAP_ACS+0x6.w=0000; done # after each boot")}
}

// shared is how many bridges two ways have in common.
func shared(a, b []string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// acs returns the control register of ACS from a configuration space.
func acs(config []byte) (control uint16, found bool) {
	at := firstExtended
	for range 64 {
		if at < firstExtended || at+controlACS+2 > len(config) {
			return 0, false
		}
		header := binary.LittleEndian.Uint32(config[at:])
		if header&0xffff == capabilityACS {
			return binary.LittleEndian.Uint16(config[at+controlACS:]), true
		}
		at = int(header >> 20 &^ 3)
	}
	return 0, false
}

// distances reports GPUs without an HCA below their host bridge. That is how the machine is built, and not a fault.
func distances(v *View) []Finding {
	gpus, hcas, nothing := gpuNode(v)
	if nothing != nil {
		return nothing
	}
	var found []Finding
	for _, gpu := range gpus {
		host, _ := pciPath(v, gpu)
		near := slices.ContainsFunc(hcas, func(h hca.HCA) bool { other, _ := pciPath(v, h.PCI); return other == host })
		if host == "" || near {
			continue
		}
		text, node := "No HCA is below its host bridge", attribute(v, pciDevices+gpu+"/numa_node")
		on := slices.IndexFunc(hcas, func(h hca.HCA) bool { return fmt.Sprint(h.NUMANode) == node && h.NUMANode >= 0 })
		if on >= 0 {
			text += ": the nearest one, " + hcas[on].Name + ", is on its NUMA node"
		} else if node != "" && node != "-1" {
			text += ", and none is on its NUMA node " + node
		}
		found = append(found, Finding{Status: OK, Object: "GPU " + gpu, Text: text + "."})
	}
	return found
}
