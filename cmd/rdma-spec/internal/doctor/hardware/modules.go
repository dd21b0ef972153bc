// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

const auxDevices = "sys/bus/auxiliary/devices/"

// moduleChecks returns the checks of the kernel's RDMA modules.
func moduleChecks() []doctor.Check {
	return []doctor.Check{{
		ID: "hca-driver", Family: "modules", Title: "Each RDMA card is bound to its driver.",
		Impact: "An RDMA card without its driver does not appear as an HCA.",
		Reads: []string{
			auxDevices + "*", auxDevices + "*/driver", "sys/module/*",
			pciDevices + "*", pciDevices + "*/driver", pciDevices + "*/physfn", pciDevices + "*/vendor", pciDevices +
				"*/device", pciDevices + "*/class",
		},
		Look: unboundCards,
	}, {
		ID: "uverbs-module", Family: "modules", Title: "The ib_uverbs module is loaded.",
		Impact: "Without ib_uverbs, no program can open an HCA.",
		Reads:  []string{"sys/class/infiniband_verbs"}, Look: noVerbs,
	}, {
		ID: "rdma-cm-module", Family: "modules", Title: "The rdma_ucm module is loaded.",
		Impact: "Without rdma_ucm, /dev/infiniband/rdma_cm does not exist. Programs that use RDMA_CM need this device, " +
			"and so do device plugins.",
		Needs: []string{"uverbs-module"}, Look: noConnectionManager,
	}, {
		ID: "modules-of-one-build", Family: "modules", Title: "All RDMA modules are from the same build.",
		Impact: "Modules from OFED or DOCA do not work with the kernel's own modules.",
		Reads:  []string{"sys/module/*/holders/*"}, Look: mixedModules,
	}}
}

func noVerbs(v *doctor.View) []doctor.Finding {
	if _, nothing := inventory(v); nothing != nil {
		return nothing
	}
	if there, err := v.Exists("sys/class/infiniband_verbs"); there || err != nil {
		return nil
	}
	return []doctor.Finding{doctor.Fault("", "The ib_uverbs module is not loaded.", loadCommand("ib_uverbs")).Command()}
}

func noConnectionManager(v *doctor.View) []doctor.Finding {
	node, nothing := inventory(v)
	if nothing != nil {
		return nothing
	}
	uses := func(h hca.HCA) bool { return h.Unread == "" && h.UsesRDMACM() }
	switch {
	case node.RDMACM != nil || !slices.ContainsFunc(node.HCAs, uses):
		return nil
	case !v.UsesRDMA(0):
		return doctor.Inapplicable("The rdma_ucm module is not loaded, but no program on this node is known to use RDMA.")
	}
	return []doctor.Finding{doctor.Fault("", "The rdma_ucm module is not loaded.", loadCommand("rdma_ucm")).Command()}
}

// loadCommand returns the command that loads a module now and at each boot.
func loadCommand(module string) string {
	return fmt.Sprintf("modprobe %s && echo %s > /etc/modules-load.d/%s.conf", module, module, module)
}

// auxFunction matches an auxiliary device that represents a card's RDMA function: mlx5_core.rdma.0, ice.iwarp.1,
// idpf.8086.rdma.core.0.
var auxFunction = regexp.MustCompile(`^([a-z0-9_]+)(?:\.8086)?\.(rdma|roce|iwarp|ib)(?:\.core)?\.[0-9]+$`)

// auxModules are the modules that drive the RDMA functions of another module's cards.
var auxModules = map[string]string{
	"mlx5_core": "mlx5_ib", "mlx4_core": "mlx4_ib", "ice": "irdma", "i40e": "irdma", "idpf": "irdma",
	"bnxt_en": "bnxt_re", "bng_en": "bng_re", "mana": "mana_ib", "ionic": "ionic_rdma",
}

// cardModules are the modules of cards that support only RDMA, or are usually bought for RDMA, by vendor and by the
// beginning of the device ID.
var cardModules = []struct{ vendor, device, module string }{
	{"0x15b3", "0x100", "mlx4_core"}, {"0x15b3", "0x10", "mlx5_core"}, {"0x15b3", "0xa2", "mlx5_core"},
	{"0x1d0f", "0xefa", "efa"}, {"0x8086", "0x24f0", "hfi1"}, {"0x8086", "0x24f1", "hfi1"},
}

