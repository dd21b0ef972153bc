// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
)

const (
	classHCA   = "sys/class/infiniband"
	classVerbs = "sys/class/infiniband_verbs"
	classMAD   = "sys/class/infiniband_mad"
	miscRDMACM = "sys/class/misc/rdma_cm"
)

// nodeTypeUnspecified is what sysfs says of EFA, which has verbs but no
// management packets, no GUID to speak of and no RDMA_CM.
const nodeTypeUnspecified = "unspecified"

// Scan takes the whole inventory of the node at root (see the package's
// documentation for roots). A node without RDMA hardware or without the
// modules is an empty Node and no error; so is a folder that has no sys.
func Scan(root string) (*Node, error) {
	t, err := openTree(root)
	if err != nil {
		return nil, err
	}
	defer t.close()
	return t.scan()
}

func (t *tree) scan() (*Node, error) {
	names, err := t.list(classHCA)
	if err != nil {
		return nil, fmt.Errorf("list HCAs: %w", err)
	}
	var found problems
	node := &Node{HCAs: []HCA{}}
	index := map[string]int{}
	for _, name := range names {
		// guard: HCA names
		if !validName(name) {
			found.add("%s has an entry %s, which is no name of an HCA", classHCA, quote(name))
			continue
		}
		index[name] = len(node.HCAs)
		node.HCAs = append(node.HCAs, t.hca(name))
	}
	for _, d := range t.devices(&found) {
		switch i, ok := index[d.HCA]; {
		case d.Kind == KindRDMACM:
			node.RDMACM = &d
		case ok:
			node.HCAs[i].Devices = append(node.HCAs[i].Devices, d)
		default:
			// guard: devices of no HCA
			// Seen where the HCA was moved to another network namespace: the
			// class infiniband is filtered by namespace, the others are not.
			found.add("%s belongs to HCA %s, which is not in %s: it may be in another network namespace", d, d.HCA, classHCA)
		}
	}
	for i := range node.HCAs {
		h := &node.HCAs[i]
		h.Problems = append(h.Problems, diagnose(*h)...)
	}
	if node.RDMACM == nil && slices.ContainsFunc(node.HCAs, usesRDMACM) {
		found.add("there is no rdma_cm device, programs that connect through RDMA_CM will fail: modprobe rdma_ucm")
	}
	node.Problems = found.all()
	return node, nil
}

func usesRDMACM(h HCA) bool { return h.NodeType != nodeTypeUnspecified }

// diagnose names what will not work although everything could be read.
func diagnose(h HCA) []string {
	var lines []string
	// An HCA that could not be read at all has said enough.
	if _, ok := h.Verbs(); !ok && h.NodeType != "" {
		lines = append(lines, "there is no usable verbs device, programs cannot open the HCA: is the module ib_uverbs loaded?")
	}
	if h.NodeGUID == zeroGUID && usesRDMACM(h) {
		lines = append(lines, "node_guid is zero, which crashes programs that use RDMA_CM (a VF without a GUID, NVIDIA known issue 1047616): "+
			"set one on the physical function, \"ip link set dev NETDEV vf N node_guid GUID\", and bind the VF's driver anew")
	}
	return lines
}

const zeroGUID = "0000:0000:0000:0000"

var (
	guidForm = regexp.MustCompile(`^[0-9a-f]{4}(:[0-9a-f]{4}){3}$`)
	pciForm  = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)
)

// hca reads one HCA, all but its devices. It always gives one: what is broken
// is in its problems.
func (t *tree) hca(name string) HCA {
	h := HCA{Name: name, NUMANode: -1, Ports: []Port{}, Devices: []Device{}}
	var found problems
	at := path.Join(classHCA, name)
	dir, err := t.folder(at)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = errors.New("the link leads nowhere: the HCA has just been removed, or the copy lacks sys/devices")
		}
		h.Problems = []string{fmt.Sprintf("%s: %v", at, err)}
		return h
	}
	defer dir.close()

	a := attributes{dir: dir, problems: &found}
	h.NodeType = a.coded("node_type")
	h.Firmware = a.optional("fw_ver")
	h.NodeGUID = a.text("node_guid")
	if h.NodeGUID != "" && !guidForm.MatchString(h.NodeGUID) {
		found.add("node_guid: is %s, not of the form \"b859:9f03:00a9:5bd0\"", quote(h.NodeGUID))
		h.NodeGUID = ""
	}
	h.PCI = pciAddress(dir)
	if bus, err := t.folder(path.Join(at, "device")); err == nil {
		h.NUMANode = numaNode(attributes{dir: bus, in: "device/", problems: &found})
		bus.close()
	}
	h.Ports = t.ports(at, dir, &found)
	h.Problems = found.all()
	return h
}

// pciAddress is the name of the folder that the device link leads to. A copy
// that follows links has a folder there instead, which has the address in
// uevent. On another bus, as with scalable functions, there is none.
func pciAddress(dir folder) string {
	if link, err := dir.link("device"); err == nil {
		if base := path.Base(link); pciForm.MatchString(base) {
			return base
		}
		return ""
	}
	bus, err := dir.folder("device")
	if err != nil {
		return ""
	}
	defer bus.close()
	data, err := bus.read("uevent", maxAttribute)
	if err != nil {
		return ""
	}
	m := pciSlot.FindSubmatch(data)
	if m == nil || !pciForm.Match(m[1]) {
		return ""
	}
	return string(m[1])
}

var pciSlot = regexp.MustCompile(`(?m)^PCI_SLOT_NAME=(.*)$`)

// numaNode is -1 where the firmware does not say, too.
func numaNode(a attributes) int {
	s := a.optional("numa_node")
	if s == "" {
		return -1
	}
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n < -1 {
		a.problems.add("%snuma_node: is %s, not a number", a.in, quote(s))
		return -1
	}
	return int(n)
}

// byKind orders an HCA's devices: uverbs, umad, issm, each by its index.
func byKind(a, b Device) int {
	rank := map[Kind]int{KindVerbs: 0, KindUMAD: 1, KindISSM: 2, KindRDMACM: 3}
	return cmp.Or(cmp.Compare(rank[a.Kind], rank[b.Kind]), compareNatural(a.Path, b.Path))
}
