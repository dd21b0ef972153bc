// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"testing"

	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/expect"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
)

func TestReadNumber(t *testing.T) {
	for in, want := range map[string]Number{
		"231:192\n": {231, 192}, "4095:1048575": {4095, 1<<20 - 1}, "0:1": {0, 1},
		"0:0\n": {}, "4096:0": {}, "1:1048576": {}, "-1:3": {}, "+1:3": {}, "01:3": {}, "1: 3": {}, "1:3:5": {}, "13": {},
		":": {}, "": {}, "0x1:3": {}, "1:3\n1:4": {},
	} {
		root := hcatest.Files{"d/dev": in}.Root(t)
		dir, err := openTree(root + "/d")
		must.Succeed(t, err)
		got, err := readNumber(dir)
		dir.close()
		if got != want || (err == nil) != (want != Number{}) {
			t.Errorf("%q: number %v, error %v, want %v", in, got, err, want)
		}
	}
}

// TestScan_brokenDevices: in each case, one thing about a device is wrong.
func TestScan_brokenDevices(t *testing.T) {
	const umad, cm = oneBus + "/infiniband_mad/umad0", "sys/devices/virtual/misc/rdma_cm"
	for _, tc := range []struct {
		name, without string
		change        hcatest.Files
		want          []string
	}{
		{"no port", umad + "/port", nil, []string{"sys/class/infiniband_mad/umad0: port: no such file or directory"}},
		{"odd port", "", hcatest.Files{umad + "/port": "0\n"},
			[]string{`sys/class/infiniband_mad/umad0: port: "0" is not a port number`}},
		{"no HCA", umad + "/ibdev", nil, []string{"sys/class/infiniband_mad/umad0: ibdev: no such file or directory"}},
		{"class is a file", "", hcatest.Files{"sys/class/infiniband_mad": ""},
			[]string{"cannot list devices: sys/class/infiniband_mad: not a directory"}},
		{"rdma_cm without number", "", hcatest.Files{cm + "/dev": "x\n"}, []string{
			`sys/class/misc/rdma_cm: dev: "x" is not a device number`,
			"the node has no rdma_cm device, so programs that connect through RDMA_CM will fail: run modprobe rdma_ucm"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := one().Files()
			if tc.without != "" {
				f.Without(tc.without)
			}
			node := scan(t, f.With(tc.change))
			expect.Equal(t, "problems", tc.want, node.Problems)
			if d, ok := node.HCAs[0].Verbs(); !ok || !d.Sound() {
				t.Errorf("the verbs device suffers: %v %q", ok, d.Problem)
			}
		})
	}
}