// unboundCards finds cards and RDMA functions without a driver.
func unboundCards(v *doctor.View) []doctor.Finding {
	missing := map[string][]string{}
	needed := map[string]bool{} // by module
	lacks := func(module, device, card string) {
		missing[module] = append(missing[module], device)
		needed[module] = needed[module] || module == "efa" || // Ethernet cards are often not used for RDMA
			!strings.HasPrefix(doctor.Attribute(v, card+"/class"), "0x0200")
	}
	functions, err := v.Glob(auxDevices + "*")
	if err != nil {
		return []doctor.Finding{doctor.Unsure("", fmt.Sprintf("The devices cannot be listed: %v.", err))}
	}
	for _, at := range functions {
		form := auxFunction.FindStringSubmatch(path.Base(at))
		if form == nil || auxModules[form[1]] == "" {
			continue
		}
		if bound, err := v.Exists(at + "/driver"); !bound && err == nil {
			to, _ := v.Readlink(at)
			lacks(auxModules[form[1]], path.Base(at), pciDevices+path.Base(path.Dir(to)))
		}
	}
	cards, err := v.Glob(pciDevices + "*")
	if err != nil {
		return []doctor.Finding{doctor.Unsure("", fmt.Sprintf("The PCI devices cannot be listed: %v.", err))}
	}
	for _, at := range cards {
		if module := cardModule(v, at); module != "" {
			lacks(module, path.Base(at), at)
		}
	}
	var found []doctor.Finding
	for _, module := range slices.Sorted(maps.Keys(missing)) {
		devices := strings.Join(missing[module], ", ")
		loaded, _ := v.Exists("sys/module/" + module)
		switch {
		case !needed[module] && (!strings.HasPrefix(module, "mlx") || !v.UsesRDMA(0)):
			found = append(found, doctor.Unsure("module "+module, "No driver is bound to "+devices+". To use this "+
				"hardware for RDMA, run: modprobe "+module))
		case loaded:
			found = append(found, doctor.Fault("module "+module, "The module is loaded, but not bound to "+devices+".",
				"To find the reason in the kernel log, run: dmesg | grep -e "+module+" -e "+missing[module][0]))
		default:
			found = append(found, doctor.Fault("module "+module, "The module is required for "+devices+", but is not loaded.",
				loadCommand(module)).Command())
		}
	}
	return found
}

// cardModule returns the module that a PCI device without a driver needs, "" if the device is not an RDMA card or has a
// driver. A virtual function can be left without a driver on purpose.
func cardModule(v *doctor.View, at string) string {
	vendor := doctor.Attribute(v, at+"/vendor")
	device := doctor.Attribute(v, at+"/device")
	for _, c := range cardModules {
		if c.vendor != vendor || !strings.HasPrefix(device, c.device) {
			continue
		}
		if !strings.HasPrefix(doctor.Attribute(v, at+"/class"), "0x02") { // not a network device
			return ""
		}
		bound, err := v.Exists(at + "/driver")
		virtual, errVirtual := v.Exists(at + "/physfn")
		if !bound && !virtual && err == nil && errVirtual == nil {
			return c.module
		}
	}
	return ""
}

// mixedModules finds in-tree modules that are loaded next to modules of OFED or DOCA, which all hold mlx_compat.
// Unloading the modules would remove the cards' network interfaces, and perhaps the node's connection to the cluster.
func mixedModules(v *doctor.View) []doctor.Finding {
	holders := func(module string) []string {
		names, _ := v.Glob("sys/module/" + module + "/holders/*")
		for i := range names {
			names[i] = path.Base(names[i])
		}
		return names
	}
	compat := holders("mlx_compat")
	own := slices.DeleteFunc([]string{"ib_core", "mlx5_core", "mlx5_ib", "ib_uverbs"},
		func(module string) bool { return len(holders(module)) == 0 || slices.Contains(compat, module) })
	if len(compat) == 0 || len(own) == 0 {
		return nil
	}
	return []doctor.Finding{doctor.Fault("", fmt.Sprintf("Modules from different builds are loaded: %s from the "+
		"kernel, and %s from OFED or DOCA.",
		strings.Join(own, ", "), strings.Join(compat, ", ")), "Drain and restart the node. If the kernel still loads "+
		"its own modules after the restart, rebuild the initramfs, and restart the node again.")}
}
