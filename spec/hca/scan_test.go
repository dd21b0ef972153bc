// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/expect"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// one returns the node that most tests change. It has one InfiniBand HCA.
func one() hcatest.Node {
	n := hcatest.V100Node()
	n.HCAs = n.HCAs[:1]
	return n
}

const (
	onePCI   = "0000:5e:00.0"
	oneHCA   = "sys/devices/pci0000:5e/0000:5e:00.0/infiniband/mlx5_0"
	oneBus   = "sys/devices/pci0000:5e/0000:5e:00.0"
	oneVerbs = oneBus + "/infiniband_verbs/uverbs0"
	classOne = "sys/class/infiniband/mlx5_0"
)

// scan scans a node with these files.
func scan(t *testing.T, f hcatest.Files) *Inventory {
	t.Helper()
	node, err := Scan(f.Root(t))
	must.Succeed(t, err)
	return node
}

// scanOne scans a node that has mlx5_0, and returns this HCA.
func scanOne(t *testing.T, f hcatest.Files) HCA {
	t.Helper()
	h, ok := scan(t, f).Find("mlx5_0")
	if !ok {
		t.Fatal("mlx5_0 is not in the inventory")
	}
	return h
}

func TestScanErrors(t *testing.T) {
	dir := scratch.Dir(t)
	file, fifo := filepath.Join(dir, "file"), filepath.Join(dir, "fifo")
	scratch.File(t, file, "", 0o644)
	must.Succeed(t, syscall.Mkfifo(fifo, 0o644))
	classIsFile := hcatest.Files{"sys/class/infiniband": "", "sys/class/infiniband_verbs": ""}.Root(t)
	classEscapes := hcatest.Files{"sys/class/infiniband": hcatest.Link("/proc"),
		"sys/class/infiniband_verbs": hcatest.Link("/proc")}.Root(t)
	for _, tc := range []struct{ name, root, want string }{
		{"missing", filepath.Join(dir, "none"),
			"no such file or directory: set the root to the directory that contains the node's /sys and /dev"},
		{"file", file, "not a directory: set the root to the directory"},
		{"FIFO", fifo, "not a directory: set the root to the directory"},
		{"class is a file", classIsFile, ": sys/class/infiniband"},
		{"class leads out", classEscapes, "path escapes from parent"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if node, err := Scan(tc.root); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Scan: %v, error %v, want %q", node, err, tc.want)
			}
		})
	}
}

func TestScanNothing(t *testing.T) {
	node, err := Scan(scratch.Dir(t))
	if diff := cmp.Diff(&Inventory{HCAs: []HCA{}}, node); err != nil || diff != "" {
		t.Errorf("an empty directory: error %v (-want +got):\n%s", err, diff)
	}
}

// TestScanLive scans this machine. The result must contain the HCAs that sysfs lists, which can be none.
func TestScanLive(t *testing.T) {
	entries, err := filepath.Glob("/sys/class/infiniband/*")
	must.Succeed(t, err)
	for _, root := range []string{"", "/", "//", "/proc/.."} {
		node, err := Scan(root)
		if err != nil {
			t.Fatalf("Scan(%q): %v", root, err)
		}
		if len(node.HCAs) != len(entries) {
			t.Errorf("Scan(%q) has %d HCAs, sysfs %d", root, len(node.HCAs), len(entries))
		}
	}
}

