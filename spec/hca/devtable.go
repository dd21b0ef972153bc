// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/rdma-spec/rdma-spec/spec/files"
)

// DeviceTable is the file at the top of a copied node that describes the device nodes which the copy could not hold:
// see the package's documentation.
const DeviceTable = "device-table.txt"

// maxDeviceTable bounds that file: enough for 10,000 devices.
const maxDeviceTable = 1 << 20

// readDeviceTable reads the table of a copy, by path. Lines that it does not understand are problems and name no
// device.
func readDeviceTable(t tree, found *problems) map[string]deviceNode {
	data, err := t.Read(DeviceTable, maxDeviceTable)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			found.add("%s: %v", DeviceTable, files.Cause(err))
		}
		return nil
	}
	types := map[string]fs.FileMode{"c": fs.ModeDevice | fs.ModeCharDevice, "b": fs.ModeDevice, "p": fs.ModeNamedPipe,
		"d": fs.ModeDir, "f": 0}
	table, number := map[string]deviceNode{}, 0
	for line := range strings.Lines(string(data)) {
		number++
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		var name, letter string
		var mode uint16
		var node deviceNode
		_, err := fmt.Sscanf(line, "%s %s %o %d %d %d %d", &name, &letter, &mode, &node.UID, &node.GID,
			&node.Number.Major, &node.Number.Minor)
		kind, known := types[letter]
		if err != nil || !known || mode > 0o777 {
			found.add("%s:%d: is not \"path type mode uid gid major minor\" with a type of c, b, p, d, f", DeviceTable, number)
			continue
		}
		node.Mode = kind | fs.FileMode(mode)
		table[name] = node
	}
	return table
}
