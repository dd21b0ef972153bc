// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// guards are the checks that the promises of this package and of files rest on, by the name
// that the code gives them ("// guard: NAME"). Each test fails if its guard is
// taken out.
var guards = map[string]func(t *testing.T){
	"HCA names": func(t *testing.T) {
		for _, name := range []string{"a b", "mlx5_0\n", "mlх5_0", strings.Repeat("a", 64), `a"b`} {
			node := scan(t, one().Files().With(hcatest.Files{"sys/class/infiniband/" + name: hcatest.Link("mlx5_0")}))
			if len(node.HCAs) != 1 || !strings.Contains(problemsOf(node), "is not an HCA name") {
				t.Errorf("name %q: %d HCAs, problems %q", name, len(node.HCAs), node.Problems)
			}
		}
	},
	"only ENOENT is no": func(t *testing.T) {
		root := hcatest.Files{"sys/dev/char/1:3": hcatest.Link("null"), "sys/dev/char/231:192": "no link"}.Root(t)
		if _, verbs, err := VerbsByNumber(root, Number{231, 192}); verbs || err == nil {
			t.Errorf("%v, error %v, want an error", verbs, err)
		}
		if _, verbs, err := VerbsByNumber(root, Number{231, 193}); verbs || err != nil {
			t.Errorf("%v, error %v, want no", verbs, err)
		}
	},
	"unread HCAs": func(t *testing.T) {
		h := scanOne(t, one().Files())
		h.Unread = "never answered"
		if devices, err := h.Usable(false); err == nil || err.Error() != h.Unread {
			t.Errorf("%v, error %v", devices, err)
		}
	},
	"devices that were not listed": func(t *testing.T) {
		cut := one().Files().Without("sys/class/infiniband_mad").With(hcatest.Files{"sys/class/infiniband_mad": "no directory"})
		for management, usable := range map[bool]int{false: 1, true: 0} {
			if devices, err := scanOne(t, cut).Usable(management); len(devices) != usable || (err == nil) != (usable > 0) {
				t.Errorf("management %v: %v, error %v", management, devices, err)
			}
		}
		cut = one().Files().Without("sys/class/infiniband_verbs").With(hcatest.Files{"sys/class/infiniband_verbs": "no directory"})
		if devices, err := scanOne(t, cut).Usable(false); err == nil || strings.Contains(err.Error(), "modprobe") {
			t.Errorf("%v, error %v", devices, err)
		}
	},
	"devices of other HCAs": func(t *testing.T) {
		n := hcatest.SoftRoCENode() // all HCAs of this node are in the same place
		r := NewReader(n.Files().Root(t))
		node, _, err := r.List()
		must.Succeed(t, err)
		for i, h := range node.HCAs {
			read := r.Read(h, Parts{Devices: true, Management: true})
			if verbs, _ := read.Verbs(); verbs.Number != (Number{231, uint32(192 + i)}) || verbs.Place != "" || len(read.Devices) != 3 {
				t.Errorf("%s: %+v", h.Name, read.Devices)
			}
		}
	},
	"management HCAs": func(t *testing.T) {
		n := one()
		n.HCAs[0].Files = hcatest.Files{"device": "0x1021\n", "vpd": "\x82\x90\x10\x00SMDL=SW_MNG\x78"}
		h := scanOne(t, n.Files())
		if devices, err := h.Usable(true); err == nil || !strings.Contains(err.Error(), "for managing NVSwitches") {
			t.Errorf("%v, error %v", devices, err)
		}
	},
	"management devices": func(t *testing.T) {
		if devices, err := scanOne(t, one().Files()).Usable(false); err != nil || len(devices) != 1 {
			t.Errorf("%v, error %v", devices, err)
		}
	},
	"HCA names in ibdev": func(t *testing.T) {
		for _, name := range []string{"../../etc", "..", "a/b", "a b", "a\x01"} {
			root := one().Files().With(hcatest.Files{oneVerbs + "/ibdev": name}).Root(t)
			node, err := Scan(root)
			if err != nil || len(node.HCAs[0].Devices) != 2 || !strings.Contains(problemsOf(node), "ibdev: \"") {
				t.Errorf("HCA %q: %v, error %v", name, node, err)
			}
		}
	},
	"devices of no HCA": func(t *testing.T) {
		node := scan(t, one().Files().With(hcatest.Files{oneVerbs + "/ibdev": "mlx5_7\n"}))
		if d, ok := node.HCAs[0].Verbs(); ok {
			t.Errorf("%s is a device of mlx5_0", d)
		}
		if d, ok := node.Lookup(Number{231, 192}); !ok || d.HCA != "mlx5_7" || len(node.Elsewhere) != 1 {
			t.Errorf("Lookup: %+v, %v; elsewhere: %v", d, ok, node.Elsewhere)
		}
		if want := "/dev/infiniband/uverbs0 (c 231:192) belongs to HCA mlx5_7, which is not in sys/class/infiniband"; !strings.Contains(problemsOf(node), want) {
			t.Errorf("problems %q, want %q", node.Problems, want)
		}
	},
	"kinds of a class": func(t *testing.T) {
		node := scan(t, one().Files().With(hcatest.Files{
			"sys/class/infiniband_verbs/umad9/dev":   "231:9\n",
			"sys/class/infiniband_verbs/umad9/ibdev": "mlx5_0\n",
			"sys/class/infiniband_verbs/umad9/port":  "1\n",
			"sys/class/infiniband_verbs/rdma_cm/dev": "8:0\n",
			"sys/class/infiniband_mad/uverbs9/dev":   "8:1\n",
			"sys/class/infiniband_mad/uverbs9/ibdev": "mlx5_0\n",
		}))
		for _, n := range []Number{{231, 9}, {8, 0}, {8, 1}} {
			if d, ok := node.Lookup(n); ok {
				t.Errorf("%v is in the inventory, as %+v", n, d)
			}
		}
	},
	"one number, one device": func(t *testing.T) {
		f := one().Files().With(hcatest.Files{oneBus + "/infiniband_mad/umad0/dev": "231:192\n"})
		for range 2 {
			d := scanOne(t, f).Devices[1]
			if want := "/dev/infiniband/umad0 shares device number 231:192 with /dev/infiniband/uverbs0"; d.Kind != KindUMAD ||
				d.Problem != want || d.Missing {
				t.Errorf("%s has problem %q (missing: %v), want %q", d, d.Problem, d.Missing, want)
			}
			f.Without(DeviceTable) // nor is it only missing in a copy without nodes
		}
	},
	"device numbers": func(t *testing.T) {
		for _, number := range []string{"0:0", "4096:1", "x", "231:192:1", "0231:192"} {
			root := one().Files().With(hcatest.Files{oneVerbs + "/dev": number}).Root(t)
			if node, err := Scan(root); err != nil || len(node.HCAs[0].Devices) != 2 || !strings.Contains(problemsOf(node),
				"is not a device number") {
				t.Errorf("%q: %v, error %v", number, node, err)
			}
		}
	},
	"no device table on the live node": func(t *testing.T) {
		d := Device{Path: "/dev/infiniband/uverbs0", Number: Number{231, 192}}
		deviceNodes{live: true, lstat: fails(os.ErrNotExist), table: map[string]deviceNode{
			d.Path: {Mode: charDevice | 0o666, Number: d.Number},
		}}.check(&d)
		if d.Sound() || !d.Missing {
			t.Errorf("the table made %s sound", d)
		}
	},
	"/dev/infiniband is a directory": devDir,
	"only character devices": func(t *testing.T) {
		f := one().Files().With(hcatest.Files{DeviceTable: "/dev/infiniband/uverbs0 b 0666 0 0 231 192\n"})
		if d, _ := scanOne(t, f).Verbs(); d.Sound() || d.Missing {
			t.Errorf("%s is a block device and has problem %q", d, d.Problem)
		}
		f = one().Files().With(hcatest.Files{"dev/infiniband/uverbs0": hcatest.Link("umad0")})
		if d, _ := scanOne(t, f).Verbs(); d.Sound() || d.Missing {
			t.Errorf("%s is a link and has problem %q", d, d.Problem)
		}
	},
	"the number of sysfs": func(t *testing.T) {
		f := one().Files().With(hcatest.Files{DeviceTable: "/dev/infiniband/uverbs0 c 0666 0 0 1 1\n"})
		d, _ := scanOne(t, f).Verbs()
		if d.Sound() || d.Number != (Number{231, 192}) {
			t.Errorf("%s has problem %q", d, d.Problem)
		}
	},
	"large directories": func(t *testing.T) {
		root := one().Files().Root(t)
		for i := range maxEntries {
			must.Succeed(t, os.Mkdir(filepath.Join(root, fmt.Sprintf("sys/class/infiniband/x%d", i)), 0o755))
		}
		if node, err := Scan(root); err == nil || !strings.Contains(err.Error(),
			fmt.Sprintf("sys/class/infiniband: more than %d entries", maxEntries)) {
			t.Errorf("error %v, %v", err, node)
		}
	},
	"regular files": func(t *testing.T) {
		for kind, value := range map[string]string{"a FIFO": hcatest.FIFO, "a symbolic link": hcatest.Link("fw_ver")} {
			h := scanOne(t, one().Files().With(hcatest.Files{oneHCA + "/node_guid": value}))
			if want := "node_guid: the path is " + kind + ", not a regular file"; !slices.Contains(h.Problems, want) {
				t.Errorf("problems %q, want %q", h.Problems, want)
			}
		}
	},
	"long files": func(t *testing.T) {
		h := scanOne(t, one().Files().With(hcatest.Files{oneHCA + "/fw_ver": strings.Repeat(" ", 1<<20) + "1"}))
		if want := []string{"fw_ver: the file is longer than 65536 bytes"}; !cmp.Equal(want, h.Problems) {
			t.Errorf("problems %q, want %q", h.Problems, want)
		}
		h = scanOne(t, one().Files().With(hcatest.Files{oneHCA + "/fw_ver": strings.Repeat(" ", maxAttribute-1) + "1"}))
		if h.Firmware != "1" {
			t.Errorf("a file of a page: firmware %q, problems %q", h.Firmware, h.Problems)
		}
	},
	"links out of the root": linksOut,
	"printable attributes": func(t *testing.T) {
		for _, fw := range []string{"1\x1b[31m", "1\n2", "ü", strings.Repeat("9", maxText+1)} {
			h := scanOne(t, one().Files().With(hcatest.Files{oneHCA + "/fw_ver": fw}))
			if h.Firmware != "" || len(h.Problems) != 1 || !printable(h.Problems[0]) && !strings.HasSuffix(h.Problems[0],
				"… is longer than 128 bytes, or is not one line of printable text") {
				t.Errorf("firmware %q, problems %q", h.Firmware, h.Problems)
			}
		}
	},
	"names of netdevs": func(t *testing.T) {
		for _, netdev := range []string{"sixteen-letters0", "eth 0", `e"`} {
			h := scanOne(t, one().Files().With(hcatest.Files{
				oneBus + "/net/" + netdev + "/dev_port": "0\n", oneBus + "/net/ib0/upper_" + netdev + "/uevent": "DEVTYPE=bond\n"}))
			if got := h.Ports[0].Netdevs; !cmp.Equal(got, []string{"ib0"}) || len(h.Problems) != 2 {
				t.Errorf("%q: netdevs %q, problems %q", netdev, got, h.Problems)
			}
		}
		node := scan(t,
			hcatest.SoftRoCENode().Files().With(hcatest.Files{"sys/devices/virtual/infiniband/rxe0/parent": "../net\n"}))
		if got := node.HCAs[0].Ports[0].Netdevs; len(got) != 0 || len(node.HCAs[0].Problems) != 1 {
			t.Errorf("parent: netdevs %q, problems %q", got, node.HCAs[0].Problems)
		}
	},
	"what may be stacked": func(t *testing.T) {
		for kind, want := range map[string]int{"bond": 2, "vlan": 2, "macvlan": 2, "bridge": 1, "bonding": 1, "": 1} {
			h := scanOne(t, one().Files().With(hcatest.Files{oneBus + "/net/ib0/upper_x0/uevent": "DEVTYPE=" +
				kind + "\nINTERFACE=x0\n"}))
			if got := h.Ports[0].Netdevs; len(got) != want {
				t.Errorf("%s: netdevs %q", kind, got)
			}
		}
	},
	"number of problems": func(t *testing.T) {
		f := one().Files()
		for i := range 100 {
			f[fmt.Sprintf("%s/ports/x%d", oneHCA, i)] = ""
			f[fmt.Sprintf("sys/class/infiniband/x %d", i)] = ""
		}
		node := scan(t, f)
		for _, lines := range [][]string{node.Problems, node.HCAs[0].Problems} {
			if want := "problems not shown: 84"; len(lines) != maxProblems+1 || lines[maxProblems] != want {
				t.Errorf("%d problems, want %d and %q", len(lines), maxProblems, want)
			}
		}
	},
}

