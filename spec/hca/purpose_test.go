// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"testing"

	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/expect"
)

// TestPurpose: the node type alone does not determine an HCA's purpose.
func TestPurpose(t *testing.T) {
	for name, test := range map[string]struct {
		hca  hcatest.HCA
		want Purpose
	}{
		"ConnectX":                  {hcatest.HCA{Name: "mlx5_0", Driver: "mlx5_core"}, PurposeRDMA},
		"EFA":                       {hcatest.HCA{Name: "rdmap16s27", Driver: "efa", NodeType: "7: unspecified"}, PurposeEFA},
		"EFA in a copy":             {hcatest.HCA{Name: "efa_0", NodeType: "7: unspecified", GUID: zeroGUID}, PurposeEFA},
		"Gaudi":                     {hcatest.HCA{Name: "hlib_0", Driver: "habanalabs", NodeType: "7: unspecified"}, PurposeRDMA},
		"a function without a GUID": {hcatest.HCA{Name: "mlx5_0", Driver: "mlx5_core", GUID: zeroGUID}, PurposeRDMA},
		"MANA":                      {hcatest.HCA{Name: "mana_0", Driver: "mana"}, PurposeRDMA},
		"MANA's Ethernet":           {hcatest.HCA{Name: "manae_0", Driver: "mana", GUID: zeroGUID}, PurposeRawPackets},
		"ConnectX in switchdev mode": {hcatest.HCA{Name: "mlx5_0", Driver: "mlx5_core", Ports: []hcatest.Port{
			{LinkLayer: "Ethernet", RawPackets: true}}}, PurposeRawPackets},
		"ConnectX with empty places for GIDs": {hcatest.HCA{Name: "mlx5_0", Driver: "mlx5_core", Ports: []hcatest.Port{
			{LinkLayer: "Ethernet", State: "1: DOWN"}}}, PurposeRDMA},
		"iWARP without places for GIDs": {hcatest.HCA{Name: "iw0", Driver: "irdma", NodeType: "4: RNIC",
			Ports: []hcatest.Port{{LinkLayer: "Ethernet", RawPackets: true}}}, PurposeRDMA},
	} {
		test.hca.PCI = onePCI
		if test.hca.Ports == nil {
			test.hca.Ports = []hcatest.Port{{LinkLayer: "Ethernet"}}
		}
		h := scan(t, hcatest.Node{HCAs: []hcatest.HCA{test.hca}}.Files()).HCAs[0]
		if got := h.Purpose(); got != test.want || h.ForPrograms() != (test.want == PurposeRDMA || test.want == PurposeEFA) {
			t.Errorf("%s is for %s, want %s", name, got, test.want)
		}
	}
}

// A sub-device is part of the HCA with the same PCI function, whichever is listed first, and Active omits it.
func TestNameSubDevices(t *testing.T) {
	for _, name := range []string{"a_smi", "smi1"} {
		f := hcatest.Node{HCAs: []hcatest.HCA{
			{Name: "ibp8s0", PCI: onePCI, Driver: "mlx5_core", Ports: []hcatest.Port{{}}},
			{Name: name, PCI: onePCI, Driver: "mlx5_core", Ports: []hcatest.Port{{}, {}}},
		}}.Files().Without("sys/class/infiniband_verbs/uverbs1", oneBus+"/infiniband_verbs/uverbs1")
		node := scan(t, f)
		h, _ := node.Find(name)
		usable, _ := node.Active()
		if h.Manages != "the planes of ibp8s0" || h.Purpose() != PurposeManagement || len(usable) != 1 {
			t.Errorf("%s manages %q, usable %d", name, h.Manages, len(usable))
		}
	}
}

// The commands are the vendor's, or the kernel's if the vendor's are not known.
func TestTools(t *testing.T) {
	with := Port{Number: 2, Netdevs: []string{"eth7"}}
	for driver, want := range map[string]Tools{
		"mlx5_core": {Link: "mlxlink -d 0000:5e:00.0 -p 2", Errors: "mlxlink -d 0000:5e:00.0 -c",
			Module: "mlxlink -d 0000:5e:00.0 -m", Heat: "mget_temp -d 0000:5e:00.0",
			Firmware: "mlxfwmanager -d 0000:5e:00.0 -u -i FILE", Reset: "mlxfwreset -d 0000:5e:00.0 reset"},
		"bnxt_re": {Link: "ethtool eth7", Errors: "ethtool -S eth7", Module: "ethtool -m eth7",
			Firmware: "devlink dev flash pci/0000:5e:00.0 file FILE"},
		"hfi1":  {Link: "opainfo", Errors: "opainfo", Module: "opainfo"},
		"hns3":  {Link: "ip link show eth7", Errors: "ip link show eth7", Module: "ip link show eth7"},
		"irdma": {Link: "ethtool eth7", Errors: "ethtool -S eth7", Module: "ethtool -m eth7", Firmware: "nvmupdate64e"},
	} {
		expect.Equal(t, driver, want, HCA{Name: "x0", Driver: driver, PCI: "0000:5e:00.0"}.Tools(with))
	}
	if got := (HCA{Name: "efa_0", Driver: "efa"}).Tools(Port{Number: 1}).Link; got != "rdma link show efa_0/1" {
		t.Error(got)
	}
}

func TestAccelerator(t *testing.T) {
	for _, test := range []struct {
		class, driver string
		want          bool
	}{
		{"0x030200", "nvidia", true}, {"0x120000", "amdgpu", true}, {"0x120000", "habanalabs", true},
		{"0x030200", "vfio-pci", false}, {"0x030000", "ast", false}, {"0x040300", "nvidia", false},
	} {
		if Accelerator(test.class, test.driver) != test.want {
			t.Errorf("%+v", test)
		}
	}
	for _, test := range []struct {
		class, driver string
		want          bool
	}{
		{"0x038000", "xe", true}, {"0x120000", "qaic", true}, {"0x030200", "nouveau", true}, {"0x120000", "amdgpu", false},
		{"0x038000", "vfio-pci", false}, {"0x038000", "virtio-pci", false}, {"0x030000", "i915", false},
	} {
		if OtherAccelerator(test.class, test.driver) != test.want {
			t.Errorf("other: %+v", test)
		}
	}
}
