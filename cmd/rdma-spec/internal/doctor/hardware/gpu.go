// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"encoding/binary"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// peerModules register the memory of NVIDIA GPUs with ib_core. A loaded module has registered, because otherwise its
// initialization fails. ib_core's directory memory_peers is no evidence, because newer versions of OFED lack the
// directory.
var peerModules = []string{peerMemory, "nv_peer_mem", "efa_nv_peermem"}

const peerMemory = "nvidia_peermem"

// ofed exists if the RDMA modules come from OFED or DOCA.
const ofed = "sys/module/mlx_compat"

const vendorNVIDIA = "0x10de"

const sinceDMABUF = "5.12" // the first kernel that supports DMA-BUF for RDMA

// dmaBUFReads are the files that dmaBUF reads.
var dmaBUFReads = []string{"proc/driver/nvidia/version", "proc/sys/kernel/osrelease"}

// dmaBUF reports whether the GPU driver is the open driver, which supports DMA-BUF, and whether DMA-BUF works on this
// kernel.
func dmaBUF(v *doctor.View) (open, serves bool) {
	open = strings.Contains(doctor.Attribute(v, dmaBUFReads[0]), "Open Kernel Module")
	return open, open && doctor.CompareVersions(doctor.Attribute(v, dmaBUFReads[1]), sinceDMABUF) >= 0
}

// gpuReads are the files that withGPUs reads.
var gpuReads = append(slices.Clone(doctor.GPUReads), doctor.GPUFiles)

// keepsMemory matches the GPUs whose memory NVIDIA's driver never exposes to HCAs: GeForce, and DGX Spark's GB10
// (https://forums.developer.nvidia.com/t/dgx-spark-gpudirect-rdma/348787).
var keepsMemory = regexp.MustCompile(`(?m)^Model:\s+(.*\b(?:GeForce|GB10)\b.*)$`)

// gpuChecks returns the checks of transfers between HCAs and GPU memory.
func gpuChecks() []doctor.Check {
	return []doctor.Check{{
		ID: "gpu-direct", Family: "gpu", Title: "HCAs can access GPU memory.",
		Impact: "Programs cannot register GPU memory. Registering GPU memory requires the nvidia_peermem module, or " +
			"DMA-BUF support in the GPU driver's open kernel modules.",
		Reads: slices.Concat(gpuReads, dmaBUFReads, []string{
			ofed, "sys/module/nvidia_peermem", "sys/module/nv_peer_mem", "sys/module/efa_nv_peermem", pciDevices + "*/p2p",
			pciDevices + "*/gdr",
		}),
		Needs: []string{"module-symbols"}, Look: withGPUs(noGPUDirect),
	}, {
		ID: "acs", Family: "gpu", Title: "No PCIe switch sends transfers between a GPU and an HCA through the CPU.",
		Impact: "GPU transfers are slow because they go through the CPU. On some machines, they hang.",
		Reads:  slices.Concat(gpuReads, []string{pciDevices + "*/config"}), Look: withGPUs(redirected),
	}, {
		ID: "iommu", Family: "gpu", Title: "IOMMU passthrough is enabled.",
		NoMessages: "benchmarks report low bandwidth",
		Impact:     "GPU transfers go through the CPU or fail.",
		Reads:      slices.Concat(gpuReads, []string{pciDevices + "*/iommu_group/type"}), Look: withGPUs(translating),
	}}
}

// withGPUs calls look with the hardware HCAs, and with the GPUs whose memory these HCAs can access.
func withGPUs(look func(v *doctor.View, gpus []string, hcas []hca.HCA) []doctor.Finding) doctor.Look {
	return func(v *doctor.View) []doctor.Finding {
		node, nothing := inventory(v)
		if nothing != nil {
			return nothing
		}
		hcas := slices.DeleteFunc(slices.Clone(node.HCAs), func(h hca.HCA) bool { return h.PCI == "" })
		found, err := v.GPUs()
		all := len(found)
		model := ""
		files, _ := v.Glob(doctor.GPUFiles) // of NVIDIA's driver
		for _, file := range files {
			text, _ := v.Read(file)
			if of := keepsMemory.FindStringSubmatch(text); of != nil {
				model = of[1]
				found = slices.DeleteFunc(found, func(gpu string) bool { return gpu == path.Base(path.Dir(file)) })
			}
		}
		switch {
		case err != nil:
			return []doctor.Finding{doctor.Unsure("", fmt.Sprintf("The GPUs cannot be listed: %v.", err))}
		case all == 0:
			if others := v.OtherGPUs(); len(others) > 0 {
				return doctor.Inapplicable("The check does not cover GPUs or accelerators with these drivers: " +
					strings.Join(others, ", ") + ".")
			}
			return doctor.Inapplicable("The node has no GPU.")
		case len(hcas) == 0:
			return doctor.Inapplicable("The node has no hardware HCA.")
		case !v.UsesRDMA(all):
			return doctor.Unused()
		case len(found) == 0:
			return []doctor.Finding{{Status: doctor.NotApplied, Object: "GPUs", Text: fmt.Sprintf("NVIDIA's driver does not "+
				"let HCAs access the memory of %s. Programs copy data through host memory instead.", model)}}
		}
		return look(v, found, hcas)
	}
}

