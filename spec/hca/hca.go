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

// Kind is the RDMA interface of the kernel that a character device provides.
type Kind string

const (
	// KindVerbs is what RDMA programs open; meant for unprivileged processes.
	KindVerbs Kind = "uverbs"
	// KindUMAD sends raw management packets into the fabric; one for each port.
	KindUMAD Kind = "umad"
	// KindISSM marks its port as a subnet manager while it is open; one for each port.
	KindISSM Kind = "issm"
	// KindRDMACM is the connection manager, one for the whole node; meant for unprivileged processes.
	KindRDMACM Kind = "rdma_cm"
	// KindHFI1 is what Omni-Path's programs (PSM2, OPX) open in place of verbs, /dev/hfi1_0; meant for unprivileged
	// processes.
	KindHFI1 Kind = "hfi1"
)

// Verbs reports whether RDMA programs open devices of this kind: a container that holds one uses RDMA. Omni-Path's hfi1
// counts.
func (k Kind) Verbs() bool { return k == KindVerbs || k == KindHFI1 }

// StateActive is the State of a port that carries traffic.
const StateActive = "ACTIVE"

// Number is the device number of a character device.
type Number struct {
	Major uint32 `json:"major"`
	Minor uint32 `json:"minor"`
}

// String returns the number as sysfs writes it, "231:192".
func (n Number) String() string {
	text := strconv.AppendUint(make([]byte, 0, 21), uint64(n.Major), 10)
	return string(strconv.AppendUint(append(text, ':'), uint64(n.Minor), 10))
}

// Mode holds permission bits. JSON has it as people read modes, "0666".
type Mode os.FileMode

// MarshalText implements encoding.TextMarshaler.
func (m Mode) MarshalText() ([]byte, error) {
	return fmt.Appendf(nil, "%04o", os.FileMode(m).Perm()), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *Mode) UnmarshalText(text []byte) error {
	mode, err := strconv.ParseUint(string(text), 8, 9)
	if err != nil {
		return fmt.Errorf("mode %q is not octal permission bits such as \"0666\"", text)
	}
	*m = Mode(mode)
	return nil
}

// Device is one character device of an HCA, or the node's rdma_cm.
type Device struct {
	Kind Kind `json:"kind"`
	// Path is where the node has it, such as /dev/infiniband/uverbs0: never with the root in front.
	Path string `json:"path"`
	// Number is what sysfs says.
	Number
	// Mode is the one of the node; where there is no sound node, the one that the kernel gives to this kind. UID and GID
	// likewise.
	Mode Mode   `json:"mode"`
	UID  uint32 `json:"uid"`
	GID  uint32 `json:"gid"`
	// HCA is the name of the HCA, "" for rdma_cm.
	HCA string `json:"hca,omitempty"`
	// Port is the port that a umad or issm belongs to, otherwise 0.
	Port int `json:"port,omitempty"`
	// Place is where in sysfs the link of its number leads. Its directory is that of its HCA, as HCA.Bus returns it.
	Place string `json:"-"`
	// Problem says why this device cannot be used, "" if it is sound.
	Problem string `json:"problem,omitempty"`
	// Missing is true if the problem is only that there is no node at the path: in a copy, or in a container that does not
	// see the host's /dev. The number is still right.
	Missing bool `json:"missing,omitempty"`
}

// Sound reports whether the node at Path is the device that sysfs names.
func (d Device) Sound() bool { return d.Problem == "" }

// String returns path and number, for messages.
func (d Device) String() string { return fmt.Sprintf("%s (c %s)", d.Path, d.Number) }

// Port is one port of an HCA. What could not be read is "".
type Port struct {
	// Number counts from 1, as in sysfs and in every RDMA tool.
	Number int `json:"number"`
	// State is the logical state: ACTIVE, DOWN, INIT, ARMED, …
	State string `json:"state"`
	// PhysState is the physical state: LinkUp, Polling, Disabled, …
	PhysState string `json:"physState"`
	// LinkLayer is InfiniBand or Ethernet; Unknown for EFA.
	LinkLayer string `json:"linkLayer"`
	// Rate is as the kernel prints it, "100 Gb/sec (4X EDR)".
	Rate string `json:"rate"`
	// Netdevs are the network interfaces below the HCA's own device, and what is stacked on those in this network
	// namespace, in natural order.
	Netdevs []string `json:"netdevs"`
	// RawPackets is true of a port of Ethernet whose table of GIDs has no place, which RoCE needs.
	RawPackets bool `json:"rawPackets,omitempty"`

	// What follows is ScanDetails's.

	// LID and SMLID, the subnet manager's, are 0 where there is none.
	LID   uint32 `json:"lid,omitempty"`
	SMLID uint32 `json:"smLID,omitempty"`
	// SubnetPrefix is an InfiniBand port's, "fe80:0000:0000:0000".
	SubnetPrefix string `json:"subnetPrefix,omitempty"`
	GIDs         []GID  `json:"gids,omitempty"`
}

// GID is an entry of a port's table.
type GID struct {
	Index int `json:"index"`
	// GID is as sysfs prints it, eight groups of four digits.
	GID string `json:"gid"`
	// Type is "RoCE v2", or "IB/RoCE v1" for the older RoCE and InfiniBand.
	Type string `json:"type,omitempty"`
}

