// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package hca

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"sync"
)

const (
	classHCA   = "sys/class/infiniband"
	classVerbs = "sys/class/infiniband_verbs"
	classMAD   = "sys/class/infiniband_mad"
	classHFI1  = "sys/class/hfi1_user"
	classMisc  = "sys/class/misc"
)

// Scan reads the inventory of the node at root: see the package comment for roots. If the node has no RDMA hardware, if
// the modules are not loaded, or if root contains no sys, Scan returns an empty Inventory and no error. Scan returns an
// error if root cannot be opened, or if sys/class/infiniband cannot be listed.
func Scan(root string) (*Inventory, error) { return scanRoot(root, false) }

// ScanDetails is like Scan, but also reads attributes that take long to read: LIDs, the subnet prefix, and GIDs. For
// LIDs and the subnet prefix, the kernel queries the HCA's firmware. The GIDs are in up to 1024 files for each port.
func ScanDetails(root string) (*Inventory, error) { return scanRoot(root, true) }

func scanRoot(root string, details bool) (*Inventory, error) {
	t, err := openTree(root)
	if err != nil {
		return nil, err
	}
	defer t.close()
	node, err := t.listHCAs()
	if err != nil {
		return nil, err
	}
	parts := All
	parts.Details = details
	common := &shared{}
	node = node.Complete(func(name string) HCA { return t.hca(HCA{Name: name}, parts, common) })
	for i := range node.HCAs {
		if verbs, ok := node.HCAs[i].Verbs(); details && ok {
			version, _ := readText(t, path.Join(classVerbs, path.Base(verbs.Path), "abi_version"))
			node.HCAs[i].ABIVersion, _ = strconv.Atoi(version)
		}
	}
	return node, nil
}

// List returns the names of all HCAs, and all RDMA character devices, of the node at root. List does not read the HCAs
// themselves. To read an HCA, call Read. To combine the results, call Inventory.Complete. List returns an error if root
// cannot be opened, or if sys/class/infiniband cannot be listed.
func List(root string) (*Inventory, error) {
	t, err := openTree(root)
	if err != nil {
		return nil, err
	}
	defer t.close()
	return t.listHCAs()
}

// Read reads the attributes of one HCA and its ports. Read can take seconds if the HCA is faulty. Read always returns
// an HCA. The Problems of this HCA describe the attributes that could not be read. Read does not read devices: List
// returns the devices. To read several HCAs, use a Reader.
func Read(root, name string) HCA { return NewReader(root).Read(HCA{Name: name}, All) }

// hcasAt returns the HCAs with these names and places.
func hcasAt(places map[string]string, found *problems) (hcas []HCA) {
	hcas = make([]HCA, 0, len(places))
	for _, name := range slices.SortedFunc(maps.Keys(places), compareNatural) {
		// guard: HCA names
		if !validName(name) {
			found.add("%s contains %s, which is not an HCA name", classHCA, quote(name))
			continue
		}
		hcas = append(hcas, HCA{Name: name, Place: places[name], NUMANode: -1, Ports: []Port{}, Devices: []Device{}})
	}
	return hcas
}

// exclusive reports whether each HCA belongs to only one network namespace.
func (t tree) exclusive() bool {
	mode, _ := readText(t, "sys/module/ib_core/parameters/netns_mode")
	return mode == "N"
}

func (t tree) listHCAs() (*Inventory, error) {
	places, err := t.links(classHCA)
	if err != nil {
		return nil, fmt.Errorf("cannot list HCAs: %w", err)
	}
	var found problems
	node := &Inventory{HCAs: hcasAt(places, &found), NetNSExclusive: t.exclusive()}
	var rows problems
	table := parseDeviceTable(readDeviceTable(t, &rows), &rows)
	devices, unlisted := t.devices(table, &found, classVerbs, classMAD, classHFI1, classMisc)
	for _, line := range rows.all() {
		found.add("%s", line)
	}
	index := map[string]int{}
	for i := range node.HCAs {
		index[node.HCAs[i].Name] = i
		node.HCAs[i].Unlisted = unlisted
	}
	for _, d := range devices {
		switch i, ok := index[d.HCA]; {
		case d.Kind == KindRDMACM:
			node.RDMACM = &d
		case ok:
			node.HCAs[i].Devices = append(node.HCAs[i].Devices, d)
		default:
			// guard: devices of no HCA. The HCA was moved to another network namespace: the kernel filters the class
			// infiniband by namespace, but not the other classes.
			node.Elsewhere = append(node.Elsewhere, d)
			found.add("%s belongs to HCA %s, which is not in %s: the HCA might be in another network namespace",
				d, d.HCA, classHCA)
		}
	}
	node.Problems = found.all()
	return node, nil
}

