// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// nodeTypeUnspecified is the node type in sysfs of what has verbs, and a transport that the kernel does not know.
const nodeTypeUnspecified = "unspecified"

const zeroGUID = "0000:0000:0000:0000"

// Purpose is what an HCA is for.
type Purpose string

// The purposes.
const (
	PurposeRDMA Purpose = "RDMA"
	// PurposeEFA is Amazon's network: RDMA without GUIDs, management packets, and RDMA_CM.
	PurposeEFA Purpose = "EFA"
	// PurposeRawPackets is Ethernet by verbs, as DPDK uses it.
	PurposeRawPackets Purpose = "raw packets"
	// PurposeManagement is that of NVSwitches, or of another HCA's planes: see HCA.Manages.
	PurposeManagement Purpose = "management"
)

// Purpose decides what an HCA is for, by its driver and by what the kernel says of it. The node type does not tell: it
// is unspecified for EFA, and for the network of Gaudi accelerators as well.
func (h HCA) Purpose() Purpose {
	switch {
	case h.Manages != "":
		return PurposeManagement
	case h.Driver == "efa", h.Driver == "" && h.NodeType == nodeTypeUnspecified && h.NodeGUID == zeroGUID:
		return PurposeEFA
	case h.Driver == "mana" && h.NodeGUID == zeroGUID: // mana_0 has a GUID, and manae_0 has none
		return PurposeRawPackets
	// mlx5's with RoCE turned off, and its physical function in switchdev mode. iWARP needs no GIDs.
	case h.NodeType == "CA" && len(h.Ports) > 0 &&
		!slices.ContainsFunc(h.Ports, func(p Port) bool { return !p.RawPackets }):
		return PurposeRawPackets
	}
	return PurposeRDMA
}

// ForPrograms reports whether programs of containers use the HCA for RDMA.
func (h HCA) ForPrograms() bool { return h.Purpose() == PurposeRDMA || h.Purpose() == PurposeEFA }

// UsesRDMACM reports whether programs reach the HCA by RDMA_CM, which knows the kernel's own transports alone, and
// which finds it by its node GUID.
func (h HCA) UsesRDMACM() bool {
	return h.Purpose() == PurposeRDMA && h.NodeType != nodeTypeUnspecified
}

// nameSubDevices finds HCAs that are parts of others: ConnectX-8 has one for the management of its planes
// (RDMA_DEVICE_TYPE_SMI in the kernel). It shares the other one's PCI function, its ports are that one's planes, and no
// program opens it: it has no verbs device. If neither of them has one, the first is taken for the other.
func nameSubDevices(all []HCA) {
	for i := range all {
		h := &all[i]
		_, opens := h.Verbs()
		if opens || slices.Contains(h.Unlisted, KindVerbs) || h.PCI == "" || h.Unread != "" || h.Manages != "" {
			continue
		}
		at := slices.IndexFunc(all, func(other HCA) bool {
			_, whole := other.Verbs()
			return other.PCI == h.PCI && other.Unread == "" && (whole || other.Name < h.Name)
		})
		if at >= 0 {
			h.Manages = "the planes of " + all[at].Name
		}
	}
}

// Tools are commands that show an HCA and its port, and that change its firmware: those of its vendor where they are
// known, else the kernel's. What is not known is "".
type Tools struct {
	Link, Errors, Module string // the state of the port, its counters of errors, and its cable or module
	Heat                 string // the temperature
	Firmware, Reset      string // install a FILE, and make the card run what was installed
}

// tools are the vendors' commands by driver, with words that stand for the HCA. Broadcom's niccli takes the number that
// niccli --list has for a card, which is not known here; the kernel's commands take its address. Those of Pensando are
// in https://docs.amd.com/r/en-US/ug1854-vulcano-800-custom-ai-nic-ops-guide.
var tools = map[string]Tools{
	"mlx5_core": {Link: "mlxlink -d PCI -p PORT", Errors: "mlxlink -d PCI -c", Module: "mlxlink -d PCI -m",
		Heat: "mget_temp -d PCI", Firmware: "mlxfwmanager -d PCI -u -i FILE", Reset: "mlxfwreset -d PCI reset"},
	"mlx4_core": {Firmware: "mstflint -d PCI -i FILE burn"},
	"bnxt_en": {Link: "ethtool NETDEV", Errors: "ethtool -S NETDEV", Module: "ethtool -m NETDEV",
		Firmware: "devlink dev flash pci/PCI file FILE"},
	"ice":  {Link: "ethtool NETDEV", Errors: "ethtool -S NETDEV", Module: "ethtool -m NETDEV", Firmware: "nvmupdate64e"},
	"hfi1": {Link: "opainfo"},
	"ionic": {Link: "nicctl show port", Errors: "ethtool -S NETDEV", Module: "ethtool -m NETDEV",
		Firmware: "nicctl update firmware", Reset: "nicctl reset card"},
}

// sameTools are drivers whose cards the commands of another one's vendor show.
var sameTools = map[string]string{"mlx5_core.sf": "mlx5_core", "bnxt_re": "bnxt_en", "i40e": "ice", "idpf": "ice",
	"irdma": "ice"}

// Tools returns the commands for a port of the HCA.
func (h HCA) Tools(p Port) Tools {
	netdev := "NETDEV"
	shown := fmt.Sprintf("rdma link show %s/%d", h.Name, p.Number)
	if len(p.Netdevs) > 0 {
		netdev = p.Netdevs[0]
		shown = "ip link show " + p.Netdevs[0]
	}
	about := strings.NewReplacer("NETDEV", netdev, "PCI", cmp.Or(h.PCI, h.Parent, h.Name), "PORT", strconv.Itoa(p.Number))
	driver := cmp.Or(sameTools[h.Driver], h.Driver)
	if driver == "" && strings.HasPrefix(h.Name, "mlx5_") { // a copy may lack the driver, whose name the kernel's own has
		driver = "mlx5_core"
	}
	t := tools[driver]
	t.Link = cmp.Or(t.Link, shown)
	t.Errors = cmp.Or(t.Errors, t.Link)
	t.Module = cmp.Or(t.Module, t.Link)
	for _, command := range []*string{&t.Link, &t.Errors, &t.Module, &t.Heat, &t.Firmware, &t.Reset} {
		*command = about.Replace(*command)
	}
	return t
}

// acceleratorDrivers are those of GPUs and other accelerators whose memory HCAs can reach.
var acceleratorDrivers = []string{"nvidia", "amdgpu", "habanalabs"}

// Accelerator reports whether a PCI device is a GPU (class 0x03), or another accelerator (0x12, as MI300X and Gaudi
// are), that the node's own driver uses. One that a virtual machine has is none.
func Accelerator(class, driver string) bool {
	accelerates := strings.HasPrefix(class, "0x03") || strings.HasPrefix(class, "0x12")
	return accelerates && slices.Contains(acceleratorDrivers, driver)
}

// OtherAccelerator reports whether a PCI device is a GPU that shows no picture (3D or other display controller), or
// another accelerator, of a driver whose devices Accelerator does not know. Those of virtual machines are none.
func OtherAccelerator(class, driver string) bool {
	computes := strings.HasPrefix(class, "0x0302") || strings.HasPrefix(class, "0x0380") ||
		strings.HasPrefix(class, "0x12")
	return computes && !slices.Contains(acceleratorDrivers, driver) && !strings.HasPrefix(driver, "vfio") &&
		!strings.HasPrefix(driver, "virtio")
}
