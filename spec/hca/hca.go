// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
)

// Kind is the kernel's RDMA interface that a character device provides.
type Kind string

const (
	// KindVerbs is the device that RDMA programs open. Verbs devices are intended for unprivileged processes.
	KindVerbs Kind = "uverbs"
	// KindUMAD is the device that sends raw management packets to the fabric. Each port has its own umad device.
	KindUMAD Kind = "umad"
	// KindISSM is the device that marks its port as a subnet manager while a program has the device open. Each port has
	// its own issm device.
	KindISSM Kind = "issm"
	// KindRDMACM is the device of the connection manager. A node has only one rdma_cm device, which is intended for
	// unprivileged processes.
	KindRDMACM Kind = "rdma_cm"
	// KindHFI1 is the device that Omni-Path programs (PSM2, OPX) open instead of a verbs device, such as /dev/hfi1_0.
	// hfi1 devices are intended for unprivileged processes.
	KindHFI1 Kind = "hfi1"
)

// Verbs reports whether RDMA programs open devices of this kind. A container with such a device uses RDMA. The result
// is also true for Omni-Path's hfi1.
func (k Kind) Verbs() bool { return k == KindVerbs || k == KindHFI1 }

// StateActive is the State of a port that can carry traffic.
const StateActive = "ACTIVE"

// Number is the device number of a character device.
type Number struct {
	// Major is the device's major number.
	Major uint32 `json:"major"`
	// Minor is the device's minor number.
	Minor uint32 `json:"minor"`
}

// String returns the number in the form that sysfs uses, such as "231:192".
func (n Number) String() string {
	text := strconv.AppendUint(make([]byte, 0, 21), uint64(n.Major), 10)
	return string(strconv.AppendUint(append(text, ':'), uint64(n.Minor), 10))
}

// Mode contains permission bits. In JSON, a Mode is an octal string such as "0666".
type Mode os.FileMode

// MarshalText implements encoding.TextMarshaler. MarshalText never returns an error.
func (m Mode) MarshalText() ([]byte, error) {
	return fmt.Appendf(nil, "%04o", os.FileMode(m).Perm()), nil
}

// UnmarshalText implements encoding.TextUnmarshaler. UnmarshalText returns an error if the text is not an octal number
// from 0 to 0777.
func (m *Mode) UnmarshalText(text []byte) error {
	mode, err := strconv.ParseUint(string(text), 8, 9)
	if err != nil {
		return fmt.Errorf("mode %q is not an octal number from 0 to 0777, such as \"0666\"", text)
	}
	*m = Mode(mode)
	return nil
}

// Device is one character device of an HCA, or the node's rdma_cm.
type Device struct {
	// Kind is the kernel's RDMA interface that the device provides.
	Kind Kind `json:"kind"`
	// Path is the device's path on the node, such as /dev/infiniband/uverbs0. The path does not include the root.
	Path string `json:"path"`
	// Number is the device number from sysfs.
	Number
	// Mode contains the permission bits of the device node. If the device node is not usable, Mode, UID, and GID are the
	// kernel's defaults for the device's kind.
	Mode Mode `json:"mode"`
	// UID is the ID of the device node's owner.
	UID uint32 `json:"uid"`
	// GID is the ID of the device node's group.
	GID uint32 `json:"gid"`
	// HCA is the name of the HCA; "" for rdma_cm.
	HCA string `json:"hca,omitempty"`
	// Port is the port number of a umad or issm device; 0 for other kinds.
	Port int `json:"port,omitempty"`
	// Place is the target of the link for the device number in /sys/dev/char. The target is below the directory that
	// HCA.Bus returns for the device's HCA.
	Place string `json:"-"`
	// Problem is the reason why the device cannot be used; "" if the device can be used.
	Problem string `json:"problem,omitempty"`
	// Missing is true if the only problem is that no file exists at Path, for example in a copy of a node, or in a
	// container without the host's /dev. If Missing is true, the device number is still correct.
	Missing bool `json:"missing,omitempty"`
}

// Sound reports whether the device node at Path is the device that sysfs lists.
func (d Device) Sound() bool { return d.Problem == "" }

// String returns the path and the number for messages: "/dev/infiniband/uverbs0 (c 231:192)".
func (d Device) String() string { return fmt.Sprintf("%s (c %s)", d.Path, d.Number) }