// Complete returns a copy of an Inventory from List. Each HCA in the copy is the result of the function read, with the
// devices from List.
func (n *Inventory) Complete(read func(name string) HCA) *Inventory {
	all := *n
	all.HCAs = make([]HCA, len(n.HCAs))
	for i, named := range n.HCAs {
		all.HCAs[i] = read(named.Name)
		all.HCAs[i].Devices = named.Devices
		all.HCAs[i].Unlisted = named.Unlisted
	}
	nameSubDevices(all.HCAs)
	for i := range all.HCAs {
		all.HCAs[i].Problems = append(slices.Clip(all.HCAs[i].Problems), diagnose(all.HCAs[i])...)
	}
	if n.RDMACM == nil && slices.ContainsFunc(all.HCAs, HCA.UsesRDMACM) {
		all.Problems = append(slices.Clip(n.Problems),
			"the node has no rdma_cm device, so programs that connect through RDMA_CM will fail: run modprobe rdma_ucm")
	}
	return &all
}

// diagnose derives problems from an HCA's attributes and devices.
func diagnose(h HCA) []string {
	var lines []string
	// If the HCA could not be read at all, the HCA already has a problem.
	if _, ok := h.Verbs(); !ok && h.NodeType != "" && h.Manages == "" && h.Unlisted == nil {
		lines = append(lines,
			"the HCA has no usable verbs device, so programs cannot open it: check that the ib_uverbs module is loaded")
	}
	if h.NodeGUID == zeroGUID && h.UsesRDMACM() {
		lines = append(lines,
			"node_guid is zero, which crashes programs that use RDMA_CM (a VF without a GUID, NVIDIA known issue 1047616): set "+
				"the VF's GUID with \"ip link set dev NETDEV vf N node_guid GUID\" or, on Ethernet, its MAC address with \"ip "+
				"link set dev NETDEV vf N mac MAC\", where NETDEV is the physical function's netdev, and then rebind the VF's "+
				"driver")
	}
	return lines
}

var (
	guidForm = regexp.MustCompile(`^[0-9a-f]{4}(:[0-9a-f]{4}){3}$`)
	pciForm  = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)
)

// hca reads the given parts of a listed HCA. It always returns an HCA. The Problems of this HCA describe the parts that
// could not be read.
func (t tree) hca(listed HCA, parts Parts, common *shared) HCA {
	h := HCA{Name: listed.Name, NUMANode: -1, Function: FunctionPhysical, Ports: []Port{}, Devices: []Device{},
		Unlisted: listed.Unlisted}
	var found problems
	at := path.Join(classHCA, h.Name)
	known := listed.Function != "" && listed.Place != ""
	if known { // open the HCA's directory without following links
		h.Place = listed.Place
		at = path.Join(classHCA, listed.Place)
	} else {
		h.Place, _ = t.Readlink(at)
	}
	dir, err := t.dir(at)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			h.Place = ""
			err = errors.New("the symbolic link is broken: the HCA was just removed, or the copy of the node's files lacks " +
				"sys/devices")
		}
		h.Problems = []string{fmt.Sprintf("%s: %v", at, err)}
		return h
	}
	defer dir.close()

	on := path.Join(at, "device")
	if known {
		h.PCI = listed.PCI
		h.Function = listed.Function
		h.Parent = listed.Parent
		on = path.Join(classHCA, h.Bus())
	} else {
		t.function(&h, t.linkBase(on), on)
	}
	if parts.Devices || parts.Rest {
		t.attributes(on, dir, &h, &found)
	}
	if parts.Rest {
		h.Firmware = attributes{dir: dir, problems: &found}.optional("fw_ver")
		if driver := t.linkBase(path.Join(on, "driver")); validName(driver) {
			h.Driver = driver
		}
	}
	if parts.Devices {
		t.ownDevices(&h, parts.Management, common, &found)
	}
	h.Ports = ports(dir, parts, &found)
	if parts.Netdevs {
		t.addNetdevs(at, &h, common, &found)
	}
	h.Problems = found.all()
	return h
}

