// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

// inContainer is a container on a node, with some of the node's device files, some of which do not open.
func inContainer(t *testing.T, node hcatest.Files, holds limits.Process, devices map[string]error) container {
	t.Helper()
	root := node.Root(t)
	folder := filepath.Join(root, "dev/infiniband")
	if err := os.RemoveAll(folder); err != nil {
		t.Fatal(err)
	}
	for name := range devices {
		if err := errors.Join(os.MkdirAll(folder, 0o755), os.WriteFile(filepath.Join(folder, name), nil, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return container{
		root:    root,
		process: func() (limits.Process, error) { return holds, nil },
		open: func(path string) error {
			err, there := devices[filepath.Base(path)]
			if !there {
				return unix.ENOENT
			}
			return err
		},
		lock: func(size int) error {
			if spec.Limit(size) > holds.Memlock.Soft && (!holds.IPCLock || holds.UserNamespace) {
				return unix.ENOMEM
			}
			return nil
		},
		room: func() (uint64, bool) { return 0, false },
	}
}

func TestVerify(t *testing.T) {
	v100 := hcatest.V100Node().Files()
	exclusive := hcatest.V100Node().Files()
	exclusive["sys/module/ib_core/parameters/netns_mode"] = "N\n"
	down := hcatest.V100Node()
	down.HCAs[0].Ports = []hcatest.Port{{State: "1: DOWN", PhysState: "2: Polling"}}
	unlimited := limits.Process{Memlock: spec.Rlimit{Soft: spec.Unlimited, Hard: spec.Unlimited}}
	eight := limits.Process{Memlock: spec.Rlimit{Soft: 8 << 20, Hard: 8 << 20}}
	locked, inUserNamespace := eight, eight
	locked.IPCLock = true
	inUserNamespace.IPCLock, inUserNamespace.UserNamespace = true, true
	all := map[string]error{"uverbs0": nil, "uverbs1": nil, "rdma_cm": nil}
	for name, test := range map[string]struct {
		container container
		change    func(*container)
		fails     bool
		want      string
	}{
		"all is well": {container: inContainer(t, v100, unlimited, all), want: `
ok    memlock: unlimited (hard: unlimited)
-     CAP_IPC_LOCK: not effective
ok    /dev/infiniband/uverbs0: opened: mlx5_0, port 1 ACTIVE
ok    /dev/infiniband/uverbs1: opened: mlx5_1, port 1 ACTIVE
ok    /dev/infiniband/rdma_cm: opened
ok    lock 64Mi: done
`},
		"memlock too low": {container: inContainer(t, v100, eight, map[string]error{"uverbs1": nil}), fails: true, want: `
-     memlock: 8Mi (hard: 8Mi)
-     CAP_IPC_LOCK: not effective
ok    /dev/infiniband/uverbs1: opened: mlx5_1, port 1 ACTIVE
-     /dev/infiniband/rdma_cm: does not exist: programs that connect through RDMA_CM need it
FAIL  lock 64Mi: cannot allocate memory: memlock is 8Mi: see that nri-rdma runs on the node and takes this container for an RDMA container (rdma-spec explain, rdma-spec status), and recreate the pod or run rdma-spec repair on the node
`},
		"the capability alone": {container: inContainer(t, v100, locked, all), want: `
-     memlock: 8Mi (hard: 8Mi)
ok    CAP_IPC_LOCK: effective
ok    /dev/infiniband/uverbs0: opened: mlx5_0, port 1 ACTIVE
ok    /dev/infiniband/uverbs1: opened: mlx5_1, port 1 ACTIVE
ok    /dev/infiniband/rdma_cm: opened
ok    lock 64Mi: done
`},
		"the capability in a user namespace": {container: inContainer(t, v100, inUserNamespace, map[string]error{"uverbs0": nil, "rdma_cm": nil}), fails: true, want: `
-     memlock: 8Mi (hard: 8Mi)
-     CAP_IPC_LOCK: effective, but the kernel does not count it in a user namespace (hostUsers: false)
ok    /dev/infiniband/uverbs0: opened: mlx5_0, port 1 ACTIVE
ok    /dev/infiniband/rdma_cm: opened
FAIL  lock 64Mi: cannot allocate memory: memlock is 8Mi: see that nri-rdma runs on the node and takes this container for an RDMA container (rdma-spec explain, rdma-spec status), and recreate the pod or run rdma-spec repair on the node
`},
		"no devices": {container: inContainer(t, v100, unlimited, nil), fails: true, want: `
ok    memlock: unlimited (hard: unlimited)
-     CAP_IPC_LOCK: not effective
FAIL  verbs devices: none in /dev/infiniband: request the RDMA device plugin's resource or, where the policy lists the namespace, annotate the pod with rdma.noderesource.dev: "true"
ok    lock 64Mi: done
`},
		"devices that do not open": {container: inContainer(t, v100, unlimited, map[string]error{"uverbs0": unix.EPERM, "uverbs1": unix.EACCES, "uverbs10": unix.ENXIO, "rdma_cm": unix.EPERM}), fails: true, want: `
ok    memlock: unlimited (hard: unlimited)
-     CAP_IPC_LOCK: not effective
FAIL  /dev/infiniband/uverbs0: the container's device cgroup does not permit it: a mount alone gives no access; take the device from a device plugin or by the annotation
FAIL  /dev/infiniband/uverbs1: its file mode does not let this user open it: it should have mode 0666 on the node
FAIL  /dev/infiniband/uverbs10: the node has no such device anymore: recreate the pod
FAIL  /dev/infiniband/rdma_cm: the container's device cgroup does not permit it: a mount alone gives no access; take the device from a device plugin or by the annotation
ok    lock 64Mi: done
`},
		"no ACTIVE port": {container: inContainer(t, down.Files(), unlimited, map[string]error{"uverbs0": nil, "rdma_cm": nil}), fails: true, want: `
ok    memlock: unlimited (hard: unlimited)
-     CAP_IPC_LOCK: not effective
ok    /dev/infiniband/uverbs0: opened: mlx5_0, port 1 DOWN
FAIL  ports: none is ACTIVE: check the cable, the switch and, on InfiniBand, the subnet manager
ok    /dev/infiniband/rdma_cm: opened
ok    lock 64Mi: done
`},
		"too little memory to try": {container: inContainer(t, v100, eight, map[string]error{"uverbs0": nil, "rdma_cm": nil}), change: func(c *container) {
			c.room = func() (uint64, bool) { return 32 << 20, true }
			c.lock = func(int) error { panic("the container would be killed") }
		}, fails: true, want: `
-     memlock: 8Mi (hard: 8Mi)
-     CAP_IPC_LOCK: not effective
ok    /dev/infiniband/uverbs0: opened: mlx5_0, port 1 ACTIVE
ok    /dev/infiniband/rdma_cm: opened
-     lock 64Mi: not tried: the container may use only 32Mi more memory, and would be killed; choose less with --lock
FAIL  memlock: less than 64Mi: see that nri-rdma runs on the node and takes this container for an RDMA container (rdma-spec explain, rdma-spec status), and recreate the pod or run rdma-spec repair on the node
`},
		"a node without memory": {container: inContainer(t, v100, unlimited, map[string]error{"uverbs0": nil, "rdma_cm": nil}), change: func(c *container) {
			c.lock = func(int) error { return unix.ENOMEM }
		}, fails: true, want: `
ok    memlock: unlimited (hard: unlimited)
-     CAP_IPC_LOCK: not effective
ok    /dev/infiniband/uverbs0: opened: mlx5_0, port 1 ACTIVE
ok    /dev/infiniband/rdma_cm: opened
FAIL  lock 64Mi: cannot allocate memory, although memlock or CAP_IPC_LOCK allow it: the node has too little memory
`},
		"mlock forbidden by seccomp": {container: inContainer(t, v100, unlimited, map[string]error{"uverbs0": nil, "rdma_cm": nil}), change: func(c *container) {
			c.lock = func(int) error { return unix.EPERM }
		}, want: `
ok    memlock: unlimited (hard: unlimited)
-     CAP_IPC_LOCK: not effective
ok    /dev/infiniband/uverbs0: opened: mlx5_0, port 1 ACTIVE
ok    /dev/infiniband/rdma_cm: opened
-     lock 64Mi: operation not permitted: a seccomp profile or a security module forbids mlock here, which does not matter to RDMA
`},
		"mlock forbidden, memlock too low": {container: inContainer(t, v100, eight, map[string]error{"uverbs0": nil, "rdma_cm": nil}), change: func(c *container) {
			c.lock = func(int) error { return unix.EPERM }
		}, fails: true, want: `
-     memlock: 8Mi (hard: 8Mi)
-     CAP_IPC_LOCK: not effective
ok    /dev/infiniband/uverbs0: opened: mlx5_0, port 1 ACTIVE
ok    /dev/infiniband/rdma_cm: opened
FAIL  lock 64Mi: operation not permitted: memlock is 8Mi: see that nri-rdma runs on the node and takes this container for an RDMA container (rdma-spec explain, rdma-spec status), and recreate the pod or run rdma-spec repair on the node
`},
		"another namespace's HCA in exclusive mode": {container: inContainer(t, exclusive, unlimited, map[string]error{"uverbs0": unix.EPERM, "uverbs7": unix.EPERM, "rdma_cm": nil}), fails: true, want: `
ok    memlock: unlimited (hard: unlimited)
-     CAP_IPC_LOCK: not effective
FAIL  /dev/infiniband/uverbs0: the container's device cgroup does not permit it: a mount alone gives no access; take the device from a device plugin or by the annotation
FAIL  /dev/infiniband/uverbs7: its HCA is in another network namespace, and the node's mode is exclusive: have an RDMA CNI plugin move the HCA into the pod's namespace, or run rdma system set netns shared on the node
ok    /dev/infiniband/rdma_cm: opened
ok    lock 64Mi: done
`},
	} {
		t.Run(name, func(t *testing.T) {
			if test.change != nil {
				test.change(&test.container)
			}
			var out bytes.Buffer
			err := verify(&out, test.container, 64<<20, formatText)
			if diff := cmp.Diff(strings.TrimPrefix(test.want, "\n"), out.String()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if errors.Is(err, errProblemFound) != test.fails {
				t.Errorf("error %v, want a failure: %v", err, test.fails)
			}
		})
	}
	if err := verify(&full{}, inContainer(t, v100, unlimited, all), 1, formatText); !errors.Is(err, errFull) {
		t.Errorf("on a full disk: %v", err)
	}
	if !strings.Contains(policy.AnnotationKey, "rdma.noderesource.dev") {
		t.Error("the annotation is called otherwise")
	}
}

func TestVerifyCalledWrongly(t *testing.T) {
	for _, size := range []string{"unlimited", "0", "-1", "64 MB", "17Ti", ""} {
		if _, stderr, status := command(t, "verify", "--lock", size); status != 2 || !strings.Contains(stderr, "is not a size up to 16Ti") {
			t.Errorf("--lock %q: exit status %d, %s", size, status, stderr)
		}
	}
}

func TestMemoryRoom(t *testing.T) {
	for name, test := range map[string]struct {
		files hcatest.Files
		want  uint64
		known bool
	}{
		"version 2":           {hcatest.Files{"memory.max": "1000\n", "memory.current": "400\n"}, 600, true},
		"version 2, no limit": {hcatest.Files{"memory.max": "max\n", "memory.current": "400\n"}, 0, false},
		"full of page cache": {hcatest.Files{
			"memory.max": "314572800\n", "memory.current": "313524224\n", "memory.stat": "anon 4096\nfile 300000000\ninactive_file 209715200\nactive_file 1\nslab_reclaimable 1048576\nslab 5\n",
		}, 314572800 - 313524224 + 209715200 + 1048576, true},
		"more cache than use": {hcatest.Files{"memory.max": "1000\n", "memory.current": "400\n", "memory.stat": "inactive_file 500\n"}, 1000, true},
		"version 1, full of page cache": {hcatest.Files{
			"memory/memory.limit_in_bytes": "1000\n", "memory/memory.usage_in_bytes": "900\n", "memory/memory.stat": "inactive_file 1\ntotal_inactive_file 700\n",
		}, 800, true},
		"version 1":            {hcatest.Files{"memory/memory.limit_in_bytes": "1000\n", "memory/memory.usage_in_bytes": "1200\n"}, 0, true},
		"version 1, no limit":  {hcatest.Files{"memory/memory.limit_in_bytes": "9223372036854771712\n", "memory/memory.usage_in_bytes": "0\n"}, 9223372036854771712, true},
		"no cgroup to be seen": {hcatest.Files{}, 0, false},
	} {
		folder := t.TempDir()
		if err := test.files.Write(folder); err != nil {
			t.Fatal(err)
		}
		if got, known := memoryRoom(folder); got != test.want || known != test.known {
			t.Errorf("%s: %d, %v, want %d, %v", name, got, known, test.want, test.known)
		}
	}
}

// What is locked for real is what the kernel allows this process.
func TestLockMemory(t *testing.T) {
	if err := lockMemory(4096); err != nil {
		t.Errorf("one page: %v", err)
	}
	if err := openDevice(filepath.Join(t.TempDir(), "uverbs0")); !errors.Is(err, unix.ENOENT) {
		t.Errorf("a device that is not there: %v", err)
	}
	if err := openDevice("/dev/null"); err != nil {
		t.Error(err)
	}
	c := thisContainer()
	process, err := c.process()
	if err != nil || process.Memlock.Hard == 0 {
		t.Errorf("this process: %+v, %v", process, err)
	}
}