// Port is one port of an HCA. If a text value could not be read, it is "".
type Port struct {
	// Number is the port number. Port numbers start at 1, as in sysfs and in RDMA tools.
	Number int `json:"number"`
	// State is the logical state: ACTIVE, DOWN, INIT, ARMED, or another state of the kernel.
	State string `json:"state"`
	// PhysState is the physical state: LinkUp, Polling, Disabled, or another state of the kernel.
	PhysState string `json:"physState"`
	// LinkLayer is InfiniBand or Ethernet; Unknown for EFA.
	LinkLayer string `json:"linkLayer"`
	// Rate is the port's data rate as sysfs shows it, such as "100 Gb/sec (4X EDR)".
	Rate string `json:"rate"`
	// Netdevs are the names of the network interfaces below the HCA's device, and of the interfaces that are stacked on
	// them in this network namespace. The names are in natural order.
	Netdevs []string `json:"netdevs"`
	// RawPackets is true if the port's link layer is Ethernet and the port's GID table has no entries. RoCE cannot work
	// without entries in the GID table.
	RawPackets bool `json:"rawPackets,omitempty"`

	// Only ScanDetails sets the following fields.

	// LID is the port's local identifier (LID). LID is omitted if the port has no local identifier.
	LID uint32 `json:"lid,omitempty"`
	// SMLID is the LID of the subnet manager. SMLID is omitted if the port has no subnet manager.
	SMLID uint32 `json:"smLID,omitempty"`
	// SubnetPrefix is the subnet prefix of an InfiniBand port, such as "fe80:0000:0000:0000".
	SubnetPrefix string `json:"subnetPrefix,omitempty"`
	// GIDs are the nonempty entries in the port's GID table.
	GIDs []GID `json:"gids,omitempty"`
}

// GID is an entry in a port's GID table.
type GID struct {
	// Index is the entry's index in the table.
	Index int `json:"index"`
	// GID is the GID as sysfs shows it: eight groups of four hexadecimal digits.
	GID string `json:"gid"`
	// Type is "RoCE v2", or "IB/RoCE v1" for InfiniBand and the older version of RoCE.
	Type string `json:"type,omitempty"`
}

// Active reports whether the port's State is ACTIVE.
func (p Port) Active() bool { return p.State == StateActive }

// Function is the kind of PCI function that provides an HCA.
type Function string

// The kinds of functions.
const (
	FunctionPhysical Function = "physical" // also for software HCAs and for HCAs on other buses
	FunctionVirtual  Function = "virtual"  // an SR-IOV function: its PCI device has a physfn link
	FunctionScalable Function = "scalable" // mlx5_core.sf.N on the auxiliary bus, without a physfn link
)

// HCA is one RDMA device of the node.
type HCA struct {
	// Name is the HCA's name in /sys/class/infiniband.
	Name string `json:"name"`
	// Place is the target of the HCA's link in /sys/class/infiniband. If two HCAs have different places, they are
	// different HCAs, even if they have the same name. Place is "" if the link does not exist.
	Place string `json:"-"`
	// NodeType is the kernel's node type, such as CA, RNIC, or usNIC; "unspecified" for EFA and Gaudi.
	NodeType string `json:"nodeType"`
	// PCI is the PCI address, such as "0000:5e:00.0"; "" for software HCAs and for HCAs on other buses.
	PCI string `json:"pci"`
	// Function is virtual or scalable if sysfs shows that the HCA belongs to a physical function. Otherwise, Function is
	// physical.
	Function Function `json:"function"`
	// Parent is the PCI address of the physical function to which a virtual or scalable function belongs.
	Parent string `json:"parent,omitempty"`
	// NUMANode is the number of the HCA's NUMA node; -1 if the number is unknown.
	NUMANode int `json:"numaNode"`
	// NodeGUID is the node GUID as sysfs shows it, such as "b859:9f03:00a9:5bd0".
	NodeGUID string `json:"nodeGUID"`
	// Firmware is the firmware version.
	Firmware string `json:"firmware"`
	// Driver is the name of the PCI or auxiliary device's driver; "" for software HCAs.
	Driver string `json:"driver,omitempty"`
	// ABIVersion is the version of the driver's verbs ABI. Only ScanDetails sets ABIVersion.
	ABIVersion int `json:"abiVersion,omitempty"`
	// Ports are the HCA's ports, sorted by number.
	Ports []Port `json:"ports"`
	// Devices are the HCA's character devices, sorted by kind (uverbs, hfi1, umad, issm) and then by index.
	Devices []Device `json:"devices"`
	// Unlisted contains the device kinds for which Devices might be incomplete: these kinds were not requested, or their
	// devices could not be listed.
	Unlisted []Kind `json:"unlisted,omitempty"`
	// Manages is the hardware that a management HCA manages, such as "NVSwitches" or "the planes of mlx5_0"; "" for other
	// HCAs. Containers are not allowed to use management HCAs.
	Manages string `json:"manages,omitempty"`
	// Unread is the reason why no attempt to read the HCA's attributes has succeeded. Nothing is known about such an HCA.
	// Normally, Unread is "".
	Unread string `json:"unread,omitempty"`
	// Problems are lines for administrators. Each line describes a part of the HCA that could not be read or will not
	// work, and contains the fix if the fix is known.
	Problems []string `json:"problems,omitempty"`
}