// Active reports whether the port carries traffic.
func (p Port) Active() bool { return p.State == StateActive }

// Function is the kind of function of its PCI card that an HCA is.
type Function string

// The functions.
const (
	FunctionPhysical Function = "physical" // also soft HCAs, and those on other buses
	FunctionVirtual  Function = "virtual"  // SR-IOV: its PCI device has a physfn
	FunctionScalable Function = "scalable" // mlx5_core.sf.N on the auxiliary bus, which has no physfn
)

// HCA is one RDMA device of the node.
type HCA struct {
	Name string `json:"name"`
	// Place is where in sysfs its link leads: another one means another HCA, even if it has the same name. It is ""
	// without a link.
	Place string `json:"-"`
	// NodeType is CA, RNIC, usNIC, …; "unspecified" for EFA and Gaudi.
	NodeType string `json:"nodeType"`
	// PCI is the address, "0000:5e:00.0"; "" for soft HCAs and for those that hang on another bus.
	PCI string `json:"pci"`
	// Function is physical unless sysfs shows that the HCA is a part of another.
	Function Function `json:"function"`
	// Parent is the PCI address of the physical function that a virtual or scalable one belongs to.
	Parent string `json:"parent,omitempty"`
	// NUMANode is -1 if unknown.
	NUMANode int `json:"numaNode"`
	// NodeGUID is as sysfs prints it, "b859:9f03:00a9:5bd0".
	NodeGUID string `json:"nodeGUID"`
	Firmware string `json:"firmware"`
	// Driver is that of the PCI or auxiliary device; "" for soft HCAs.
	Driver string `json:"driver,omitempty"`
	// ABIVersion is that of the driver's verbs.
	ABIVersion int    `json:"abiVersion,omitempty"`
	Ports      []Port `json:"ports"`
	// Devices are in the order uverbs, hfi1, umad, issm, each by its index.
	Devices []Device `json:"devices"`
	// Unlisted are the kinds of which Devices may lack some, since they were not listed, or not to the end.
	Unlisted []Kind `json:"unlisted,omitempty"`
	// Manages is what the HCA is for where no program of a container may have it: "NVSwitches", "the planes of mlx5_0",
	// else "".
	Manages string `json:"manages,omitempty"`
	// Unread is why nothing is known of the HCA: its attributes have never been answered. It is "" normally.
	Unread string `json:"unread,omitempty"`
	// Problems are lines for people: what of this HCA could not be read or will not work, and where there is one, the
	// fix.
	Problems []string `json:"problems,omitempty"`
}

// Bus is the directory in sysfs of the device that the HCA is a part of, relative as Place is. The HCA's devices hang
// there as well. Soft HCAs share one.
func (h HCA) Bus() string { return path.Dir(path.Dir(h.Place)) }

// Active reports whether any port carries traffic.
func (h HCA) Active() bool { return slices.ContainsFunc(h.Ports, Port.Active) }

// Verbs returns the HCA's verbs device, sound or not: see Device.Problem. It has none if ib_uverbs is not loaded.
func (h HCA) Verbs() (Device, bool) {
	for _, d := range h.Devices {
		if d.Kind == KindVerbs {
			return d, true
		}
	}
	return Device{}, false
}

// Parts are what is read of an HCA, beside the state of its ports.
type Parts struct {
	Devices    bool // its verbs devices, and what else decides whether a container can use it
	Management bool // its umad and issm devices
	Netdevs    bool // those of its ports
	Rest       bool // all but devices, which List has: for people
	Details    bool // see ScanDetails
}

// Inventory is the HCAs of a node, and what belongs to none of them.
type Inventory struct {
	// HCAs are in natural order: mlx5_2 before mlx5_10.
	HCAs []HCA `json:"hcas"`
	// Elsewhere are devices of HCAs that are not listed, since they were moved to other network namespaces.
	Elsewhere []Device `json:"elsewhere,omitempty"`
	// RDMACM is nil if the module rdma_ucm is not loaded.
	RDMACM *Device `json:"rdmaCM"`
	// NetNSExclusive is true where an HCA can be used only in the network namespace that it was put into; a node with
	// ib_core's netns_mode in its default has it false.
	NetNSExclusive bool `json:"netnsExclusive"`
	// Problems are those that belong to no HCA of the list.
	Problems []string `json:"problems,omitempty"`
}

// Find returns the HCA of that name.
func (n *Inventory) Find(name string) (HCA, bool) {
	for _, h := range n.HCAs {
		if h.Name == name {
			return h, true
		}
	}
	return HCA{}, false
}

// Identifies reports whether a text is the PCI address of a function with an HCA, or the name of an HCA or of its verbs
// device: device plugins identify what they allot so.
func (n *Inventory) Identifies(id string) bool {
	return slices.ContainsFunc(n.HCAs, func(h HCA) bool {
		verbs, found := h.Verbs()
		return id != "" && (id == h.PCI || id == h.Name || found && id == path.Base(verbs.Path))
	})
}

// Lookup returns the device with that number, of any kind and sound or not: a number that it does not know belongs to
// no HCA of this node.
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
