// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

func TestVerifyDevices(t *testing.T) {
	const locked = `lock 64Mi, in place of registering it: done
`
	exclusive := mlx5Node().Files()
	exclusive["sys/module/ib_core/parameters/netns_mode"] = "N\n"
	down := mlx5Node()
	down.HCAs[0].Ports = []hcatest.Port{{State: "1: DOWN", PhysState: "2: Polling"}}
	for name, test := range map[string]struct {
		node    hcatest.Files
		devices map[string]error
		want    string
	}{
		"no devices": {mlx5Node().Files(), nil, `
FAIL  verbs devices: none in /dev/infiniband: request the RDMA device plugin's resource or, where the policy lists the namespace, annotate the pod with rdma.noderesource.dev: "true"
ok    ` + locked + `device: the container has no usable HCA, so no memory can be registered
`},
		"devices that do not open": {mlx5Node().Files(), map[string]error{"uverbs0": unix.EPERM, "uverbs1": unix.EACCES, "uverbs10": unix.ENXIO, "rdma_cm": unix.EPERM}, `
FAIL  /dev/infiniband/uverbs0: the container's device cgroup does not permit it: a mount alone gives no access; take the device from a device plugin or by the annotation
FAIL  /dev/infiniband/uverbs1: its file mode does not let this user open it: it should have mode 0666 on the node
FAIL  /dev/infiniband/uverbs10: the device no longer exists on the node: recreate the pod
FAIL  /dev/infiniband/rdma_cm: the container's device cgroup does not permit it: a mount alone gives no access; take the device from a device plugin or by the annotation
ok    ` + locked + `device cgroup: the container cannot open the HCA, so no memory can be registered; also: file mode, device
`},
		"no ACTIVE port": {down.Files(), map[string]error{"uverbs0": nil, "rdma_cm": nil}, `
ok    /dev/infiniband/uverbs0: opened: mlx5_0, port 1 DOWN
FAIL  ports: none is ACTIVE: check the cable, the switch and, on InfiniBand, the subnet manager
ok    /dev/infiniband/rdma_cm: opened
ok    register 64Mi with mlx5_0: done
port down: no port carries traffic; this does not prevent a registration, but connections
`},
		"another namespace's HCA in exclusive mode": {exclusive, map[string]error{"uverbs0": unix.EPERM, "uverbs7": unix.EPERM, "rdma_cm": nil}, `
FAIL  /dev/infiniband/uverbs0: the container's device cgroup does not permit it: a mount alone gives no access; take the device from a device plugin or by the annotation
FAIL  /dev/infiniband/uverbs7: its HCA is in another network namespace, and the node's mode is exclusive: have an RDMA CNI plugin move the HCA into the pod's namespace, or run rdma system set netns shared on the node
ok    /dev/infiniband/rdma_cm: opened
ok    ` + locked + `device cgroup: the container cannot open the HCA, so no memory can be registered; also: namespace
`},
		"a device that sysfs does not name": {hcatest.Files{"sys/class/": "", "dev/": ""}, map[string]error{"uverbs0": nil}, `
ok    /dev/infiniband/uverbs0: opened
-     /dev/infiniband/rdma_cm: does not exist: programs that connect through RDMA_CM need it
?     register 64Mi with /dev/infiniband/uverbs0: not tried: verify cannot register memory with its driver (unknown)
ok    ` + locked + `nothing found: memory of 64Mi can be locked, but no memory was registered
`},
	} {
		t.Run(name, func(t *testing.T) {
			expectFacts(t, test.want, inContainer(t, test.node, unlimited, test.devices), 0, checkDevice, checkPort, checkRegister, checkLock)
		})
	}
}

// A soft HCA is told by what only its driver has.
func TestDriverOfHCA(t *testing.T) {
	for name, test := range map[string]struct {
		hca    hca.HCA
		parent string
		want   string
	}{
		"ConnectX-4":             {hca: hca.HCA{Driver: "mlx5_core", PCI: "0000:5e:00.0", NodeType: "CA", ABIVersion: 1}, want: "mlx5"},
		"a scalable function":    {hca: hca.HCA{Driver: "mlx5_core.sf", NodeType: "CA", ABIVersion: 1}, want: "mlx5"},
		"ConnectX-3":             {hca: hca.HCA{Driver: "mlx4_core"}, want: "mlx4"},
		"EFA":                    {hca: hca.HCA{Driver: "efa", NodeType: "unspecified"}, want: "efa"},
		"Soft-RoCE":              {hca: hca.HCA{NodeType: "CA", ABIVersion: 2}, parent: "eth0", want: "rxe"},
		"Soft-iWARP":             {hca: hca.HCA{NodeType: "RNIC", ABIVersion: 1}, want: "siw"},
		"Soft-iWARP before 5.13": {hca: hca.HCA{NodeType: "RNIC", ABIVersion: 1}, parent: "eth0", want: "siw"},
		"soft, of another ABI":   {hca: hca.HCA{NodeType: "CA", ABIVersion: 3}, parent: "eth0"},
		"soft, without parent":   {hca: hca.HCA{NodeType: "CA", ABIVersion: 2}},
		"another driver":         {hca: hca.HCA{Driver: "frobnicator", NodeType: "CA", ABIVersion: 1}, parent: "eth0"},
		"on PCI, driver hidden":  {hca: hca.HCA{PCI: "0000:5e:00.0", NodeType: "RNIC", ABIVersion: 1}},
	} {
		if got := (heldHCA{hca: test.hca, known: true}).driver(test.parent); got != test.want {
			t.Errorf("%s: driver %q, want %q", name, got, test.want)
		}
	}
}
