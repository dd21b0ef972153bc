// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/verbs"
	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
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
	var says golden.Cases
	for name, test := range map[string]struct {
		node   hcatest.Node
		holds  limits.Process
		change func(*container)
	}{
		"the capability alone":               {node: mlx5Node(), holds: capable},
		"the capability in a user namespace": {node: mlx5Node(), holds: inUserNamespace},
		"the capability with Soft-iWARP":     {node: siw, holds: capable, change: refuse("REG_MR", unix.ENOMEM)},
		"too little pinnable memory": {node: mlx5Node(), holds: unlimited,
			change: refuse("REG_MR", unix.ENOMEM)},
		"more than the node has": {node: mlx5Node(), holds: unlimited, change: func(c *container) {
			c.register = func(string, verbs.Driver, int) error { return fmt.Errorf("mmap: %w", unix.ENOMEM) }
		}},
		"the cgroup allows no context": {node: mlx5Node(), holds: unlimited,
			change: refuse("GET_CONTEXT", unix.EAGAIN)},
		"the HCA is gone": {node: mlx5Node(), holds: unlimited, change: refuse("GET_CONTEXT", unix.EIO)},
		"a driver that expects other data": {node: mlx5Node(), holds: eight,
			change: refuse("GET_CONTEXT", unix.EINVAL)},
		"a driver that is not known": {node: hcatest.V100Node(), holds: unlimited},
		"mlock forbidden by seccomp": {node: hcatest.V100Node(), holds: unlimited,
			change: func(c *container) { c.lock = func(int) error { return unix.EPERM } }},
		"mlock forbidden, memlock too low": {node: hcatest.V100Node(), holds: eight,
			change: func(c *container) { c.lock = func(int) error { return unix.EPERM } }},
		"a node without memory": {node: hcatest.V100Node(), holds: unlimited,
			change: func(c *container) { c.lock = func(int) error { return unix.ENOMEM } }},
		"too little memory to try": {node: mlx5Node(), holds: eight, change: func(c *container) {
			files := hcatest.Files{"memory.max": "33554432\n", "memory.current": "0\n"}
			if err := files.Write(c.root + "/sys/fs/cgroup"); err != nil {
				panic(err)
			}
			c.register = func(string, verbs.Driver, int) error { panic("the container would be killed") }
			c.lock = func(int) error { panic("the container would be killed") }
		}},
	} {
		c := inContainer(t, test.node.Files(), test.holds, map[string]error{"uverbs0": nil, "rdma_cm": nil})
		if test.change != nil {
			test.change(&c)
		}
		says.Add(t, name, facts(t, c, 0, "register", "lock", "memlock", "ipc-lock"))
	}
	says.Compare(t, "testdata/register.txt")
}

// Each HCA is registered with as its own driver wants it.
func TestVerify_registersWithDriver(t *testing.T) {
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
