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

// nodeTypeUnspecified is the node type in sysfs of an HCA whose transport is unknown to the kernel.
const nodeTypeUnspecified = "unspecified"

const zeroGUID = "0000:0000:0000:0000"

// Purpose is the intended use of an HCA.
type Purpose string

// The purposes of HCAs.
const (
	PurposeRDMA Purpose = "RDMA"
	// PurposeEFA is RDMA with Amazon's Elastic Fabric Adapter, without GUIDs, management packets, and RDMA_CM.
	PurposeEFA Purpose = "EFA"
	// PurposeRawPackets is raw Ethernet through the verbs interface, for programs such as DPDK.
	PurposeRawPackets Purpose = "raw packets"
	// PurposeManagement is the management of NVSwitches, or of another HCA's planes: see HCA.Manages.
	PurposeManagement Purpose = "management"
)

// Purpose determines an HCA's purpose from its driver and attributes. The node type is not sufficient, because it is
// "unspecified" for both EFA and the network of Gaudi accelerators.
func (h HCA) Purpose() Purpose {
	switch {
	case h.Manages != "":
		return PurposeManagement
	case h.Driver == "efa", h.Driver == "" && h.NodeType == nodeTypeUnspecified && h.NodeGUID == zeroGUID:
		return PurposeEFA
	case h.Driver == "mana" && h.NodeGUID == zeroGUID: // mana_0 has a GUID, but manae_0 does not
		return PurposeRawPackets
	// This case covers mlx5 with RoCE turned off, and physical functions of mlx5 in switchdev mode. iWARP is excluded,
	// because it needs no GIDs.
	case h.NodeType == "CA" && len(h.Ports) > 0 &&
		!slices.ContainsFunc(h.Ports, func(p Port) bool { return !p.RawPackets }):
		return PurposeRawPackets
	}
	return PurposeRDMA
}

// ForPrograms reports whether programs in containers can use the HCA for RDMA.
func (h HCA) ForPrograms() bool { return h.Purpose() == PurposeRDMA || h.Purpose() == PurposeEFA }

// UsesRDMACM reports whether programs can use RDMA_CM with the HCA. RDMA_CM supports only the kernel's own transports,
// and identifies the HCA by its node GUID.
func (h HCA) UsesRDMACM() bool {
	return h.Purpose() == PurposeRDMA && h.NodeType != nodeTypeUnspecified
}

// nameSubDevices sets Manages for HCAs that are parts of other HCAs. ConnectX-8 has an HCA for the management of its
// planes (RDMA_DEVICE_TYPE_SMI in the kernel). The management HCA is on the main HCA's PCI function, and its ports are
// the main HCA's planes. Programs cannot open the management HCA, because it has no verbs device. If neither HCA has a
// verbs device, the HCA whose name sorts first is the main HCA.
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

// Tools contains commands that show the state of an HCA and one of its ports, or change the HCA's firmware. The
// commands are the vendor's commands if they are known, and otherwise standard Linux commands. An unknown command is
// "".
type Tools struct {
	Link, Errors, Module string // show the port's state, error counters, and cable or module
	Heat                 string // show the temperature
	Firmware, Reset      string // install firmware from FILE, and restart the card with the new firmware
}

// tools contains the vendors' commands by driver, with placeholders for the HCA. Broadcom's niccli needs the card's
// number from niccli --list, which is unknown here. Therefore, the Broadcom commands are standard Linux commands, which
// need only the PCI address or the netdev. The commands for Pensando are from
// https://docs.amd.com/r/en-US/ug1854-vulcano-800-custom-ai-nic-ops-guide.
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

// sameTools maps drivers to other drivers whose cards have the same commands.
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
	if driver == "" && strings.HasPrefix(h.Name, "mlx5_") { // a copy of a node can lack the driver
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

// acceleratorDrivers are the drivers of GPUs and other accelerators whose memory HCAs can access.
var acceleratorDrivers = []string{"nvidia", "amdgpu", "habanalabs"}

// Accelerator reports whether a PCI device is a GPU (class 0x03) or another accelerator (class 0x12, for example MI300X
// and Gaudi) that uses one of the acceleratorDrivers. A device that is passed to a virtual machine is not an
// Accelerator. class has the form of the sysfs attribute, such as "0x030200".
func Accelerator(class, driver string) bool {
	accelerates := strings.HasPrefix(class, "0x03") || strings.HasPrefix(class, "0x12")
	return accelerates && slices.Contains(acceleratorDrivers, driver)
}

// OtherAccelerator reports whether a PCI device is a GPU without display output (a 3D controller or another display
// controller), or another accelerator, whose driver is not one of the acceleratorDrivers. A device that is passed to a
// virtual machine is not an OtherAccelerator. class has the form of the sysfs attribute, such as "0x030200".
func OtherAccelerator(class, driver string) bool {
	computes := strings.HasPrefix(class, "0x0302") || strings.HasPrefix(class, "0x0380") ||
		strings.HasPrefix(class, "0x12")
	return computes && !slices.Contains(acceleratorDrivers, driver) && !strings.HasPrefix(driver, "vfio") &&
		!strings.HasPrefix(driver, "virtio")
}
