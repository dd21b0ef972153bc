// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package planted

import (
	"slices"
	"testing"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
)

// inExclusiveMode is a node without rdma-cni, in exclusive mode, with one HCA elsewhere and a container that holds it.
func inExclusiveMode() *sick {
	s := healthy()
	s.files = exclusive().With(hcatest.Files{node.AnswersDir + "/rdma-cni.json": `{"answer": {}}`})
	s.containers.Containers = s.containers.Containers[:1]
	s.container().HCAs, s.container().OwnNetwork = []string{"mlx5_0"}, true
	return s
}

// hostDevice is a node with an HCA whose interface is in another network namespace, and a container that has it.
func hostDevice() *sick {
	return onNetwork(hcatest.HostDeviceNode().Files().With(hcatest.Files{"sys/class/net/eth9/device": ""}), "mlx5_0")
}

// Where an HCA, or its interface, went is asked of the containers (kubernetes-sigs/dranet#177,
// k8snetworkplumbingwg/multus-cni#1134).
var elsewheres = map[string]struct {
	node   func() *sick
	alter  func(s *sick)
	object string
	status doctor.Status
}{
	"a container has the HCA": {inExclusiveMode, func(*sick) {}, "PCI device 0000:18:00.0", doctor.OK},
	"nobody has the HCA": {inExclusiveMode, func(s *sick) { s.containers.Containers = nil }, "PCI device 0000:18:00.0",
		doctor.Wrong},
	"nobody has the HCA of a card, on a kernel without auxiliary devices": {inExclusiveMode, func(s *sick) {
		s.containers.Containers, s.files = nil, s.files.Without("sys/bus/auxiliary",
			"sys/devices/pci0000:18/0000:18:00.0/mlx5_core.rdma.0")
	}, "PCI device 0000:18:00.0", doctor.Wrong},
	"another container runs": {inExclusiveMode, func(s *sick) { s.container().HCAs = []string{"mlx5_2"} },
		"PCI device 0000:18:00.0", doctor.Wrong},
	"a container in the node's network should have it": {inExclusiveMode, func(s *sick) { s.container().OwnNetwork = false },
		"PCI device 0000:18:00.0", doctor.Wrong},
	"a pod waits for its container": {inExclusiveMode, func(s *sick) {
		s.containers.Containers, s.waiting = nil, []string{"ml/train-0"}
	}, "PCI device 0000:18:00.0", doctor.Unknown},
	"a container of Docker, which no runtime of pods lists": {inExclusiveMode, func(s *sick) {
		s.containers.Containers, s.strangers = nil, []int{4711}
	}, "PCI device 0000:18:00.0", doctor.Unknown},
	"a container has the HCA, beside those of Docker": {inExclusiveMode, func(s *sick) {
		s.strangers = []int{4711}
	}, "PCI device 0000:18:00.0", doctor.OK},
	"a privileged container with a network of its own": {inExclusiveMode, func(s *sick) {
		s.container().AllDevices, s.container().HCAs = true, nil
	}, "PCI device 0000:18:00.0", doctor.Unknown},
	"nobody lists the containers": {inExclusiveMode, func(s *sick) { s.unanswered = []string{"listing.json"} },
		"PCI device 0000:18:00.0", doctor.Unknown},
	"no runtime answers": {inExclusiveMode, func(s *sick) {
		s.containers.Containers, s.runtimes.Runtimes = nil, nil
	}, "PCI device 0000:18:00.0", doctor.Unknown},
	"a container has the interface": {hostDevice, func(*sick) {}, "HCA mlx5_0 port 1", doctor.OK},
	"a container has the interface, and not the HCA": {hostDevice, func(s *sick) { s.container().HCAs = nil },
		"HCA mlx5_0 port 1", doctor.OK},
	"nobody has the interface": {hostDevice, func(s *sick) { s.containers.Containers = nil }, "HCA mlx5_0 port 1",
		doctor.Wrong},
	"a container that cannot be looked at": {hostDevice, func(s *sick) { s.container().Known, s.container().Addresses = false, nil },
		"HCA mlx5_0 port 1", doctor.Unknown},
}

func TestElsewhere(t *testing.T) {
	var says golden.Cases
	for name, test := range elsewheres {
		s := test.node()
		test.alter(s)
		found := s.look(t, checks())
		i := slices.IndexFunc(found, func(f doctor.Finding) bool { return f.Check == "hca-present" && f.Object == test.object })
		if i < 0 || found[i].Status != test.status || found[i].FixType == doctor.FixSafe {
			t.Errorf("%s: want %s of %q, got %+v", name, test.status, test.object,
				slices.DeleteFunc(found, func(f doctor.Finding) bool { return f.Check != "hca-present" }))
			continue
		}
		says.Add(t, name, said(found[i]))
	}
	says.Compare(t, "testdata/elsewhere.txt")
}

// Exclusive mode is right where the containers show that, and nobody is told to leave it.
func TestNetnsMode_withoutRDMACNI(t *testing.T) {
	for name, test := range map[string]struct {
		alter func(s *sick)
		want  doctor.Status
	}{
		"an HCA was moved": {func(*sick) {}, doctor.OK},
		"all RDMA containers are in the node's network": {func(s *sick) {
			s.files = hcatest.RoCENode().Files().With(hcatest.Files{"sys/module/ib_core/parameters/netns_mode": "N\n",
				node.AnswersDir + "/rdma-cni.json": `{"answer": {}}`})
			s.container().OwnNetwork = false
		}, doctor.OK},
		"no RDMA container runs": {func(s *sick) {
			s.files = hcatest.RoCENode().Files().With(hcatest.Files{"sys/module/ib_core/parameters/netns_mode": "N\n",
				node.AnswersDir + "/rdma-cni.json": `{"answer": {}}`})
			s.containers.Containers = nil
		}, doctor.Unknown},
	} {
		s := inExclusiveMode()
		test.alter(s)
		for _, f := range s.look(t, checks()) {
			if f.Check == "netns-mode" && f.Status != test.want || f.Status == doctor.Wrong {
				t.Errorf("%s: %+v", name, f)
			}
		}
	}
}
