// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

func TestPorts(t *testing.T) {
	const port = oneHCA + "/ports/1"
	sound := Port{Number: 1, State: "ACTIVE", PhysState: "LinkUp", LinkLayer: "InfiniBand", Rate: "100 Gb/sec (4X EDR)",
		Netdevs: []string{"ib0"}}
	with := func(change func(*Port)) []Port {
		p := sound
		change(&p)
		return []Port{p}
	}
	for _, tc := range []struct {
		name     string
		change   hcatest.Files
		without  string
		want     []Port
		problems []string
	}{
		{name: "as the kernel has it", want: []Port{sound}},
		{name: "initialising", change: hcatest.Files{port + "/state": "2: INIT\n",
			port + "/phys_state": "4: PortConfigurationTraining\n"},
			want: with(func(p *Port) { p.State, p.PhysState = "INIT", "PortConfigurationTraining" })},
		{name: "unknown to the kernel", change: hcatest.Files{port + "/phys_state": "9: <unknown>\n"},
			want: with(func(p *Port) { p.PhysState = "<unknown>" })},
		{name: "no rate", without: port + "/rate", want: with(func(p *Port) { p.Rate = "" })},
		{name: "no state", without: port + "/state", want: with(func(p *Port) { p.State = "" }),
			problems: []string{"ports/1/state: no such file or directory"}},
		{name: "empty state", change: hcatest.Files{port + "/state": "\n"}, want: with(func(p *Port) { p.State = "" }),
			problems: []string{"ports/1/state: is empty"}},
		{name: "state without code", change: hcatest.Files{port + "/state": "x: ACTIVE\n"},
			want:     with(func(p *Port) { p.State = "" }),
			problems: []string{`ports/1/state: is "x: ACTIVE", not of the form "4: ACTIVE"`}},
		{name: "no link layer", without: port + "/link_layer", want: with(func(p *Port) { p.LinkLayer = "" }),
			problems: []string{"ports/1/link_layer: no such file or directory"}},
		{name: "port is a file", change: hcatest.Files{port: ""}, want: []Port{{Number: 1, Netdevs: []string{"ib0"}}},
			problems: []string{"ports/1: not a directory"}},
		{name: "no ports", change: hcatest.Files{oneHCA + "/ports/": ""}, want: []Port{},
			problems: []string{"ports: there are none"}},
		{name: "odd numbers", change: hcatest.Files{oneHCA + "/ports/0/state": "", oneHCA + "/ports/01/state": "", oneHCA +
			"/ports/-1/state": "", oneHCA + "/ports/5000/state": ""},
			want: []Port{sound}, problems: []string{
				`ports: has an entry "-1", which is not a port number`, `ports: has an entry "0", which is not a port number`,
				`ports: has an entry "01", which is not a port number`, `ports: has an entry "5000", which is not a port number`}},
		{name: "kernel without gid_attrs", without: port + "/gid_attrs", want: []Port{sound}},
		{name: "netdevs that only GIDs name", change: hcatest.Files{port + "/gid_attrs/ndevs/0": "eth10\n"},
			want: []Port{sound}},
		{name: "no IPoIB", without: oneBus + "/net", want: with(func(p *Port) { p.Netdevs = []string{} })},
		{name: "Ethernet", change: hcatest.Files{port + "/link_layer": "Ethernet\n"},
			want: with(func(p *Port) { p.LinkLayer = "Ethernet" })},
		{name: "link layer of EFA", change: hcatest.Files{port + "/link_layer": "Unknown\n"},
			want: with(func(p *Port) { p.LinkLayer = "Unknown" })},
		{name: "representor of another function", change: hcatest.Files{oneBus + "/net/ib0_0/phys_port_name": "c1pf0vf3\n",
			oneBus + "/net/ib0/phys_port_name": "p0\n"}, want: []Port{sound}},
		{name: "odd netdev", change: hcatest.Files{oneBus + "/net/sixteen-letters0/dev_port": "0\n"}, want: []Port{sound},
			problems: []string{classOne + `/device/net: has "sixteen-letters0", which is not a name of a netdev`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := one().Files()
			if tc.without != "" {
				f.Without(tc.without)
			}
			h := scanOne(t, f.With(tc.change))
			if diff := cmp.Diff(tc.want, h.Ports); diff != "" {
				t.Errorf("ports (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.problems, h.Problems); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

// TestTwoPorts is a ConnectX-3: one PCI function with two ports.
func TestTwoPorts(t *testing.T) {
	n := hcatest.Node{HCAs: []hcatest.HCA{{Name: "mlx4_0", PCI: onePCI, Ports: []hcatest.Port{{Netdevs: []string{"ib0"}},
		{Netdevs: []string{"ib1", "ib1.8001"}}}}}}
	const net = oneBus + "/net/"
	for _, tc := range []struct {
		name   string
		change hcatest.Files
		want   [][]string
	}{
		{"by dev_port", nil, [][]string{{"ib0"}, {"ib1", "ib1.8001"}}},
		{"unreadable dev_port counts as the first", hcatest.Files{net + "ib1/dev_port": "x\n", net + "ib1.8001/": "",
			net + "ib9": ""}, [][]string{{"ib0", "ib1", "ib1.8001", "ib9"}, {}}},
		{"dev_port of no port", hcatest.Files{net + "ib1/dev_port": "7\n"}, [][]string{{"ib0"}, {"ib1.8001"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := scan(t, n.Files().With(tc.change)).HCAs[0]
			var got [][]string
			for _, p := range h.Ports {
				got = append(got, p.Netdevs)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("netdevs of the ports (-want +got):\n%s", diff)
			}
			var paths []string
			for _, d := range h.Devices {
				paths = append(paths, d.Path)
			}
			want := []string{"/dev/infiniband/uverbs0", "/dev/infiniband/umad0", "/dev/infiniband/umad1",
				"/dev/infiniband/issm0", "/dev/infiniband/issm1"}
			if diff := cmp.Diff(want, paths); diff != "" {
				t.Errorf("devices (-want +got):\n%s", diff)
			}
			if h.Devices[2].Port != 2 || h.Devices[3].Port != 1 {
				t.Errorf("umad1 is on port %d, issm0 on port %d", h.Devices[2].Port, h.Devices[3].Port)
			}
		})
	}
}

// erdma's netdev is another card's, and a bond's HCA has the netdevs of all its cards that have no HCA of their own.
func TestNetdevsElsewhere(t *testing.T) {
	const bond, second = "sys/devices/virtual/net/bond0", "sys/devices/pci0000:60/0000:60:00.0"
	bonded := hcatest.Node{HCAs: []hcatest.HCA{{Name: "mlx5_0", PCI: onePCI, Ports: []hcatest.Port{{LinkLayer: "Ethernet",
		Netdevs: []string{"eth0"}, Stacked: []hcatest.Netdev{{Name: "bond0", Kind: "bond"}}}}}}}
	slave := hcatest.Files{
		bond + "/lower_eth1":           hcatest.Link("../../../pci0000:60/0000:60:00.0/net/eth1"),
		second + "/net/eth1/device":    hcatest.Link("../../../0000:60:00.0"),
		second + "/net/eth1/operstate": "down\n",
	}
	erdma := hcatest.Node{HCAs: []hcatest.HCA{{Name: "mlx5_0", PCI: onePCI, GUID: "0216:3eff:fe01:0203",
		Ports: []hcatest.Port{{LinkLayer: "Ethernet"}}}}}
	for name, test := range map[string]struct {
		files hcatest.Files
		want  []string
	}{
		"the second card has no HCA": {bonded.Files().With(slave), []string{"bond0", "eth0", "eth1"}},
		"the second card has its own": {bonded.Files().With(slave).With(hcatest.Files{second + "/infiniband/mlx5_1/x": ""}),
			[]string{"bond0", "eth0"}},
		"erdma": {erdma.Files().With(hcatest.Files{"sys/class/net/eth0/address": "00:16:3e:01:02:03\n",
			"sys/class/net/eth1/address": "00:16:3e:01:02:04\n"}), []string{"eth0"}},
	} {
		if h := scanOne(t, test.files); !slices.Equal(h.Ports[0].Netdevs, test.want) || h.Problems != nil {
			t.Errorf("%s: %q, %q", name, h.Ports[0].Netdevs, h.Problems)
		}
	}
}
