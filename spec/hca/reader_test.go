// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/expect"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
)

// TestReader: on each node, a reader that reads all parts on which a decision depends returns the same as Scan.
func TestReader(t *testing.T) {
	for name, root := range hcatest.All {
		t.Run(name, func(t *testing.T) {
			root := root(t)
			want, err := Scan(root)
			must.Succeed(t, err)
			r := NewReader(root)
			listed, _, err := r.List()
			must.Succeed(t, err)
			if diff := cmp.Diff(want.RDMACM, listed.RDMACM, withoutPlaces); diff != "" || listed.NetNSExclusive != want.NetNSExclusive {
				t.Errorf("rdma_cm (-Scan +List):\n%s", diff)
			}
			got := map[string]HCA{}
			for _, h := range listed.HCAs {
				if _, err := h.Usable(false); err == nil {
					t.Errorf("%s was not read, and is usable", h.Name)
				}
				got[h.Name] = r.Read(h, Parts{Devices: true, Management: true, Netdevs: true})
			}
			for _, h := range want.HCAs {
				if h.NodeType == "" && len(h.Ports) == 0 {
					h.Devices, h.Unlisted = []Device{}, listed.HCAs[0].Unlisted // it cannot be read at all
				}
				h.Firmware, h.Driver = "", ""
				for i := range h.Ports {
					h.Ports[i].PhysState, h.Ports[i].Rate = "", ""
				}
				expect.Equal(t, "Read of "+h.Name, h, got[h.Name], withoutPlaces, cmpopts.IgnoreFields(HCA{}, "Problems"))
			}
		})
	}
}

// TestReaderPlaces: a device's place is the target of its number's link, if its HCA is the only one in its place.
func TestReaderPlaces(t *testing.T) {
	for _, node := range []hcatest.Node{hcatest.V100Node(), hcatest.SRIOVNode(), hcatest.ScalableNode(),
		hcatest.OmniPathNode(), hcatest.GB300Node()} {
		root := node.Files().Root(t)
		r := NewReader(root)
		listed, _, err := r.List()
		must.Succeed(t, err)
		for _, h := range listed.HCAs {
			for _, d := range r.Read(h, Parts{Devices: true, Management: true}).Devices {
				link, err := os.Readlink(filepath.Join(root, "sys/dev/char", d.Number.String()))
				if err != nil || d.Place != link || d.Place == "" {
					t.Errorf("%s has the place %q, and its number leads to %q: %v", d, d.Place, link, err)
				}
			}
		}
	}
}

// TestReaderListsAgain: a reader identifies an HCA by its place, so it does not confuse the HCA with another one that
// gets the same name.
func TestReaderListsAgain(t *testing.T) {
	root := hcatest.SRIOVNode().Files().Root(t)
	r := NewReader(root)
	functions := func(wantChanged bool) map[string]string {
		t.Helper()
		node, changed, err := r.List()
		must.Succeed(t, err)
		if changed != wantChanged {
			t.Errorf("HCAs have changed: %t, want %t", changed, wantChanged)
		}
		all := map[string]string{}
		for _, h := range node.HCAs {
			all[h.Name] = fmt.Sprint(h.Function, " ", h.PCI, " ", h.Parent)
		}
		return all
	}
	want := map[string]string{"mlx5_0": "physical 0000:3b:00.0 ", "mlx5_1": "virtual 0000:3b:00.1 0000:3b:00.0",
		"mlx5_2": "virtual 0000:3b:00.2 0000:3b:00.0", "mlx5_3": "virtual 0000:3b:00.3 0000:3b:00.0"}
	for _, first := range []bool{true, false} {
		expect.Equal(t, "functions", want, functions(first))
	}
	class := filepath.Join(root, "sys/class/infiniband")
	for _, names := range [][2]string{{"mlx5_0", "a"}, {"mlx5_1", "mlx5_0"}, {"a", "mlx5_1"}} {
		must.Succeed(t, os.Rename(filepath.Join(class, names[0]), filepath.Join(class, names[1])))
	}
	want["mlx5_0"], want["mlx5_1"] = want["mlx5_1"], want["mlx5_0"]
	expect.Equal(t, "functions under other names", want, functions(true))
}