func noGPUDirect(v *doctor.View, gpus []string, hcas []hca.HCA) []doctor.Finding {
	if there, err := v.Exists(dmaBUFReads[0]); !there || err != nil {
		return doctor.Inapplicable("The check does not cover the memory of GPUs or accelerators with these drivers: " +
			strings.Join(v.DriversOf(gpus), ", ") + ".")
	}
	for _, module := range peerModules {
		switch there, err := v.Exists("sys/module/" + module); {
		case err != nil:
			return nil
		case there && module == "nv_peer_mem":
			return []doctor.Finding{doctor.Told("module "+module, "The module registers GPU memory, but is deprecated. "+
				"Versions 470 and later of the GPU driver provide nvidia_peermem instead.")}
		case there:
			return nil
		}
	}
	const module = "module " + peerMemory
	kernel := doctor.Attribute(v, dmaBUFReads[1])
	open, serves := dmaBUF(v)
	why := "the GPU driver does not use the open kernel modules, which support DMA-BUF"
	if open {
		why = "the node's kernel (" + kernel + ") is older than " + sinceDMABUF +
			", which the open GPU driver needs for DMA-BUF"
	}
	switch {
	case serves, !slices.ContainsFunc(hcas, func(h hca.HCA) bool { return !reachesGPUs(v, h) }):
		return nil
	case open && strings.Contains(kernel, ".el"):
		return []doctor.Finding{doctor.Unsure(module, "The module is not loaded. It is unknown whether kernel "+
			kernel+" supports DMA-BUF for RDMA, which Linux "+sinceDMABUF+" introduced.")}
	case !slices.ContainsFunc(hcas, func(h hca.HCA) bool { return h.Purpose() != hca.PurposeEFA }):
		return []doctor.Finding{doctor.Fault("module efa_nv_peermem", "The module is not loaded, and "+why+".",
			"Install AWS's EFA driver with the efa_nv_peermem module. Then run: "+loadCommand("efa_nv_peermem")+". "+
				"Alternatively, install the GPU driver's open kernel modules on Linux "+sinceDMABUF+" or later.")}
	}
	text := "The module is not loaded, and " + why + "."
	if there, _ := v.Exists(ofed); !there {
		text += " If modprobe reports \"Invalid argument\", install DOCA-OFED and then reinstall the GPU driver, or use " +
			"the GPU driver's open kernel modules. The error means that the loaded ib_core, like the in-tree ib_core of most " +
			"kernels, does not support peer memory."
	}
	return []doctor.Finding{doctor.Fault(module, text, loadCommand(peerMemory)).Command()}
}

// reachesGPUs reports whether AWS's EFA driver can access GPU memory without another module. The driver names its
// method in p2p. Older versions write 1 to gdr.
func reachesGPUs(v *doctor.View, h hca.HCA) bool {
	return doctor.Attribute(v, pciDevices+h.PCI+"/p2p") != "" || doctor.Attribute(v, pciDevices+h.PCI+"/gdr") == "1"
}

// translating finds GPUs and HCAs whose DMA addresses the IOMMU translates. It skips devices below Grace CPUs, whose
// design requires the translation.
func translating(v *doctor.View, gpus []string, hcas []hca.HCA) []doctor.Finding {
	addresses := slices.Clone(gpus)
	for _, h := range hcas {
		addresses = append(addresses, h.PCI)
	}
	var found []string
	for _, address := range addresses {
		mode := doctor.Attribute(v, pciDevices+address+"/iommu_group/type")
		if strings.HasPrefix(mode, "DMA") && !belowGrace(v, address) {
			found = append(found, address)
		}
	}
	if found == nil {
		return nil
	}
	return []doctor.Finding{doctor.Fault("", fmt.Sprintf("The IOMMU translates DMA addresses for %s.",
		strings.Join(found, ", ")), "Add iommu=pt (on Arm: iommu.passthrough=1) to the kernel's command line, and then "+
		"drain and restart the node. With this setting, virtual machines keep the devices that are assigned to them.")}
}

// belowGrace reports whether a device is below a root port of NVIDIA's Grace CPU.
func belowGrace(v *doctor.View, address string) bool {
	above := bridges(v, address)
	return len(above) > 0 && doctor.Attribute(v, pciDevices+above[0]+"/vendor") == vendorNVIDIA
}

// Access Control Services (ACS), a PCI Express capability.
const (
	FirstExtended = 0x100
	CapabilityACS = 0x0d
	controlACS    = 6                  // the offset of the control register
	Redirects     = 1<<2 | 1<<3 | 1<<5 // request, completion, egress control
)

// redirected finds bridges that redirect transfers between a GPU and an HCA below the same switch.
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
			if common > 0 { // otherwise, transfers between the two devices pass the CPU anyway
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
			return []doctor.Finding{doctor.Unsure("", "Only root can read the configuration of PCI bridges.")}
		case found && control&Redirects != 0:
			redirecting = append(redirecting, bridge)
		}
	}
	if len(redirecting) == 0 {
		return nil
	}
	text := fmt.Sprintf("ACS on PCI bridge %s redirects transfers to the CPU.", strings.Join(redirecting, ", "))
	if belowGrace(v, hcas[0].PCI) {
		return []doctor.Finding{doctor.Unsure("", text+" GB200 and GB300 systems need some of these "+
			"redirects. To find the necessary redirects, run: rdma_topo check")}
	}
	var write []string
	for _, bridge := range redirecting {
		write = append(write, fmt.Sprintf("setpci -s %s ECAP_ACS+0x6.w=0:%x", bridge, Redirects))
	}
	return []doctor.Finding{doctor.Fault("", text, "To list the devices that virtual machines use, run \"ls "+
		"/sys/bus/pci/drivers/vfio-pci\". If a virtual machine uses a device below these bridges, leave the bridges "+
		"unchanged, because ACS isolates the devices. If no virtual machine uses such a device, clear the three redirect "+
		"bits after each boot: "+strings.Join(write, " && "))}
}

// acs returns the ACS control register from a PCI configuration space.
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
