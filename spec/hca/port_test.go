// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/expect"
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
			problems: []string{"ports/1/state: the attribute is empty"}},
		{name: "state without code", change: hcatest.Files{port + "/state": "x: ACTIVE\n"},
			want:     with(func(p *Port) { p.State = "" }),
			problems: []string{`ports/1/state: "x: ACTIVE" does not have the form "4: ACTIVE"`}},
		{name: "no link layer", without: port + "/link_layer", want: with(func(p *Port) { p.LinkLayer = "" }),
			problems: []string{"ports/1/link_layer: no such file or directory"}},
		{name: "port is a file", change: hcatest.Files{port: ""}, want: []Port{{Number: 1, Netdevs: []string{"ib0"}}},
			problems: []string{"ports/1: not a directory"}},
		{name: "no ports", change: hcatest.Files{oneHCA + "/ports/": ""}, want: []Port{},
			problems: []string{"ports: no ports found"}},
		{name: "odd numbers", change: hcatest.Files{oneHCA + "/ports/0/state": "", oneHCA + "/ports/01/state": "", oneHCA +
			"/ports/-1/state": "", oneHCA + "/ports/5000/state": ""},
			want: []Port{sound}, problems: []string{
				`ports: the entry "-1" is not a port number`, `ports: the entry "0" is not a port number`,
				`ports: the entry "01" is not a port number`, `ports: the entry "5000" is not a port number`}},
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
		{name: "representor of an E810's function", change: hcatest.Files{oneBus + "/net/ib0_0/phys_port_name": "pf0vfr3\n"},
			want: []Port{sound}},
		{name: "odd netdev", change: hcatest.Files{oneBus + "/net/sixteen-letters0/dev_port": "0\n"}, want: []Port{sound},
			problems: []string{classOne + `/device/net contains "sixteen-letters0", which is not a netdev name`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := one().Files()
			if tc.without != "" {
				f.Without(tc.without)
			}
			h := scanOne(t, f.With(tc.change))
			expect.Equal(t, "ports", tc.want, h.Ports)
			expect.Equal(t, "problems", tc.problems, h.Problems)
		})
	}
}

