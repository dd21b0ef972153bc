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
	// KindVerbs is the device that RDMA programs open. It is intended for unprivileged processes.
	KindVerbs Kind = "uverbs"
	// KindUMAD sends raw management packets to the fabric. There is one for each port.
	KindUMAD Kind = "umad"
	// KindISSM marks its port as a subnet manager while it is open. There is one for each port.
	KindISSM Kind = "issm"
	// KindRDMACM is the connection manager. There is one for the whole node. It is intended for unprivileged processes.
	KindRDMACM Kind = "rdma_cm"
	// KindHFI1 is the device that Omni-Path programs (PSM2, OPX) open instead of a verbs device: /dev/hfi1_0. It is
	// intended for unprivileged processes.
	KindHFI1 Kind = "hfi1"
)

// Verbs reports whether RDMA programs open devices of this kind, so that a container with one uses RDMA. It is true for
// Omni-Path's hfi1, too.
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

// String returns the number as sysfs writes it, "231:192".
func (n Number) String() string {
	text := strconv.AppendUint(make([]byte, 0, 21), uint64(n.Major), 10)
	return string(strconv.AppendUint(append(text, ':'), uint64(n.Minor), 10))
}

// Mode contains permission bits. In JSON, it is an octal string such as "0666".
type Mode os.FileMode

// MarshalText implements encoding.TextMarshaler.
func (m Mode) MarshalText() ([]byte, error) {
	return fmt.Appendf(nil, "%04o", os.FileMode(m).Perm()), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *Mode) UnmarshalText(text []byte) error {
	mode, err := strconv.ParseUint(string(text), 8, 9)
	if err != nil {
		return fmt.Errorf("mode %q is not an octal number of permission bits, such as \"0666\"", text)
	}
	*m = Mode(mode)
	return nil
}

// Device is one character device of an HCA, or the node's rdma_cm.
type Device struct {
	// Kind is what the device is for.
	Kind Kind `json:"kind"`
	// Path is the path on the node, such as /dev/infiniband/uverbs0, without the root.
	Path string `json:"path"`
	// Number is the device number from sysfs.
	Number
	// Mode contains the device node's permissions. If the node is not usable, they are the kernel's defaults for this
	// kind, as are UID and GID.
	Mode Mode `json:"mode"`
	// UID is the user ID of the device node's owner.
	UID uint32 `json:"uid"`
	// GID is the group ID of the device node's group.
	GID uint32 `json:"gid"`
	// HCA is the name of the HCA; "" for rdma_cm.
	HCA string `json:"hca,omitempty"`
	// Port is the port of a umad or issm; 0 for other kinds.
	Port int `json:"port,omitempty"`
	// Place is the target in sysfs of the link for its number. It is below the directory that HCA.Bus returns for its
	// HCA.
	Place string `json:"-"`
	// Problem says why the device cannot be used; "" if it can.
	Problem string `json:"problem,omitempty"`
	// Missing is true if the only problem is that there is no node at the path: in a copy, or in a container without the
	// host's /dev. The number is still correct.
	Missing bool `json:"missing,omitempty"`
}

// Sound reports whether the node at Path is the device that sysfs lists.
func (d Device) Sound() bool { return d.Problem == "" }

// String returns the path and number for messages: "/dev/infiniband/uverbs0 (c 231:192)".
func (d Device) String() string { return fmt.Sprintf("%s (c %s)", d.Path, d.Number) }

// Port is one port of an HCA. A value that could not be read is "".
type Port struct {
	// Number counts from 1, as in sysfs and in RDMA tools.
	Number int `json:"number"`
	// State is the logical state: ACTIVE, DOWN, INIT, ARMED, …
	State string `json:"state"`
	// PhysState is the physical state: LinkUp, Polling, Disabled, …
	PhysState string `json:"physState"`
	// LinkLayer is InfiniBand or Ethernet; Unknown for EFA.
	LinkLayer string `json:"linkLayer"`
	// Rate is the kernel's text: "100 Gb/sec (4X EDR)".
	Rate string `json:"rate"`
	// Netdevs are the network interfaces below the HCA's device, and those stacked on them in this network namespace, in
	// natural order.
	Netdevs []string `json:"netdevs"`
	// RawPackets is true for an Ethernet port whose GID table has no entries, which RoCE needs.
	RawPackets bool `json:"rawPackets,omitempty"`

	// Only ScanDetails sets the following fields.

	// LID is the port's LID. It is omitted if there is none.
	LID uint32 `json:"lid,omitempty"`
	// SMLID is the LID of the subnet manager. It is omitted if there is none.
	SMLID uint32 `json:"smLID,omitempty"`
	// SubnetPrefix is the subnet prefix of an InfiniBand port: "fe80:0000:0000:0000".
	SubnetPrefix string `json:"subnetPrefix,omitempty"`
	// GIDs are the entries in the port's GID table.
	GIDs []GID `json:"gids,omitempty"`
}

// GID is an entry in a port's GID table.
type GID struct {
	// Index is the entry's index in the table.
	Index int `json:"index"`
	// GID is the text in sysfs: eight groups of four digits.
	GID string `json:"gid"`
	// Type is "RoCE v2", or "IB/RoCE v1" for the older RoCE and InfiniBand.
	Type string `json:"type,omitempty"`
}

// Active reports whether the port's State is ACTIVE.
func (p Port) Active() bool { return p.State == StateActive }

