// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package planted

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
)

// accelerators are those of a driver, of PCI class 0x12, each with an IOMMU group of that type.
func accelerators(count int, driver, vendor, group string) (all []hcatest.PCI) {
	for i := range count {
		all = append(all, hcatest.PCI{Address: fmt.Sprintf("0000:%02x:00.0", 0x13+8*i), Driver: driver,
			Files: hcatest.Files{"class": "0x120000\n", "vendor": vendor + "\n", "iommu_group/type": group + "\n"}})
	}
	return all
}

// inPlanes are HCAs of ConnectX-8 on Ethernet with four ports each: each port is a plane, whose netdev is below a PCI
// function of its own, and all have dev_port 0. Only the first planes of them have a cable.
func inPlanes(cabled int) hcatest.Files {
	var n hcatest.Node
	planes := hcatest.Files{}
	for i := range 2 {
		h := hcatest.HCA{Name: fmt.Sprintf("mlx5_%d", i), PCI: fmt.Sprintf("0000:%02x:00.0", 0x10+8*i), Driver: "mlx5_core",
			Firmware: "40.45.1020", Board: "NVD0000000042", NoISSM: true}
		for plane := range 4 {
			name := fmt.Sprintf("eth%d", 4*i+plane)
			p := eth("200 Gb/sec (2X NDR)")
			if plane >= cabled {
				p.State, p.PhysState = disabled.State, disabled.PhysState
			}
			p.Foreign = []string{name}
			h.Ports = append(h.Ports, p)
			at := fmt.Sprintf("sys/devices/pci0000:%02x/0000:%02[1]x:00.%d/net/%s", 0x10+8*i, plane, name)
			planes.With(hcatest.Files{at + "/dev_port": "0\n", at + "/flags": "0x1003\n", at + "/mtu": "4200\n",
				at + "/uevent": "INTERFACE=" + name + "\n", "sys/class/net/" + name: hcatest.Link("../../" + at[len("sys/"):])})
		}
		n.HCAs = append(n.HCAs, h)
	}
	return n.Files().With(planes)
}

// named gives HCAs a prefix, and a driver.
func named(prefix, driver string, all []hcatest.HCA) []hcatest.HCA {
	return with(all, func(i int, h *hcatest.HCA) {
		h.Name, h.Driver, h.Board = fmt.Sprintf("%s%d", prefix, i), driver, ""
	})
}

// inForce are answers of a node whose plugin runs, and resources those of a kubelet that has RDMA to give.
var (
	inForce = hcatest.Files{node.AnswersDir + "/plugin.json": `{"answer": {"processes": [{"name": "nri-rdma", "pid": 7}], ` +
		`"policy": {"exists": true, "lives": true}}}`}
	resources = hcatest.Files{node.AnswersDir + "/kubelet.json": `{"answer": {"pid": 9, "root": "/var/lib/kubelet", ` +
		`"devicePlugins": true, "podResources": true, "allocatable": {"rdma/hca": 8}}}`}
	noLog = hcatest.Files{node.AnswersDir + "/kernel-log.json": `{"error": "open /dev/kmsg: operation not permitted"}`}
)

const (
	gb300Planes, mi300x, gaudi, opa = "GB300 on Ethernet, each ConnectX-8 with four planes",
		"MI300X with eight BCM57608", "Gaudi 2 with its own network", "Omni-Path, one of two ports without a cable"
	b200           = "B200 on InfiniBand with two BlueField-3"
	b200NVSwitches = "HGX B200, whose NVSwitches are managed by HCAs"
)

