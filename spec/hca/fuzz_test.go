// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// canary is in every file outside the root, so a result that contains it shows that such a file was read.
const canary = "CANARY"

// FuzzScan changes the files of a node with one HCA. Each line of the input is "path=content", where the content can be
// a link or a FIFO as in hcatest. Scan must not panic, hang, or read outside the root. Its result must keep the
// promises of the types: names, numbers, and addresses have the right form; each number belongs to one sound device;
// only a sub-device has a parent; and a number is a verbs device only if its link says so.
func FuzzScan(f *testing.F) {
	for _, seed := range []string{
		"",
		classOne + "/node_guid=0000:0000:0000:0000",
		classOne + "/ports/1/state=4: ACTIVE\n" + classOne + "/ports/2/state=1: DOWN",
		oneHCA + "/node_guid=|",
		oneVerbs + "/dev=10:58",
		oneVerbs + "/ibdev=../../etc",
		classOne + "1=-> ../../../../outside\nsys/class/infiniband_verbs/uverbs1=-> /../outside",
		"sys/class/infiniband/loop=-> loop\nsys/class/infiniband/up=-> ../../..",
		"sys/class/infiniband_mad/umad1/dev=231:1\nsys/class/infiniband_mad/umad1/port=1\nsys/class/infiniband_mad/umad1/ibdev=mlx5_0",
		"dev/infiniband/uverbs0=-> ../../../outside/dev\n" + DeviceTable + "=/dev/infiniband/umad0 b 0666 0 0 231 0",
		DeviceTable + "=-> ../outside/dev",
		oneBus + "/net/ib9/dev_port=1\n" + oneBus + "/net/ib9/upper_bond0=-> ../../net/ib0\n" + oneBus +
			"/net/ib0/upper_ib9=-> ../ib9\n" + oneBus + "/net/ib9/uevent=DEVTYPE=bond",
		oneBus + "/net/ib0/upper_up=-> ../../../../../../../outside",
		oneHCA + "/ports/1/gids/0=fe80:0000:0000:0000:0000:0000:0000:0001\n" + oneHCA + "/ports/1/lid=0xffffffff",
		"sys/dev/char/231:192=-> uverbs7\nsys/dev/char/1:3=|",
		oneHCA + "/device=-> ../../../mlx5_core.sf.7\n" + oneBus + "/physfn=-> ../0000:5e:00.7",
		oneHCA + "/device=-> ../../../../../../../outside",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, changes string) {
		dir := scratch.Dir(t)
		root := filepath.Join(dir, "root")
		must.Succeed(t, os.Mkdir(root, 0o755))
		must.Succeed(t, outside().Write(dir))
		tree := one().Files()
		for line := range strings.Lines(changes) {
			if path, content, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "="); ok {
				tree.With(hcatest.Files{strings.TrimLeft(filepath.Clean("/"+path), "/"): content})
			}
		}
		for path, content := range tree {
			// This fails for names that no file system can store.
			_ = hcatest.Files{path: content}.Write(root)
		}
		node, err := ScanDetails(root)
		if err == nil {
			checkPromises(t, node)
		} else if strings.Contains(err.Error(), canary) {
			t.Errorf("read outside of the root: %v", err)
		}
		reader := NewReader(root)
		if listed, _, err := reader.List(); err == nil {
			for i, h := range listed.HCAs {
				listed.HCAs[i] = reader.Read(h, Parts{Devices: true, Management: true, Netdevs: true})
			}
			checkPromises(t, listed)
		}
		link := filepath.Join(root, "sys/dev/char", "231:192")
		d, verbs, err := VerbsByNumber(root, Number{231, 192})
		target, errLink := os.Readlink(link)
		if verbs && (err != nil || d.Kind != KindVerbs && d.Kind != KindHFI1 || d.Number != (Number{231, 192}) ||
			filepath.Base(d.Path) != filepath.Base(target)) {
			t.Errorf("231:192 is %+v, error %v, %v, link %q", d, err, errLink, target)
		}
	})
}