// Function is the kind of PCI function of an HCA.
type Function string

// The functions.
const (
	FunctionPhysical Function = "physical" // also for soft HCAs, and HCAs on other buses
	FunctionVirtual  Function = "virtual"  // SR-IOV: its PCI device has a physfn
	FunctionScalable Function = "scalable" // mlx5_core.sf.N on the auxiliary bus, which has no physfn
)

// HCA is one RDMA device of the node.
type HCA struct {
	// Name is the name in /sys/class/infiniband.
	Name string `json:"name"`
	// Place is the target of its link in sysfs. A different place means a different HCA, even with the same name. It is
	// "" if there is no link.
	Place string `json:"-"`
	// NodeType is CA, RNIC, usNIC, …; "unspecified" for EFA and Gaudi.
	NodeType string `json:"nodeType"`
	// PCI is the PCI address: "0000:5e:00.0"; "" for soft HCAs and HCAs on another bus.
	PCI string `json:"pci"`
	// Function is physical unless sysfs shows that the HCA belongs to another one.
	Function Function `json:"function"`
	// Parent is the PCI address of the physical function to which a virtual or scalable function belongs.
	Parent string `json:"parent,omitempty"`
	// NUMANode is -1 if unknown.
	NUMANode int `json:"numaNode"`
	// NodeGUID is the text in sysfs: "b859:9f03:00a9:5bd0".
	NodeGUID string `json:"nodeGUID"`
	// Firmware is the firmware's version.
	Firmware string `json:"firmware"`
	// Driver is the driver of the PCI or auxiliary device; "" for soft HCAs.
	Driver string `json:"driver,omitempty"`
	// ABIVersion is the version of the driver's verbs ABI.
	ABIVersion int `json:"abiVersion,omitempty"`
	// Ports are in the order of their numbers.
	Ports []Port `json:"ports"`
	// Devices are sorted by kind (uverbs, hfi1, umad, issm), then by index.
	Devices []Device `json:"devices"`
	// Unlisted are the kinds of which Devices may be incomplete, because they were not listed, or not completely.
	Unlisted []Kind `json:"unlisted,omitempty"`
	// Manages says what a management HCA manages, which containers are not allowed to use: "NVSwitches", "the planes of
	// mlx5_0"; "" for other HCAs.
	Manages string `json:"manages,omitempty"`
	// Unread says why nothing is known about the HCA: its attributes could never be read. It is normally "".
	Unread string `json:"unread,omitempty"`
	// Problems are lines for administrators that say what could not be read or will not work, and how to fix it if that
	// is known.
	Problems []string `json:"problems,omitempty"`
}

// Bus returns the sysfs directory of the PCI or auxiliary device that provides the HCA, relative to the same directory
// as Place. The HCA's devices are below it, too. All soft HCAs have the same directory.
func (h HCA) Bus() string { return path.Dir(path.Dir(h.Place)) }

// Active reports whether any port is ACTIVE.
func (h HCA) Active() bool { return slices.ContainsFunc(h.Ports, Port.Active) }

// Verbs returns the HCA's verbs device, even if the device cannot be used: see Device.Problem. It returns false if
// there is none, for example because ib_uverbs is not loaded.
func (h HCA) Verbs() (Device, bool) {
	for _, d := range h.Devices {
		if d.Kind == KindVerbs {
			return d, true
		}
	}
	return Device{}, false
}

// Parts are the parts of an HCA that are read in addition to the state of its ports.
type Parts struct {
	Devices    bool // its verbs devices, and the attributes that determine whether a container can use it
	Management bool // its umad and issm devices
	Netdevs    bool // its ports' netdevs
	Rest       bool // all other attributes, for display
	Details    bool // see ScanDetails
}

// Inventory contains a node's HCAs, and the devices and problems that belong to none of them.
type Inventory struct {
	// HCAs are in natural order: mlx5_2 before mlx5_10.
	HCAs []HCA `json:"hcas"`
	// Elsewhere are the devices of HCAs that are not in HCAs, because they were moved to other network namespaces.
	Elsewhere []Device `json:"elsewhere,omitempty"`
	// RDMACM is the connection manager's device; null if the module rdma_ucm is not loaded.
	RDMACM *Device `json:"rdmaCM" jsonschema:"nullable"`
	// NetNSExclusive is true if an HCA can be used only in its own network namespace. It is false with the default value
	// of ib_core's parameter netns_mode.
	NetNSExclusive bool `json:"netnsExclusive"`
	// Problems are the problems that belong to none of the HCAs.
	Problems []string `json:"problems,omitempty"`
}

// Find returns the HCA with this name.
func (n *Inventory) Find(name string) (HCA, bool) {
	for _, h := range n.HCAs {
		if h.Name == name {
			return h, true
		}
	}
	return HCA{}, false
}

// Identifies reports whether an ID is the PCI address or the name of an HCA, or the name of its verbs device. Device
// plugins use such IDs for the devices that they offer.
func (n *Inventory) Identifies(id string) bool {
	return slices.ContainsFunc(n.HCAs, func(h HCA) bool {
		verbs, found := h.Verbs()
		return id != "" && (id == h.PCI || id == h.Name || found && id == path.Base(verbs.Path))
	})
}

// Lookup returns the device with this number. The device can have any kind, and can be unusable. If Lookup returns
// false, the number belongs to no HCA on this node.
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