// Bus returns the sysfs directory of the PCI or auxiliary device that provides the HCA. Like Place, the result is
// relative to /sys/class/infiniband. The HCA's character devices are also below this directory. All software HCAs have
// the same directory.
func (h HCA) Bus() string { return path.Dir(path.Dir(h.Place)) }

// Active reports whether at least one port is ACTIVE.
func (h HCA) Active() bool { return slices.ContainsFunc(h.Ports, Port.Active) }

// Verbs returns the HCA's verbs device, even if the device cannot be used: see Device.Problem. Verbs returns false if
// the HCA has no verbs device, for example because the module ib_uverbs is not loaded.
func (h HCA) Verbs() (Device, bool) {
	for _, d := range h.Devices {
		if d.Kind == KindVerbs {
			return d, true
		}
	}
	return Device{}, false
}

// Parts selects the parts of an HCA to read in addition to the state of the HCA's ports.
type Parts struct {
	Devices    bool // verbs devices, and the attributes that determine whether a container can use the HCA
	Management bool // umad and issm devices, if Devices is also true
	Netdevs    bool // netdevs of the ports
	Rest       bool // all other attributes, for display
	Details    bool // the additional attributes of ScanDetails
}

// Inventory contains a node's HCAs, and the devices and problems that belong to no HCA in the list.
type Inventory struct {
	// HCAs are the node's HCAs in natural order: mlx5_2 comes before mlx5_10.
	HCAs []HCA `json:"hcas"`
	// Elsewhere contains the devices of HCAs that were moved to other network namespaces and are therefore not in HCAs.
	Elsewhere []Device `json:"elsewhere,omitempty"`
	// RDMACM is the connection manager's device; null if the module rdma_ucm is not loaded.
	RDMACM *Device `json:"rdmaCM" jsonschema:"nullable"`
	// NetNSExclusive is true if each HCA can be used only in the network namespace to which it belongs. NetNSExclusive is
	// false if the parameter netns_mode of the module ib_core has its default value.
	NetNSExclusive bool `json:"netnsExclusive"`
	// Problems are lines for administrators. Each line describes a problem that does not belong to a listed HCA.
	Problems []string `json:"problems,omitempty"`
}

// Find returns the HCA with this name. Find returns false if no HCA in the inventory has the name.
func (n *Inventory) Find(name string) (HCA, bool) {
	for _, h := range n.HCAs {
		if h.Name == name {
			return h, true
		}
	}
	return HCA{}, false
}

// Identifies reports whether an ID is the PCI address or the name of an HCA, or the name of an HCA's verbs device.
// Device plugins use such IDs for the devices that they offer.
func (n *Inventory) Identifies(id string) bool {
	return slices.ContainsFunc(n.HCAs, func(h HCA) bool {
		verbs, found := h.Verbs()
		return id != "" && (id == h.PCI || id == h.Name || found && id == path.Base(verbs.Path))
	})
}

// Lookup returns the device with this number. The device can have any kind, and can be unusable. Lookup returns false
// if the number does not belong to an RDMA device of this node.
func (n *Inventory) Lookup(num Number) (Device, bool) {
	for i := range n.HCAs {
		for j := range n.HCAs[i].Devices {
			if d := &n.HCAs[i].Devices[j]; d.Number == num {
				return *d, true
			}
		}
	}
	if n.RDMACM != nil && n.RDMACM.Number == num {
		return *n.RDMACM, true
	}
	if i := slices.IndexFunc(n.Elsewhere, func(d Device) bool { return d.Number == num }); i >= 0 {
		return n.Elsewhere[i], true
	}
	return Device{}, false
}