// attributes reads the HCA's attributes that seldom change. The parameter dir is the HCA's directory, and on is the
// directory of the PCI or auxiliary device that provides the HCA.
func (t tree) attributes(on string, dir tree, h *HCA, found *problems) {
	a := attributes{dir: dir, problems: found}
	h.NodeType = a.coded("node_type")
	h.NodeGUID = a.text("node_guid")
	if h.NodeGUID != "" && !guidForm.MatchString(h.NodeGUID) {
		found.add("node_guid: %s does not have the form \"b859:9f03:00a9:5bd0\"", quote(h.NodeGUID))
		h.NodeGUID = ""
	}
	if t.managesNVSwitches(on, *h) {
		h.Manages = NVSwitches
	}
	if h.Function == FunctionScalable {
		on += "/.." // devices on the auxiliary bus have no NUMA node
	}
	if bus, err := t.dir(on); err == nil {
		h.NUMANode = numaNode(attributes{dir: bus, in: "device/", problems: found})
		bus.close()
	}
}

const (
	// NVSwitches is the value of HCA.Manages for HCAs that manage the NVSwitches of an HGX B200.
	NVSwitches = "NVSwitches"
	// ProductData is the name of the sysfs file that contains a PCI device's vital product data (VPD).
	ProductData = "vpd"
	// ManagesNVSwitches is the text that identifies an HCA that manages NVSwitches in the HCA's ProductData.
	ManagesNVSwitches = "SMDL=SW_MNG"
)

// deviceConnectX7 is the PCI device ID of all HCAs on an HGX B200, including those that manage NVSwitches.
const deviceConnectX7 = "0x1021"

// managers caches whether an HCA manages NVSwitches, by root, PCI address, and GUID, because reading a card's VPD is
// slow.
var managers sync.Map

// managesNVSwitches reports whether an HCA manages NVSwitches. The parameter on is the directory of the HCA's PCI
// device. According to NVIDIA's Fabric Manager guide, the keyword SMDL in the VPD identifies such an HCA: see
// https://github.com/siderolabs/extensions/pull/717. Only root can read the VPD.
func (t tree) managesNVSwitches(on string, h HCA) bool {
	if h.Function != FunctionPhysical || h.PCI == "" {
		return false
	}
	key := t.Root() + " " + h.PCI + " " + h.NodeGUID
	if known, ok := managers.Load(key); ok {
		return known == true
	}
	is := false
	device, err := readText(t, path.Join(on, "device"))
	if device == deviceConnectX7 {
		var vpd []byte
		vpd, err = t.Read(path.Join(on, ProductData), maxAttribute)
		is = bytes.Contains(vpd, []byte(ManagesNVSwitches))
	}
	if err == nil {
		managers.Store(key, is)
	}
	return is
}

// scalableForm matches the name of a scalable function on the auxiliary bus.
var scalableForm = regexp.MustCompile(`^[a-z0-9_]+\.sf\.[0-9]+$`)

// function sets an HCA's PCI address, Function, and Parent from the name of the HCA's device and from the links in the
// device's directory.
func (t tree) function(h *HCA, device, dir string) {
	physical := t.linkBase(path.Join(dir, "physfn"))
	h.Function = FunctionPhysical
	switch {
	case scalableForm.MatchString(device):
		physical = path.Base(path.Dir(h.Bus())) // .../PCI/mlx5_core.sf.N
		h.Function = FunctionScalable
	case pciForm.MatchString(device):
		h.PCI = device
		if physical != "" {
			h.Function = FunctionVirtual
		}
	}
	if h.Function != FunctionPhysical && pciForm.MatchString(physical) {
		h.Parent = physical
	}
}

// numaNode returns the number of the NUMA node; -1 if the number is unknown or the firmware does not report a number.
func numaNode(a attributes) int {
	s := a.optional("numa_node")
	if s == "" {
		return -1
	}
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n < -1 {
		a.problems.add("%snuma_node: %s is not a number", a.in, quote(s))
		return -1
	}
	return int(n)
}

// byKind orders an HCA's devices first by kind (uverbs, hfi1, umad, issm), and then by index.
func byKind(a, b Device) int {
	rank := func(d Device) int { return slices.Index(kindsInOrder, d.Kind) }
	return cmp.Or(cmp.Compare(rank(a), rank(b)), compareNatural(a.Path, b.Path))
}

var kindsInOrder = []Kind{KindVerbs, KindHFI1, KindUMAD, KindISSM, KindRDMACM}
