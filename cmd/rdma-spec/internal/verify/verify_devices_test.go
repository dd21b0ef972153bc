// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"testing"

	"golang.org/x/sys/unix"

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
		"devices that do not open": {mlx5Node().Files(), map[string]error{"uverbs0": unix.EPERM, "uverbs1": unix.EACCES,
			"uverbs10": unix.ENXIO, "rdma_cm": unix.EPERM}, `
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
		"another namespace's HCA in exclusive mode": {exclusive, map[string]error{"uverbs0": unix.EPERM,
			"uverbs7": unix.EPERM, "rdma_cm": nil}, `
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
			expectFacts(t, test.want, inContainer(t, test.node, unlimited, test.devices), 0, "device",
				"port", "register", "lock")
		})
	}
}
