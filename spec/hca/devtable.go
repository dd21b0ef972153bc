// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

// DeviceTable is the file at the top of a copied node that describes the
// device nodes which the copy could not hold: see the package's documentation.
const DeviceTable = "device-table.txt"

// maxDeviceTable bounds that file: enough for 10,000 devices.
const maxDeviceTable = 1 << 20

// readDeviceTable reads the table of a copy, by path. Lines that it does not
// understand are problems and name no device.
func readDeviceTable(t *tree, found *problems) map[string]deviceNode {
	top, err := t.folder(".")
	if err != nil {
		found.add("%s: %v", DeviceTable, err)
		return nil
	}
	defer top.close()
	data, err := top.read(DeviceTable, maxDeviceTable)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		found.add("%s: %v", DeviceTable, err)
		return nil
	}
	table := map[string]deviceNode{}
	number := 0
	for line := range strings.Lines(string(data)) {
		number++
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		node, err := parseTableRow(fields)
		if err != nil {
			found.add("%s:%d: %v", DeviceTable, number, err)
			continue
		}
		table[fields[0]] = node
	}
	return table
}

// tableTypes are the letters of makedevs(8).
var tableTypes = map[string]fs.FileMode{
	"c": fs.ModeDevice | fs.ModeCharDevice,
	"b": fs.ModeDevice,
	"p": fs.ModeNamedPipe,
	"d": fs.ModeDir,
	"f": 0,
}

func parseTableRow(fields []string) (deviceNode, error) {
	if len(fields) < 7 {
		return deviceNode{}, errors.New("is not \"path type mode uid gid major minor\"")
	}
	kind, ok := tableTypes[fields[1]]
	if !ok {
		return deviceNode{}, fmt.Errorf("has the type %s, not one of c, b, p, d, f", quote(fields[1]))
	}
	mode, err := strconv.ParseUint(fields[2], 8, 9)
	if err != nil {
		return deviceNode{}, fmt.Errorf("has the mode %s, not octal permission bits", quote(fields[2]))
	}
	var n [4]uint32
	for i, s := range fields[3:7] {
		v, err := strconv.ParseUint(s, 10, 32)
		if err != nil {
			return deviceNode{}, fmt.Errorf("has %s where a number belongs", quote(s))
		}
		n[i] = uint32(v)
	}
	return deviceNode{Mode: kind | fs.FileMode(mode), UID: n[0], GID: n[1], Number: Number{Major: n[2], Minor: n[3]}}, nil
}