// linksOut creates a sound HCA outside the root, and a link to it.
func linksOut(t *testing.T) {
	for _, link := range []string{"ABSOLUTE", "../../../../outside"} {
		dir := scratch.Dir(t)
		f, all := one().Files(), hcatest.Files{}
		for _, p := range f.Under(oneHCA) {
			all["outside/"+strings.TrimPrefix(p, oneHCA+"/")] = f[p]
		}
		if link == "ABSOLUTE" {
			link = filepath.Join(dir, "outside")
		}
		for p, v := range f.With(hcatest.Files{classOne: hcatest.Link(link)}) {
			all["root/"+p] = v
		}
		must.Succeed(t, all.Write(dir))
		node, err := Scan(filepath.Join(dir, "root"))
		must.Succeed(t, err)
		h, _ := node.Find("mlx5_0")
		if h.NodeGUID != "" || len(h.Ports) != 0 || !strings.Contains(strings.Join(h.Problems, "\n"),
			"path escapes from parent") {
			t.Errorf("link %s was followed: %+v", link, h)
		}
	}
}

func problemsOf(n *Inventory) string { return strings.Join(n.Problems, "\n") }

func TestGuard(t *testing.T) {
	for name, test := range guards {
		t.Run(name, test)
	}
}

// TestGuardsAreNamed: each guard in the code has a test, and each test has a guard.
func TestGuardsAreNamed(t *testing.T) {
	own, err := filepath.Glob("*.go")
	must.Succeed(t, err)
	shared, err := filepath.Glob("../files/*.go")
	must.Succeed(t, err)
	named := map[string]bool{}
	for _, file := range slices.Concat(own, shared) {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		must.Succeed(t, err)
		for _, m := range regexp.MustCompile(`(?m)// guard: ([^.\n]*)`).FindAllSubmatch(text, -1) {
			named[string(m[1])] = true
			if guards[string(m[1])] == nil {
				t.Errorf("%s: guard %q has no test", file, m[1])
			}
		}
	}
	for name := range guards {
		if !named[name] {
			t.Errorf("test of guard %q, which is not in the code", name)
		}
	}
}
