// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/verbs"
	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

func TestVerifyRegisters(t *testing.T) {
	capable, inUserNamespace := eight, eight
	capable.IPCLock = true
	inUserNamespace.IPCLock, inUserNamespace.UserNamespace = true, true
	siw := hcatest.Node{HCAs: []hcatest.HCA{{Name: "siw0", NodeType: "4: RNIC",
		Ports: []hcatest.Port{{LinkLayer: "Ethernet"}}}}}
	refuse := func(command string, err error) func(*container) {
		return func(c *container) {
			c.register = func(string, verbs.Driver, int) error { return &verbs.Error{Command: command, Err: err} }
		}
	}
	for name, test := range map[string]struct {
		node   hcatest.Node
		holds  limits.Process
		change func(*container)
		want   string
	}{
		"the capability alone": {node: mlx5Node(), holds: capable, want: `
-     memlock of this process: 8Mi (hard: 8Mi)
ok    CAP_IPC_LOCK of this process: effective
ok    register 64Mi with mlx5_0: done
` + well},
		"the capability in a user namespace": {node: mlx5Node(), holds: inUserNamespace, want: `
-     memlock of this process: 8Mi (hard: 8Mi)
-     CAP_IPC_LOCK of this process: effective, but the kernel does not count it in a user namespace (hostUsers: false)
FAIL  register 64Mi with mlx5_0: REG_MR: cannot allocate memory: memlock is 8Mi: ` + remedy + memlock},
		"the capability with Soft-iWARP": {node: siw, holds: capable, change: refuse("REG_MR", unix.ENOMEM), want: `
-     memlock of this process: 8Mi (hard: 8Mi)
ok    CAP_IPC_LOCK of this process: effective
FAIL  register 64Mi with siw0: REG_MR: cannot allocate memory: memlock is 8Mi, and older kernels do not count CAP_IPC_LOCK for Soft-iWARP: ` + remedy + memlock},
		"too little memory that can be pinned": {node: mlx5Node(), holds: unlimited,
			change: refuse("REG_MR", unix.ENOMEM), want: `
FAIL  register 64Mi with mlx5_0: REG_MR: ` + scarce + `
` + pinned},
		"more than the node has": {node: mlx5Node(), holds: unlimited, change: func(c *container) {
			c.register = func(string, verbs.Driver, int) error { return fmt.Errorf("mmap: %w", unix.ENOMEM) }
		}, want: `
FAIL  register 64Mi with mlx5_0: mmap: ` + scarce + `
` + pinned},
		"the cgroup allows no context": {node: mlx5Node(), holds: unlimited,
			change: refuse("GET_CONTEXT", unix.EAGAIN), want: `
FAIL  register 64Mi with mlx5_0: GET_CONTEXT: resource temporarily unavailable: the cgroup's rdma.max allows no more (hca_handle, hca_object), or the HCA is being reset
rdma cgroup: "Couldn't allocate MR" and the like are caused by the limit rdma.max of the cgroup
`},
		"the HCA is gone": {node: mlx5Node(), holds: unlimited, change: refuse("GET_CONTEXT", unix.EIO), want: `
FAIL  register 64Mi with mlx5_0: GET_CONTEXT: input/output error: the HCA is gone: recreate the pod
` + noHCA},
		"a driver that expects other data": {node: mlx5Node(), holds: eight,
			change: refuse("GET_CONTEXT", unix.EINVAL), want: `
?     register 64Mi with mlx5_0: GET_CONTEXT: invalid argument: its driver (mlx5) expects something else
FAIL  lock 64Mi, in place of registering it: cannot allocate memory: memlock is 8Mi: ` + remedy + memlock},
		"a driver that is not known": {node: hcatest.V100Node(), holds: unlimited, want: `
` + untried + `
ok    lock 64Mi, in place of registering it: done
nothing found: memory of 64Mi can be locked, but no memory was registered
`},
		"mlock forbidden by seccomp": {node: hcatest.V100Node(), holds: unlimited,
			change: func(c *container) { c.lock = func(int) error { return unix.EPERM } }, want: `
` + untried + `
-     lock 64Mi: operation not permitted: a seccomp profile or a security module forbids mlock here, which does not matter to RDMA
nothing found: but no memory was registered or locked
`},
		"mlock forbidden, memlock too low": {node: hcatest.V100Node(), holds: eight,
			change: func(c *container) { c.lock = func(int) error { return unix.EPERM } }, want: `
` + untried + `
FAIL  lock 64Mi, in place of registering it: operation not permitted: memlock is 8Mi: ` + remedy + memlock},
		"a node without memory": {node: hcatest.V100Node(), holds: unlimited,
			change: func(c *container) { c.lock = func(int) error { return unix.ENOMEM } }, want: `
` + untried + `
FAIL  lock 64Mi: cannot allocate memory, although memlock or CAP_IPC_LOCK allow it: the node has too little memory
` + pinned},
		"too little memory to try": {node: mlx5Node(), holds: eight, change: func(c *container) {
			files := hcatest.Files{"memory.max": "33554432\n", "memory.current": "0\n"}
			if err := files.Write(c.root + "/sys/fs/cgroup"); err != nil {
				panic(err)
			}
			c.register = func(string, verbs.Driver, int) error { panic("the container would be killed") }
			c.lock = func(int) error { panic("the container would be killed") }
		}, want: `
-     memlock of this process: 8Mi (hard: 8Mi)
-     CAP_IPC_LOCK of this process: not effective
?     register 64Mi: not tried: the container may use only 32Mi more memory, and would be killed; choose less with --lock
FAIL  memlock of this process: less than 64Mi: ` + remedy + memlock},
	} {
		t.Run(name, func(t *testing.T) {
			c := inContainer(t, test.node.Files(), test.holds, map[string]error{"uverbs0": nil, "rdma_cm": nil})
			if test.change != nil {
				test.change(&c)
			}
			about := []string{"register", "lock"}
			if strings.Contains(test.want, " of this process: ") {
				about = append(about, "memlock", "ipc-lock")
			}
			expectFacts(t, test.want, c, 0, about...)
		})
	}
}

// Each HCA is registered with as its own driver wants it.
func TestRegistersWithDriver(t *testing.T) {
	node := mlx5Node()
	node.HCAs[0].Driver = "mlx4_core"
	c := inContainer(t, node.Files(), unlimited, all)
	got := map[string]verbs.Driver{}
	c.register = func(path string, driver verbs.Driver, size int) error {
		got[path[len(c.root):]] = driver
		if size != 64<<20 {
			t.Errorf("registers %d bytes", size)
		}
		return nil
	}
	facts(t, c, 0)
	if len(got) != 2 || got["/dev/infiniband/uverbs0"] != verbs.MLX4 || got["/dev/infiniband/uverbs1"] != verbs.MLX5 {
		t.Errorf("registered with %v", got)
	}
}
