// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

func TestVerifyDevices(t *testing.T) {
	const locked = `lock 64Mi, in place of registering it: done
`
	exclusive := mlx5Node().Files()
	exclusive["sys/module/ib_core/parameters/netns_mode"] = "N\n"
	down := mlx5Node()
	down.HCAs[0].Ports = []hcatest.Port{{State: "1: DOWN", PhysState: "2: Polling"}}
	twoPorts := mlx5Node()
	twoPorts.HCAs[0].Ports = []hcatest.Port{{State: "1: DOWN", PhysState: "2: Polling"}, {}}
	for name, test := range map[string]struct {
		node    hcatest.Files
		devices map[string]error
		want    string
	}{
		"no devices": {mlx5Node().Files(), nil, `
FAIL  verbs devices: none in /dev/infiniband: request the RDMA device plugin's resource or, where the policy lists the namespace, annotate the pod with rdma.noderesource.dev: "true"
ok    ` + locked + noHCA},
		"devices that do not open": {mlx5Node().Files(), map[string]error{"uverbs0": unix.EPERM, "uverbs1": unix.EACCES,
			"uverbs10": unix.ENXIO, "rdma_cm": unix.EPERM}, `
FAIL  /dev/infiniband/uverbs0: ` + denied + `
FAIL  /dev/infiniband/uverbs1: its file mode does not let this user open it: it should have mode 0666 on the node
FAIL  /dev/infiniband/uverbs10: the device no longer exists on the node: recreate the pod
FAIL  /dev/infiniband/rdma_cm: ` + denied + `
ok    ` + locked + `device cgroup: the container cannot open the HCA, so no memory can be registered; also: file mode, device
`},
		"no ACTIVE port": {down.Files(), map[string]error{"uverbs0": nil, "rdma_cm": nil}, `
ok    /dev/infiniband/uverbs0: opened: mlx5_0, port 1 DOWN
ok    /dev/infiniband/rdma_cm: opened
FAIL  ` + dark + `
ok    register 64Mi with mlx5_0: done
` + portDown},
		"one of two HCAs is down": {down.Files(), all, `
ok    /dev/infiniband/uverbs0: opened: mlx5_0, port 1 DOWN
ok    /dev/infiniband/uverbs1: opened: mlx5_1, port 1 ACTIVE
ok    /dev/infiniband/rdma_cm: opened
FAIL  ` + dark + `
ok    register 64Mi with mlx5_0: done
ok    register 64Mi with mlx5_1: done
` + portDown},
		"one of two HCAs is down, in a privileged container": {down.Files().With(hcatest.Files{"dev/kmsg": ""}), all, `
ok    /dev/infiniband/uverbs0: opened: mlx5_0, port 1 DOWN
ok    /dev/infiniband/uverbs1: opened: mlx5_1, port 1 ACTIVE
ok    /dev/infiniband/rdma_cm: opened
-     ` + dark + `
ok    register 64Mi with mlx5_0: done
ok    register 64Mi with mlx5_1: done
` + well},
		"a port of two": {twoPorts.Files(), map[string]error{"uverbs0": nil, "rdma_cm": nil}, `
ok    /dev/infiniband/uverbs0: opened: mlx5_0, port 1 DOWN, port 2 ACTIVE
ok    /dev/infiniband/rdma_cm: opened
ok    register 64Mi with mlx5_0: done
` + well},
		"another namespace's HCA in exclusive mode": {exclusive, map[string]error{"uverbs0": unix.EPERM,
			"uverbs7": unix.EPERM, "rdma_cm": nil}, `
FAIL  /dev/infiniband/uverbs0: ` + denied + `
FAIL  /dev/infiniband/uverbs7: ` + elsewhere + `
ok    /dev/infiniband/rdma_cm: opened
ok    ` + locked + `device cgroup: the container cannot open the HCA, so no memory can be registered; also: device
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

// A file mode that lets everybody open a device is not what forbids it.
func TestVerifySecurityModule(t *testing.T) {
	c := inContainer(t, mlx5Node().Files(), unlimited, map[string]error{"uverbs0": unix.EACCES, "rdma_cm": nil})
	if err := os.Chmod(filepath.Join(c.root, "dev/infiniband/uverbs0"), 0o666); err != nil {
		t.Fatal(err)
	}
	expectFacts(t, `
FAIL  /dev/infiniband/uverbs0: a security module (SELinux or AppArmor) forbids it, since the file mode lets everybody open it: see the node's audit log (ausearch -m avc), and allow it in the container's policy
ok    /dev/infiniband/rdma_cm: opened
security module: a security module forbids the container to open the HCA, so no memory can be registered
`, c, 0, "device")
}

// An HCA that does not answer costs its patience where the container holds it, and nothing where it does not.
func TestVerifyHCAThatDoesNotAnswer(t *testing.T) {
	for name, test := range map[string]struct {
		devices map[string]error
		least   time.Duration
		want    string
	}{
		"held": {all, node.Patience, `
ok    /dev/infiniband/uverbs0: opened: mlx5_0, it did not answer within 2s
FAIL  mlx5_0: it did not answer within 2s: its firmware hangs: see the node's kernel log, and have the node reset it
ok    /dev/infiniband/uverbs1: opened: mlx5_1, port 1 ACTIVE
ok    /dev/infiniband/rdma_cm: opened
ok    register 64Mi with mlx5_1: done
` + noHCA},
		"another container's": {map[string]error{"uverbs1": nil, "rdma_cm": nil}, 0, `
ok    /dev/infiniband/uverbs1: opened: mlx5_1, port 1 ACTIVE
ok    /dev/infiniband/rdma_cm: opened
ok    register 64Mi with mlx5_1: done
` + well},
	} {
		t.Run(name, func(t *testing.T) {
			c := inContainer(t, mlx5Node().Files(), unlimited, test.devices)
			unblock := hcatest.Block(t, c.root, "sys/class/infiniband/mlx5_0/ports/1/state")
			start := time.Now()
			expectFacts(t, test.want, c, 0, "device", "port", "register")
			took := time.Since(start)
			unblock()
			if took < test.least || took > test.least+node.Patience {
				t.Errorf("it took %s", took)
			}
		})
	}
}