// kinds are nodes that work, of hardware that is told from other hardware by its driver, or by what the kernel says.
var kinds = []known{
	{gb300Planes, "https://docs.nvidia.com/networking/display/connectx8: planes as functions; the addresses, that all planes " +
		"are ACTIVE, and the rest, are filled in", hcatest.Node{}, inPlanes(4)},
	{"ConnectX-8 with four planes, one of which has a cable", "as before; that three planes have none is filled in",
		hcatest.Node{}, inPlanes(1)},
	{"B300 on Ethernet, ConnectX-8 of twelve ports, four of which have planes", "https://github.com/scitix/sichek/pull/98: 12 ports " +
		"of each HCA, the data on 3, 6, 9 and 12 (eth_rX_p0 to p3); that the netdevs are below one function is filled in",
		hcatest.Node{HCAs: with(rails("NVD0000000042", 0, 8, ib(ndr)), func(i int, h *hcatest.HCA) {
			h.Ports = slices.Repeat([]hcatest.Port{{State: disabled.State, PhysState: disabled.PhysState, LinkLayer: "Ethernet"}}, 12)
			for plane := range 4 {
				h.Ports[3*plane+2] = eth("200 Gb/sec (2X NDR)")
				h.Ports[3*plane+2].Netdevs = []string{fmt.Sprintf("eth_r%d_p%d", i, plane)}
			}
		}), PCI: gpusOf(8)}, driver(open580).With(resources)},
	{"GB200 with four ConnectX-7 and issm", "https://github.com/NVIDIA/NVSentinel/issues/1716; the rest is filled in",
		nodeOf(with(rails(ocp, 0, 4, ib(ndr)), func(i int, h *hcatest.HCA) { h.NUMA = i / 2 })), nil},
	{b200, "https://github.com/siderolabs/extensions/issues/893: ConnectX-7; the BlueField-3, and the rest, are filled in",
		hcatest.Node{HCAs: slices.Concat(rails(ocp, 0, 8, ib(ndr)), rails("MT_0000000884", 8, 2, eth(hdr))), PCI: gpusOf(8)},
		driver(open580)},
	{"B300, eight ConnectX-8, and ports of the board that nobody cabled, with the plugin",
		"all filled in: an onboard port beside rails", hcatest.Node{HCAs: slices.Concat(rails("NVD0000000042", 0, 8,
			ib("800 Gb/sec (4X XDR)")), rails("MT_0000000359", 8, 2, disabled)), PCI: gpusOf(8)}, driver(open580).With(resources)},
	{mi300x, "https://github.com/torvalds/linux drivers/gpu/drm/amd/amdgpu: 1002:74a1 of class 0x120000; the rest is filled in",
		hcatest.Node{HCAs: with(named("bnxt_re", "bnxt_en", rails("", 0, 8, eth(ndr))), broadcom),
			PCI: accelerators(8, "amdgpu", "0x1002", "identity")}, resources},
	{gaudi, "https://github.com/HabanaAI/drivers.infiniband.hw.hl: node type unspecified, 1da3:1020 of class 0x120000; " +
		"the states and GUIDs are filled in", hcatest.Node{NoRDMACM: true, HCAs: with(rails("", 0, 8, eth("100 Gb/sec (4X EDR)")),
		func(i int, h *hcatest.HCA) {
			h.Name, h.Driver, h.NodeType, h.NoMAD, h.PCI = fmt.Sprintf("hlib_%d", i), "habanalabs", "7: unspecified", true,
				fmt.Sprintf("0000:%02x:00.0", 0x13+8*i)
			h.Files = hcatest.Files{"class": "0x120000\n", "vendor": "0x1da3\n", "iommu_group/type": "identity\n"}
		})}, hcatest.Files{"proc/meminfo": "MemTotal: 1056000000 kB\nHugePages_Total: 0\n"}},
	{"P5 with EFA and GPUs", "https://github.com/torvalds/linux drivers/infiniband/hw/efa; the count of GPUs is filled in",
		hcatest.Node{NoRDMACM: true, HCAs: hcatest.EFANode().HCAs, PCI: gpusOf(2)}, driver(open580)},
	{"Azure with both devices of MANA", "https://github.com/torvalds/linux drivers/infiniband/hw/mana/device.c: mana_0 and " +
		"manae_0 of one function; the GUID of mana_0, and the rest, are filled in",
		nodeOf(with(slices.Concat(rails("", 0, 1, eth(hdr)), rails("", 0, 1, hcatest.Port{LinkLayer: "Ethernet", Rate: hdr})),
			func(i int, h *hcatest.HCA) {
				h.Name, h.Driver, h.NoMAD = []string{"mana_0", "manae_0"}[i], "mana", true
				h.GUID = []string{"7c1e:52ff:fe00:0001", "0000:0000:0000:0000"}[i]
			})), nil},
	{opa, "https://github.com/torvalds/linux drivers/infiniband/hw/hfi1/verbs.c; that a port has no cable is filled in",
		nodeOf(named("hfi1_", "hfi1", rails("", 0, 1, ib(edr))), with(rails("", 1, 1, polling), func(_ int, h *hcatest.HCA) {
			h.Name, h.Driver, h.Board = "hfi1_1", "hfi1", ""
		})), nil},
	{"guest with virtual functions alone, and the plugin", "https://github.com/Azure/azhpc-diagnostics/issues/59; the plugin " +
		"is filled in", nodeOf(rails("MT_0000000010", 0, 8, ib(hdr))), resources},
	{"host that gives its cards to virtual machines", "all filled in: an HCA and a GPU with vfio-pci beside an HCA of its own",
		hcatest.Node{HCAs: rails(ocp, 0, 1, ib(ndr)), PCI: []hcatest.PCI{
			{Address: "0000:60:00.0", Driver: "vfio-pci", Files: hcatest.Files{"class": "0x020700\n", "vendor": "0x15b3\n",
				"device": "0x1021\n", "iommu_group/type": "DMA-FQ\n"}},
			{Address: "0000:61:00.0", Driver: "vfio-pci", Files: hcatest.Files{"class": "0x030200\n", "vendor": "0x10de\n",
				"iommu_group/type": "DMA-FQ\n"}}}}, nil},
	{"bond that has lost one of its two links", "https://docs.kernel.org/networking/bonding.html: the bond goes on; the node " +
		"is filled in", hcatest.Node{HCAs: []hcatest.HCA{{Name: "mlx5_bond_0", PCI: "0000:99:00.0", Driver: "mlx5_core",
		Ports: []hcatest.Port{{LinkLayer: "Ethernet", Rate: "25 Gb/sec (1X EDR)", Netdevs: []string{"ens1f0"},
			Stacked: []hcatest.Netdev{{Name: "bond0", Kind: "bond"}}}}}}}, resources.With(hcatest.Files{
		"sys/devices/pci0000:99/0000:99:00.1/net/ens1f1/bonding_slave/state": "BACKUP\n",
		"sys/devices/pci0000:99/0000:99:00.1/net/ens1f1/carrier":             "0\n"})},
	{"exclusive mode, as rdma-cni needs it", "all filled in: an HCA of the node, and one in a pod", hcatest.Node{},
		exclusive()},
}