// A port's netdevs are those of the HCA's device that have the port's dev_port. With erdma, they are those of another
// card. A bond's HCA has those of all its cards that have no HCA of their own. If several netdevs are possible, the
// port's GID table decides.
func TestNetdevs(t *testing.T) {
	const (
		net, bond, second = oneBus + "/net/", "sys/devices/virtual/net/bond0", "sys/devices/pci0000:60/0000:60:00.0"
		table             = oneBus + "/infiniband/mlx5_0/ports/%d/gid_attrs/ndevs/%d"
	)
	with := func(files hcatest.Files, ports ...hcatest.Port) hcatest.Files {
		return hcatest.Node{HCAs: []hcatest.HCA{{Name: "mlx5_0", PCI: onePCI, GUID: "0216:3eff:fe01:0203",
			Driver: "mlx5_core", Ports: ports}}}.Files().With(files)
	}
	two := func(change hcatest.Files) hcatest.Files {
		return with(change, hcatest.Port{Netdevs: []string{"ib0"}}, hcatest.Port{Netdevs: []string{"ib1", "ib1.8001"}})
	}
	bonded := func(change hcatest.Files) hcatest.Files {
		return with(hcatest.Files{
			bond + "/lower_eth1":           hcatest.Link("../../../pci0000:60/0000:60:00.0/net/eth1"),
			second + "/net/eth1/device":    hcatest.Link("../../../0000:60:00.0"),
			second + "/net/eth1/operstate": "down\n",
		}, hcatest.Port{LinkLayer: "Ethernet", Netdevs: []string{"eth0"}, Stacked: []hcatest.Netdev{{Name: "bond0",
			Kind: "bond"}}}).With(change)
	}
	// planes is a card with four ports. Each port has a netdev of its own PCI function, and all have dev_port 0.
	planes := func(change hcatest.Files) hcatest.Files {
		var ports []hcatest.Port
		functions := hcatest.Files{}
		for i := range 4 {
			ports = append(ports, hcatest.Port{LinkLayer: "Ethernet", Foreign: []string{fmt.Sprintf("eth%d", i)}})
			functions[fmt.Sprintf("%s%d/net/eth%[2]d/dev_port", oneBus[:len(oneBus)-1], i)] = "0\n"
		}
		return with(functions, ports...).With(change)
	}
	for name, test := range map[string]struct {
		files         hcatest.Files
		want, problem string // want lists the netdevs of each port
	}{
		"unreadable dev_port counts as the first": {two(hcatest.Files{net + "ib1/dev_port": "x\n", net + "ib1.8001/": "",
			net + "ib9": ""}), "[ib0 ib1 ib1.8001 ib9] []", classOne + "/device/net/ib9: not a directory"},
		"dev_port of no port":         {two(hcatest.Files{net + "ib1/dev_port": "7\n"}), "[ib0] [ib1.8001]", ""},
		"the second card has no HCA":  {bonded(nil), "[bond0 eth0 eth1]", ""},
		"the second card has its own": {bonded(hcatest.Files{second + "/infiniband/mlx5_1/x": ""}), "[bond0 eth0]", ""},
		"erdma": {with(hcatest.Files{"sys/class/net/eth0/address": "00:16:3e:01:02:03\n",
			"sys/class/net/eth1/address": "00:16:3e:01:02:04\n"}, hcatest.Port{LinkLayer: "Ethernet"}), "[eth0]", ""},
		"PVRDMA": {hcatest.Node{HCAs: []hcatest.HCA{{Name: "mlx5_0", PCI: onePCI[:len(onePCI)-1] + "1", Driver: "vmw_pvrdma",
			Ports: []hcatest.Port{{LinkLayer: "Ethernet", Foreign: []string{"ens192"}}}}}}.Files().With(hcatest.Files{
			net + "ens192/dev_port": "0\n"}), "[ens192]", ""},
		"a netdev in a pod, called as that of a function without an HCA": {with(hcatest.Files{
			oneBus[:len(oneBus)-1] + "1/net/ens192/dev_port": "0\n"}, hcatest.Port{LinkLayer: "Ethernet",
			Foreign: []string{"ens192"}}), "[]", ""},
		"planes": {planes(nil), "[eth0] [eth1] [eth2] [eth3]", ""},
		"a pod's macvlan that is called as another port's netdev": {planes(hcatest.Files{fmt.Sprintf(table, 1, 2): "eth3\n"}),
			"[eth0] [eth1] [eth2] [eth3]", ""},
		"a netdev in a pod": {planes(hcatest.Files{fmt.Sprintf(table, 2, 0): "net1\n", fmt.Sprintf(table, 2, 1): "net1\n"}),
			"[eth0] [] [eth2] [eth3]", ""},
		"another card's netdev": {planes(hcatest.Files{"sys/devices/pci0000:5e/0000:5e:01.0/net/eth9/dev_port": "0\n",
			fmt.Sprintf(table, 4, 0): "eth9\n", fmt.Sprintf(table, 4, 1): "eth9\n"}), "[eth0] [eth1] [eth2] []", ""},
		"a function with an HCA of its own": {planes(hcatest.Files{oneBus[:len(oneBus)-1] + "3/infiniband/mlx5_3/x": ""}),
			"[eth0] [eth1] [eth2] []", ""},
	} {
		h := scanOne(t, test.files)
		var got []string
		for _, p := range h.Ports {
			got = append(got, fmt.Sprint(p.Netdevs))
		}
		if got := strings.Join(got, " "); got != test.want || strings.Join(h.Problems, "\n") != test.problem {
			t.Errorf("%s: %s, want %s; problems %q, want %q", name, got, test.want, h.Problems, test.problem)
		}
	}
}
