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
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
)

func TestVerifyDevices(t *testing.T) {
	exclusive := mlx5Node().Files()
	exclusive["sys/module/ib_core/parameters/netns_mode"] = "N\n"
	down := mlx5Node()
	down.HCAs[0].Ports = []hcatest.Port{{State: "1: DOWN", PhysState: "2: Polling"}}
	twoPorts := mlx5Node()
	twoPorts.HCAs[0].Ports = []hcatest.Port{{State: "1: DOWN", PhysState: "2: Polling"}, {}}
	var says golden.Cases
	for name, test := range map[string]struct {
		node    hcatest.Files
		devices map[string]error
	}{
		"no devices": {mlx5Node().Files(), nil},
		"devices that do not open": {mlx5Node().Files(), map[string]error{"uverbs0": unix.EPERM, "uverbs1": unix.EACCES,
			"uverbs10": unix.ENXIO, "rdma_cm": unix.EPERM}},
		"no ACTIVE port":          {down.Files(), map[string]error{"uverbs0": nil, "rdma_cm": nil}},
		"one of two HCAs is down": {down.Files(), all},
		"one of two HCAs is down, in a privileged container": {down.Files().With(hcatest.Files{"dev/kmsg": ""}), all},
		"a port of two": {twoPorts.Files(), map[string]error{"uverbs0": nil, "rdma_cm": nil}},
		"another namespace's HCA in exclusive mode": {exclusive, map[string]error{"uverbs0": unix.EPERM,
			"uverbs7": unix.EPERM, "rdma_cm": nil}},
		"a device that sysfs does not name": {hcatest.Files{"sys/class/": "", "dev/": ""}, map[string]error{"uverbs0": nil}},
	} {
		says.Add(t, name, facts(t, inContainer(t, test.node, unlimited, test.devices), 0, "device", "port", "register",
			"lock"))
	}
	// A file mode that lets everybody open a device is not what forbids it.
	c := inContainer(t, mlx5Node().Files(), unlimited, map[string]error{"uverbs0": unix.EACCES, "rdma_cm": nil})
	if err := os.Chmod(filepath.Join(c.root, "dev/infiniband/uverbs0"), 0o666); err != nil {
		t.Fatal(err)
	}
	says.Add(t, "a security module", facts(t, c, 0, "device"))
	says.Compare(t, "testdata/devices.txt")
}

// An HCA that does not answer costs its timeout where the container holds it, and nothing where it does not.
func TestVerifyHCAThatDoesNotAnswer(t *testing.T) {
	var says golden.Cases
	for name, test := range map[string]struct {
		devices map[string]error
		least   time.Duration
	}{
		"held":                {all, node.ItemTimeout},
		"another container's": {map[string]error{"uverbs1": nil, "rdma_cm": nil}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			c := inContainer(t, mlx5Node().Files(), unlimited, test.devices)
			c.hcas = node.ReadHere(c.root)
			unblock := hcatest.Block(t, c.root, "sys/class/infiniband/mlx5_0/ports/1/state")
			start := time.Now()
			says.Add(t, name, facts(t, c, 0, "device", "port", "register"))
			took := time.Since(start)
			unblock()
			if took < test.least || took > test.least+node.ItemTimeout {
				t.Errorf("it took %s", took)
			}
		})
	}
	says.Compare(t, "testdata/silent.txt")
}