// sickKind is a node of a kind that has fallen sick: want counts what each check finds wrong, or unknown.
type sickKind struct {
	name, of string
	with     hcatest.Files
	without  []string
	want     map[string]int // "port-active wrong": 8
}

// darkRails is a change of all ports of so many rails, from the first on.
func darkRails(first, count int, state, phys string) hcatest.Files {
	f := hcatest.Files{}
	for i := first; i < first+count; i++ {
		_, at := rail(i)
		f[at+"/state"], f[at+"/phys_state"] = state+"\n", phys+"\n"
	}
	return f
}

// darkBroadcoms is that of the HCAs of mi300x.
func darkBroadcoms(first, count int) hcatest.Files {
	f := hcatest.Files{}
	for i := first; i < first+count; i++ {
		at := hcatest.Dir(fmt.Sprintf("bnxt_re%d", i), fmt.Sprintf("0000:%02x:00.0", 0x10+8*i)) + "/ports/1/"
		f[at+"state"], f[at+"phys_state"] = "1: DOWN\n", "3: Disabled\n"
	}
	return f
}

const withoutLog = "hca-errors unknown"

var sickKinds = []sickKind{
	// What the device is.
	{"an IOMMU before MI300X", mi300x, hcatest.Files{"sys/devices/pci0000:13/0000:13:00.0/iommu_group/type": "DMA-FQ\n"}, nil,
		map[string]int{"iommu wrong": 1}},
	{"an IOMMU before Gaudi", gaudi, hcatest.Files{"sys/devices/pci0000:13/0000:13:00.0/iommu_group/type": "DMA\n"}.With(
		resources), nil, map[string]int{"iommu wrong": 1}},
	{"a Broadcom that has lost its link", mi300x, darkBroadcoms(2, 1).With(hcatest.Files{
		"sys/devices/pci0000:20/0000:20:00.0/net/eth2/carrier_up_count": "1\n"}), nil, map[string]int{"port-active wrong": 1}},
	{"firmware of a Broadcom that failed", mi300x, logged("60 bnxt_en 0000:20:00.0 eth2: Detected firmware fatal condition, " +
		"initiating reset"), nil, map[string]int{"hca-errors wrong": 1}},
	{"a plane that has lost its link", gb300Planes, hcatest.Files{
		hcatest.Dir("mlx5_0", "0000:10:00.0") + "/ports/3/state":      "1: DOWN\n",
		hcatest.Dir("mlx5_0", "0000:10:00.0") + "/ports/3/phys_state": "3: Disabled\n"}.With(route("eth2")), nil,
		map[string]int{"port-active wrong": 1}},
	{"an Omni-Path port without a fabric manager", opa, hcatest.Files{
		hcatest.Dir("hfi1_0", "0000:10:00.0") + "/ports/1/state": "2: INIT\n"}, nil, map[string]int{"port-active wrong": 1}},
	{"an Omni-Path port that has lost its link", opa, hcatest.Files{
		hcatest.Dir("hfi1_1", "0000:18:00.0") + "/ports/1/counters/link_downed": "1\n"}, nil,
		map[string]int{"port-active wrong": 1}},
	// No evidence.
	{"all rails polling, on a node without software", b200, darkRails(0, 8, "1: DOWN", "2: Polling"), nil,
		map[string]int{"port-active wrong": 8}},
	{"all ports of RoCE dark, and the plugin runs", ethernet, darkRails(0, 8, "1: DOWN", "3: Disabled").With(inForce), nil,
		map[string]int{"port-active wrong": 8}},
	{"the only two ports without a link, and the kubelet has RDMA", "ConnectX-6 Dx that nobody cabled", resources, nil,
		map[string]int{"port-active wrong": 2}},
	{"a board of four functions without a link beside an ACTIVE one", "B300, eight ConnectX-8, and ports of the board that " +
		"nobody cabled, with the plugin", darkRails(0, 8, "1: DOWN", "5: LinkUp"), nil, map[string]int{"port-active wrong": 8}},
	{"three of eight rails dark, one for each MI300X", mi300x, darkBroadcoms(5, 3), nil, map[string]int{"port-active wrong": 3}},
	{"two of eight rails at half the rate", b200, file(2, "port/rate", hdr+"\n").With(file(5, "port/rate", hdr+"\n")), nil,
		map[string]int{"port-rate unknown": 2}},
	{"one of eight with a newer firmware", b200, file(3, "infiniband/mlx5_3/fw_ver", "28.43.1000\n"), nil,
		map[string]int{"firmware-same wrong": 1}},
	// Only a fault silences.
	{"the closed driver without nvidia_peermem, and no log", b200, driver(closed535).With(noLog).With(hcatest.Files{
		"sys/module/mlx_compat/": ""}), nil,
		map[string]int{"gpu-direct wrong": 1, withoutLog: 1}},
	{"the open driver on an old kernel, and no log", b200, hcatest.Files{"proc/sys/kernel/osrelease": "5.4.0-150-generic\n"}.With(
		noLog), nil, map[string]int{"gpu-direct wrong": 1, withoutLog: 1}},
	{"neither ib_uverbs nor rdma_ucm", b200, nil, []string{"sys/class/infiniband_verbs", "sys/class/misc/rdma_cm"},
		map[string]int{"uverbs-module wrong": 1}},
	// seen in k8snetworkplumbingwg/sriov-network-device-plugin#565
	{"a device plugin that was started again while an HCA is in a pod", "exclusive mode, as rdma-cni needs it", hcatest.Files{
		node.AnswersDir + "/kubelet.json": strings.ReplaceAll(resources[node.AnswersDir+"/kubelet.json"], "8", "0")}, nil,
		map[string]int{"kubelet-allocatable wrong": 1}},
	// seen in siderolabs/docs#581, spectrocloud/CanvOS#700
	{"no ib_umad beside NVSwitches", b200NVSwitches, nil, []string{"sys/class/infiniband_mad"},
		map[string]int{"class-devices wrong": 1}},
	{"no ib_umad, and no NVSwitch", b200, nil, []string{"sys/class/infiniband_mad"}, map[string]int{}},
	{"a rail without a link, and no log", b200, down(3, noLog), nil, map[string]int{"port-active wrong": 1, withoutLog: 1}},
	{"fatal errors of PCIe, and no log", b200, file(4, "aer_dev_fatal", "TOTAL_ERR_FATAL 1\n").With(noLog), nil,
		map[string]int{"hca-errors wrong": 1, withoutLog: 1}},
}

func TestSickKinds(t *testing.T) {
	var says golden.Cases
	for _, s := range sickKinds {
		healthy, got := findings(t, findKnown(t, s.of).files()), map[string]int{}
		found := slices.DeleteFunc(findings(t, fallenSick(t, s.of, s.without, s.with)), func(f doctor.Finding) bool {
			same := func(h doctor.Finding) bool { return h.Check == f.Check && h.Object == f.Object && h.Status == f.Status }
			return f.Status != doctor.Wrong && f.Status != doctor.Unknown || slices.ContainsFunc(healthy, same)
		})
		for _, f := range found {
			got[f.Check+" "+string(f.Status)]++
		}
		if diff := cmp.Diff(s.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", s.name, diff)
		}
		says.Add(t, s.name, said(found...))
	}
	says.Compare(t, "testdata/kinds.txt")
}
