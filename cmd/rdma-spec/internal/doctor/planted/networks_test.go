// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package planted

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

// onNetwork is a node whose first container holds an HCA, and has an interface of it in a network of its own.
func onNetwork(files hcatest.Files, hca string) *sick {
	s := healthy()
	s.files = files.With(hcatest.Files{node.AnswersDir + "/rdma-cni.json": `{"answer": {"installed": true}}`})
	s.containers.Containers = s.containers.Containers[:1]
	c, address := s.container(), netip.MustParseAddr(hcatest.PodAddress)
	c.HCAs, c.OwnNetwork, c.Addresses = []string{hca}, true, []netip.Addr{address}
	c.Links = []process.Link{{Name: "net1", Subnets: []netip.Prefix{netip.PrefixFrom(address, 24)}}}
	c.MTU = map[string]int{"net1": 4200}
	return s
}

// However CNI gives a pod an interface of its HCA, nothing is wrong with it.
func TestRun_podNetworks(t *testing.T) {
	for name, s := range map[string]*sick{
		"host-device":                 onNetwork(hcatest.HostDeviceNode().Files(), "mlx5_0"),
		"SR-IOV":                      onNetwork(hcatest.VirtualNode().Files(), "mlx5_1"),
		"SR-IOV, rdma-cni, exclusive": onNetwork(hcatest.ExclusiveFiles("mlx5_0", "mlx5_2"), "mlx5_1"),
	} {
		for _, f := range s.look(t, checks()) {
			inContainers := f.Family == "containers" && (f.Status == doctor.Unknown || f.Status == doctor.Skipped)
			if f.Status == doctor.Wrong || inContainers {
				t.Errorf("%s: %+v", name, f)
			}
			if f.Check == "container-devices" && strings.Contains(name, "exclusive") && f.Object != "" {
				t.Errorf("%s: the container sees no other HCA: %+v", name, f)
			}
		}
	}
}

// A function that a container holds needs a GUID, and one that is idle gets it with its pod.
func TestGUIDValid_heldFunction(t *testing.T) {
	for _, guid := range []string{"0000:0000:0000:0000", "ffff:ffff:ffff:ffff"} {
		s := onNetwork(virtualInfiniBand().With(hcatest.Files{
			hcatest.Dir("mlx5_2", "0000:00:00.2") + "/node_guid":     guid + "\n",
			hcatest.Dir("mlx5_2", "0000:00:00.2") + "/ports/1/state": "1: DOWN\n"}), "mlx5_2")
		bad := wrong(s.look(t, checks()))
		if len(bad) != 1 || bad[0].Check != "guid-valid" || bad[0].Object != "HCA mlx5_2" {
			t.Errorf("%s: %+v", guid, bad)
		}
	}
}

// Exclusive mode is right with rdma-cni, installed or configured.
func TestNetnsMode_withRDMACNI(t *testing.T) {
	for _, has := range []string{`{"installed": true}`, `{"configured": "/etc/cni/net.d/10-net.conflist"}`} {
		found := findings(t, healthyNode().With(hcatest.Files{
			"sys/module/ib_core/parameters/netns_mode": "N\n", node.AnswersDir + "/rdma-cni.json": `{"answer": ` + has + `}`,
		}))
		i := slices.IndexFunc(found, func(f doctor.Finding) bool { return f.Check == "netns-mode" })
		if found[i].Status != doctor.OK || !strings.Contains(found[i].Text, "as rdma-cni requires") {
			t.Errorf("%s: %+v", has, found[i])
		}
	}
}

// A bond that has lost a link is told: its port stays ACTIVE. So is one whose links the switch does not join.
func TestPortActive_bondLostLink(t *testing.T) {
	const first, slave = "pci0000:99/0000:99:00.0/net/ens1f0", "pci0000:99/0000:99:00.1/net/ens1f1"
	for want, files := range map[string]hcatest.Files{
		"The port's bond has no link on ens1f1": {},
		// as in https://docs.kernel.org/networking/bonding.html
		"LACP has not aggregated the links of the port's bond": {"sys/devices/" + slave + "/carrier": "1\n",
			"sys/devices/" + first + "/bonding_slave/ad_aggregator_id": "1\n",
			"sys/devices/" + slave + "/bonding_slave/ad_aggregator_id": "2\n"},
		"Each port that should be up is ACTIVE.": {"sys/devices/" + slave + "/carrier": "1\n",
			"sys/devices/" + first + "/bonding_slave/ad_aggregator_id": "1\n",
			"sys/devices/" + slave + "/bonding_slave/ad_aggregator_id": "1\n"},
	} {
		found := findings(t, findKnown(t, "bond that has lost one of its two links").files().With(hcatest.Files{
			"sys/class/net/ens1f1":                       hcatest.Link("../../devices/" + slave),
			"sys/devices/virtual/net/bond0/lower_ens1f1": hcatest.Link("../../../" + slave),
			"sys/devices/" + slave + "/device":           hcatest.Link("../../../0000:99:00.1"),
		}).With(files))
		i := slices.IndexFunc(found, func(f doctor.Finding) bool { return f.Check == "port-active" })
		if found[i].Status != doctor.OK || !strings.Contains(found[i].Text, want) {
			t.Errorf("want %s, got %+v", want, found[i])
		}
	}
}
