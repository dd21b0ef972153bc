// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package hca

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// DeviceDir is the node's directory of RDMA device nodes. Only the device nodes of hfi1 are in /dev itself.
const DeviceDir = "/dev/infiniband"

// classKinds contains the kinds of devices in each class directory, by the base name of the directory.
var classKinds = map[string][]Kind{path.Base(classVerbs): {KindVerbs}, path.Base(classMAD): {KindUMAD, KindISSM},
	path.Base(classHFI1): {KindHFI1}, path.Base(classMisc): {KindRDMACM}}

// devices returns the character devices in class directories, and compares them with the device nodes in /dev. unlisted
// contains the kinds whose devices might be missing from the result.
func (t tree) devices(table map[string]deviceNode, found *problems, dirs ...string) (all []Device, unlisted []Kind) {
	all = []Device{}
	for _, dir := range dirs {
		kinds := classKinds[path.Base(dir)]
		names, err := t.list(dir)
		if err != nil {
			found.add("cannot list devices: %v", err)
			unlisted = append(unlisted, kinds...)
			continue
		}
		for _, name := range names {
			// guard: kinds of a class. Other entries are the class's own attributes (abi_version), or unknown.
			if !slices.Contains(kinds, kindOf(name)) {
				continue
			}
			d, err := t.classDevice(path.Join(dir, name))
			if err != nil {
				found.add("%s: %v", path.Join(dir, name), err)
				continue
			}
			all = append(all, d)
		}
	}
	slices.SortFunc(all, byKind)

	nodes := t.nodes(table)
	owner := map[Number]string{}
	for i := range all {
		nodes.check(&all[i])
		// guard: one number, one device
		if first, twice := owner[all[i].Number]; twice {
			all[i].Missing = false
			all[i].Problem = fmt.Sprintf("%s shares device number %s with %s", all[i].Path, all[i].Number, first)
			continue
		}
		owner[all[i].Number] = all[i].Path
	}
	return all, unlisted
}

// ownDevices reads an HCA's devices from the HCA's bus directory in sysfs, without reading the devices of other HCAs.
// If several HCAs share the bus directory, the directory does not identify a device's HCA.
func (t tree) ownDevices(h *HCA, management bool, common *shared, found *problems) {
	verbs := path.Join(h.Bus(), path.Base(classVerbs))
	mad := path.Join(h.Bus(), path.Base(classMAD))
	dirs := []string{path.Join(classHCA, verbs), classHFI1}
	if management {
		dirs = append(dirs, path.Join(classHCA, mad))
	}
	all, unlisted := t.devices(common.table, found, dirs...)
	h.Unlisted = unlisted
	if !management {
		h.Unlisted = append(h.Unlisted, KindUMAD, KindISSM)
	}
	for _, d := range all {
		if d.HCA != h.Name { // guard: devices of other HCAs
			continue
		}
		switch {
		case d.Kind == KindHFI1:
			d.Place, _ = t.Readlink(path.Join(classHFI1, h.Name))
		case common.buses[h.Bus()] != 1:
		case d.Kind == KindVerbs:
			d.Place = path.Join(verbs, path.Base(d.Path))
		default:
			d.Place = path.Join(mad, path.Base(d.Path))
		}
		h.Devices = append(h.Devices, d)
	}
}

// classDevice reads one device in a class. The name of the device's directory determines the kind.
func (t tree) classDevice(at string) (Device, error) {
	dir, err := t.dir(at)
	if err != nil {
		return Device{}, err
	}
	defer dir.close()
	name := path.Base(at)
	number, err := readNumber(dir)
	if err != nil {
		return Device{}, fmt.Errorf("dev: %w", err)
	}
	d := newDevice(name, number)
	switch d.Kind {
	case KindRDMACM:
		return d, nil
	case KindHFI1: // only the device name identifies the HCA, and udev rules do not rename hfi1_N
		d.HCA = name
		return d, nil
	}
	if d.HCA, err = readText(dir, "ibdev"); err != nil {
		return Device{}, fmt.Errorf("ibdev: %w", err)
	}
	// guard: HCA names in ibdev
	if !validName(d.HCA) {
		return Device{}, fmt.Errorf("ibdev: %s is not an HCA name", quote(d.HCA))
	}
	if d.Kind == KindUMAD || d.Kind == KindISSM {
		s, err := readText(dir, "port")
		if err != nil {
			return Device{}, fmt.Errorf("port: %w", err)
		}
		if d.Port, err = strconv.Atoi(s); err != nil || d.Port < 1 || d.Port > mostPorts {
			return Device{}, fmt.Errorf("port: %s is not a port number", quote(s))
		}
	}
	return d, nil
}

// newDevice returns a device with this name and number, and with the kernel's default mode for its kind.
func newDevice(name string, number Number) Device {
	d := Device{Kind: kindOf(name), Path: DeviceDir + "/" + name, Number: number, Mode: 0o666}
	switch d.Kind {
	case KindHFI1:
		d.Path = "/dev/" + name
	case KindUMAD, KindISSM:
		d.Mode = 0o600
	}
	return d
}

// readNumber reads a device number such as "231:192". In the kernel, the major number has 12 bits, the minor number has
// 20 bits, and 0:0 means "no device".
func readNumber(dir tree) (Number, error) {
	s, err := readText(dir, "dev")
	if err != nil {
		return Number{}, err
	}
	var n Number
	_, err = fmt.Sscanf(s, "%d:%d", &n.Major, &n.Minor)
	// guard: device numbers
	if err != nil || n.Major >= 1<<12 || n.Minor >= 1<<20 || n == (Number{}) || n.String() != s {
		return Number{}, fmt.Errorf("%s is not a device number", quote(s))
	}
	return n, nil
}

// kindOf returns the kind of the device with this name; "" if the device is not an RDMA device.
func kindOf(name string) Kind {
	if name == string(KindRDMACM) {
		return KindRDMACM
	}
	for _, indexed := range indexedKinds {
		if index, ok := strings.CutPrefix(name, indexed.prefix); ok && index != "" && len(index) <= 5 &&
			digits(index) == len(index) {
			return indexed.kind
		}
	}
	return ""
}

// indexedKinds contains the kinds whose device names end with an index: uverbs0, uverbs1, and so on. Each request
// searches indexedKinds for each device, and a slice is faster to search than a map.
var indexedKinds = []struct {
	prefix string
	kind   Kind
}{{"uverbs", KindVerbs}, {"umad", KindUMAD}, {"issm", KindISSM}, {"hfi1_", KindHFI1}}
