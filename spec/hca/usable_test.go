// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"path"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/expect"
)

func TestUsable(t *testing.T) {
	const broken = "is a symbolic link, not a character device"
	link := func(files hcatest.Files, device string) hcatest.Files {
		return files.With(hcatest.Files{device: hcatest.Link("other")})
	}
	for name, test := range map[string]struct {
		files      hcatest.Files
		management bool
		want, err  string
	}{
		"verbs alone":   {files: one().Files(), want: "uverbs0"},
		"management":    {files: one().Files(), management: true, want: "uverbs0 umad0 issm0"},
		"a broken umad": {files: link(one().Files(), "dev/infiniband/umad0"), management: true, want: "uverbs0 issm0"},
		"no issm":       {files: hcatest.GB300Node().Files(), management: true, want: "uverbs0 umad0"},
		"broken verbs":  {files: link(one().Files(), "dev/infiniband/uverbs0"), err: broken},
		"no verbs": {files: one().Files().Without(oneVerbs, "sys/class/infiniband_verbs/uverbs0"),
			err: "to load the kernel module, run modprobe ib_uverbs"},
		"Omni-Path":            {files: hcatest.OmniPathNode().Files(), want: "uverbs0 hfi1_0"},
		"Omni-Path, broken":    {files: link(hcatest.OmniPathNode().Files(), "dev/hfi1_0"), err: broken},
		"Omni-Path, no module": {files: hcatest.OmniPathNode().Files().Without("sys/class/hfi1_user"), want: "uverbs0"},
		"EFA, management":      {files: hcatest.EFANode().Files(), management: true, want: "uverbs0"},
	} {
		devices, err := scan(t, test.files).HCAs[0].Usable(test.management)
		var names []string
		for _, d := range devices {
			names = append(names, path.Base(d.Path))
		}
		if diff := cmp.Diff(test.want, strings.Join(names, " ")); diff != "" || (err == nil) != (test.err == "") ||
			err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: error %v, want %q (-want +got):\n%s", name, err, test.err, diff)
		}
	}
}

func TestActiveHCAs(t *testing.T) {
	broken := one()
	broken.HCAs = append(broken.HCAs, hcatest.A100Node().HCAs[0])
	broken.HCAs[1].Name = "down"
	usable, leftOut := scan(t, broken.Files()).Active()
	if len(usable) != 1 || usable[0].Name == "down" {
		t.Errorf("usable: %+v", usable)
	}
	expect.Equal(t, "left out", []string{"HCA down is left out: the HCA has no ACTIVE port: to include it, request it by name"},
		leftOut)
	usable, leftOut = scan(t, one().Files().Without(oneVerbs, "sys/class/infiniband_verbs/uverbs0")).Active()
	if len(usable) != 0 || len(leftOut) != 1 || !strings.Contains(leftOut[0], "to load the kernel module, run modprobe ib_uverbs") {
		t.Errorf("without a verbs device: %+v, %q", usable, leftOut)
	}
}

func TestConnectionManager(t *testing.T) {
	sound := scan(t, hcatest.V100Node().Files())
	efa := scan(t, hcatest.EFANode().Files())
	missing := scan(t, hcatest.V100Node().Files().Without("sys/class/misc/rdma_cm"))
	broken := scan(t, hcatest.V100Node().Files().With(hcatest.Files{"dev/infiniband/rdma_cm/": ""}))
	for name, test := range map[string]struct {
		node *Inventory
		hcas []HCA
		ok   bool
		err  string
	}{
		"there is one":    {sound, sound.HCAs, true, ""},
		"EFA has none":    {efa, efa.HCAs, false, ""},
		"EFA and another": {efa, append(sound.HCAs[:1:1], efa.HCAs...), false, "to load the kernel module, run modprobe rdma_ucm"},
		"not loaded":      {missing, missing.HCAs, false, "to load the kernel module, run modprobe rdma_ucm"},
		"broken":          {broken, broken.HCAs, false, "/dev/infiniband/rdma_cm is a directory"},
		"broken, and EFA": {broken, efa.HCAs, false, ""},
	} {
		d, ok, err := test.node.ConnectionManager(test.hcas)
		if ok != test.ok || ok != (d.Kind == KindRDMACM) || (err == nil) != (test.err == "") || err != nil &&
			!strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: %+v, %v, error %v, want %v and %q", name, d, ok, err, test.ok, test.err)
		}
	}
}

// TestInventory_Identifies: a device plugin's ID identifies an HCA by the HCA's address, name, or verbs device.
func TestInventory_Identifies(t *testing.T) {
	node := &Inventory{HCAs: []HCA{
		{Name: "rxe0"},
		{Name: "mlx5_0", PCI: "0000:18:00.0", Devices: []Device{{Kind: KindVerbs, Path: "/dev/infiniband/uverbs0"}}},
	}}
	for id, want := range map[string]bool{
		"": false, "rxe0": true, "mlx5_0": true, "0000:18:00.0": true, "uverbs0": true, "uverbs1": false, ".": false,
	} {
		if got := node.Identifies(id); got != want {
			t.Errorf("%q: %t, want %t", id, got, want)
		}
	}
}