// outside returns files outside the root that could replace each file that Scan reads.
func outside() hcatest.Files {
	f := hcatest.Files{}
	for name, content := range map[string]string{
		"node_type": "1: " + canary, "node_guid": canary, "fw_ver": canary, "ibdev": canary, "dev": "77:77", "port": "1",
		"ports/1/state": "4: " + canary, "ports/1/gids/0": canary, "uevent": "DEVTYPE=bond\n", "numa_node": "77", "upper_" +
			canary + "/uevent": "DEVTYPE=bond\n",
	} {
		f["outside/"+name] = content
	}
	return f
}

func checkPromises(t *testing.T, node *Inventory) {
	text, err := json.Marshal(node)
	must.Succeed(t, err)
	if strings.Contains(string(text), canary) {
		t.Errorf("read outside of the root: %s", text)
	}
	var back Inventory
	if err := json.Unmarshal(text, &back); err != nil || !cmp.Equal(node, &back, withoutPlaces) {
		t.Errorf("JSON does not give the same node back: %v", err)
	}
	lines := [][]string{node.Problems}
	devices := []Device{}
	if node.RDMACM != nil {
		devices = append(devices, *node.RDMACM)
	}
	for i, h := range node.HCAs {
		if !validName(h.Name) || i > 0 && compareNatural(node.HCAs[i-1].Name, h.Name) >= 0 {
			t.Errorf("HCA %q is out of order or no name", h.Name)
		}
		if h.Parent != "" && !pciForm.MatchString(h.Parent) || h.PCI != "" && !pciForm.MatchString(h.PCI) ||
			h.NUMANode < -1 || h.NodeGUID != "" && !guidForm.MatchString(h.NodeGUID) {
			t.Errorf("HCA %+v", h)
		}
		if h.Unread != "" || h.Function == "" || h.Parent != "" && h.Function == FunctionPhysical || !printable(h.Driver) {
			t.Errorf("HCA %+v", h)
		}
		if usable, err := h.Usable(true); err == nil && (usable[0].Kind != KindVerbs || !usable[0].Sound()) {
			t.Errorf("usable devices %v of HCA %+v", usable, h)
		}
		for _, p := range h.Ports {
			for _, g := range p.GIDs {
				if g.Index < 0 || !gidForm.MatchString(g.GID) || !printable(g.Type) {
					t.Errorf("GID %+v", g)
				}
			}
			if p.Number < 1 || !printable(p.State+p.PhysState+p.LinkLayer+p.Rate) {
				t.Errorf("port %+v", p)
			}
			for _, netdev := range p.Netdevs {
				if !validNetdev(netdev) {
					t.Errorf("netdev %q", netdev)
				}
			}
		}
		devices = append(devices, h.Devices...)
		lines = append(lines, h.Problems)
	}
	sound := map[Number]Device{}
	for _, d := range devices {
		if other, twice := sound[d.Number]; twice && d.Sound() {
			t.Errorf("%+v and %+v have one number", other, d)
		}
		if kindOf(filepath.Base(d.Path)) != d.Kind || (filepath.Dir(d.Path) != DeviceDir) != (d.Kind == KindHFI1) ||
			d.Number == (Number{}) || d.Number == (Number{77, 77}) {
			t.Errorf("device %+v", d)
		}
		if d.Sound() {
			sound[d.Number] = d
		}
		if _, ok := node.Lookup(d.Number); !ok {
			t.Errorf("%s cannot be looked up", d)
		}
		lines = append(lines, []string{d.Problem})
	}
	for _, l := range lines {
		if len(l) > maxProblems+3 {
			t.Errorf("%d problems", len(l))
		}
		for _, line := range l {
			if strings.ContainsAny(line, "\n\x00\x1b") || len(line) > 400 {
				t.Errorf("problem %q", line)
			}
		}
	}
}
