// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"encoding/binary"
	"unique"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
)

// deviceList is a list of devices that is kept once, however many containers have it: the workers of a job hold the same HCAs and GPUs,
// and two dozen devices are three times as much as all else that is kept of a container. The zero list is empty.
type deviceList struct{ packed unique.Handle[string] }

// pack makes a deviceList.
func pack(devices []policy.Device) deviceList {
	if len(devices) == 0 {
		return deviceList{}
	}
	const each = 32 // bytes, about
	b := make([]byte, 0, each*len(devices))
	for _, d := range devices {
		b = binary.AppendVarint(binary.AppendVarint(b, d.Major), d.Minor)
		for _, text := range []string{d.Type, d.Path} {
			b = append(binary.AppendUvarint(b, uint64(len(text))), text...)
		}
	}
	return deviceList{unique.Make(string(b))}
}

// empty reports whether there is no device.
func (l deviceList) empty() bool { return l == deviceList{} }

// devices gives the list.
func (l deviceList) devices() []policy.Device {
	if l.empty() {
		return nil
	}
	var list []policy.Device
	for b := []byte(l.packed.Value()); len(b) > 0; {
		number := func() int64 {
			v, n := binary.Varint(b)
			b = b[n:]
			return v
		}
		text := func() string {
			length, n := binary.Uvarint(b)
			s := string(b[n : n+int(length)])
			b = b[n+int(length):]
			return s
		}
		list = append(list, policy.Device{Major: number(), Minor: number(), Type: text(), Path: text()})
	}
	return list
}