func TestScan_pciAndNUMA(t *testing.T) {
	for _, tc := range []struct {
		name    string
		change  hcatest.Files
		without string
		pci     string
		numa    int
		problem string
	}{
		{name: "as the kernel has it", pci: onePCI},
		{name: "NUMA unknown to the firmware", change: hcatest.Files{oneBus + "/numa_node": "-1\n"}, pci: onePCI, numa: -1},
		{name: "no NUMA in this kernel", without: oneBus + "/numa_node", pci: onePCI, numa: -1},
		{name: "NUMA garbage", change: hcatest.Files{oneBus + "/numa_node": "zero\n"}, pci: onePCI, numa: -1,
			problem: `device/numa_node: "zero" is not a number`},
		{name: "NUMA too small", change: hcatest.Files{oneBus + "/numa_node": "-2\n"}, pci: onePCI, numa: -1,
			problem: `device/numa_node: "-2" is not a number`},
		{name: "soft HCA", without: oneHCA + "/device", numa: -1},
		{name: "scalable function", change: hcatest.Files{oneHCA + "/device": hcatest.Link("../../../mlx5_core.sf.4")},
			numa: -1},
		{name: "copy without the bus", change: hcatest.Files{oneHCA + "/device": hcatest.Link("../../../gone/" + onePCI)},
			pci: onePCI, numa: -1},
		{name: "device is a file", change: hcatest.Files{oneHCA + "/device": onePCI}, numa: -1, problem: classOne +
			"/device/net: not a directory"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := one().Files()
			if tc.without != "" {
				f.Without(tc.without)
			}
			h := scanOne(t, f.With(tc.change))
			var problems []string
			if tc.problem != "" {
				problems = []string{tc.problem}
			}
			got := HCA{PCI: h.PCI, NUMANode: h.NUMANode, Problems: h.Problems}
			expect.Equal(t, "HCA", HCA{PCI: tc.pci, NUMANode: tc.numa, Problems: problems}, got)
		})
	}
}

// TestScan_copyWithRealDirectory: in a copy, class/infiniband can contain the HCA's directory itself instead of a link.
func TestScan_copyWithRealDirectory(t *testing.T) {
	f := hcatest.Files{}
	for p, content := range one().Files() {
		p = strings.Replace(p, oneHCA, classOne, 1)
		p = strings.Replace(p, oneVerbs, "sys/class/infiniband_verbs/uverbs0", 1)
		if p != classOne && p != "sys/class/infiniband_verbs/uverbs0" {
			f[p] = content
		}
	}
	want := scanOne(t, one().Files())
	want.NUMANode, want.Ports[0].Netdevs = -1, []string{} // the device link has no target there
	got := scanOne(t, f)
	expect.Equal(t, "HCA of the copy", want, got, withoutPlaces)
}

// TestScan_copyByTar: tar pads each attribute with zeros to the size of a page.
func TestScan_copyByTar(t *testing.T) {
	for _, page := range []int{1 << 12, 1 << 16} {
		f := one().Files()
		for p, content := range f {
			if strings.HasPrefix(p, "sys/devices/") && !strings.HasPrefix(content, "-> ") {
				f[p] = content + strings.Repeat("\x00", page-len(content))
			}
		}
		expect.Equal(t, fmt.Sprint("a copy by pages of ", page), scan(t, one().Files()), scan(t, f))
	}
}

func TestZeroGUID(t *testing.T) {
	for _, tc := range []struct {
		name, guid, nodeType string
		want                 bool
	}{
		{"VF without GUID", "0000:0000:0000:0000", "1: CA", true},
		{"EFA", "0000:0000:0000:0000", "7: unspecified", false},
		{"VF with GUID", "0000:0000:0000:0001", "1: CA", false},
	} {
		n := one()
		n.HCAs[0].GUID, n.HCAs[0].NodeType = tc.guid, tc.nodeType
		h := scanOne(t, n.Files())
		got := strings.Contains(strings.Join(h.Problems, "\n"), "node_guid is zero, which crashes programs that use RDMA_CM")
		if got != tc.want || h.NodeGUID != tc.guid {
			t.Errorf("%s: problem %v, want %v (GUID %q, %q)", tc.name, got, tc.want, h.NodeGUID, h.Problems)
		}
	}
}

// withoutPlaces ignores the fields that JSON, and copies without links, do not contain.
var withoutPlaces = cmp.Options{cmpopts.IgnoreFields(HCA{}, "Place"), cmpopts.IgnoreFields(Device{}, "Place")}

// TestScanDetails_golden scans each named node and compares the whole inventory.
func TestScanDetails_golden(t *testing.T) {
	for name, build := range hcatest.All {
		t.Run(name, func(t *testing.T) {
			node, err := ScanDetails(build(t))
			must.Succeed(t, err)
			got := golden.JSON(t, node)
			golden.Compare(t, filepath.Join("testdata", name+".json"), got)
			var back Inventory
			must.Succeed(t, json.Unmarshal([]byte(got), &back))
			expect.Equal(t, "the node that its JSON gives back", node, &back, withoutPlaces)
		})
	}
}
