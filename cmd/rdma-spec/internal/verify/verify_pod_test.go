// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
)

// Which GIDs are usable is decided by the addresses of the network namespace, whatever its interfaces are called.
func TestVerifyGIDs(t *testing.T) {
	// In hcatest, the first netdev of each HCA has the address own.
	own := hcatest.Files{"proc/1/net/if_inet6": "00000000000000000000000000000001 01 80 10 80       " +
		"lo\nfe80000000000000020202fffe020000 02 40 20 80     net1\n"}
	mac := hcatest.Files{
		"proc/1/net/dev":             "Inter-|   Receive  |\n face |bytes |\n    lo: 1 2\n  net9: 3 4\n",
		"sys/class/net/net9/address": "00:02:02:02:00:00\n", "sys/class/net/lo/address": "00:00:00:00:00:00\n",
	}
	other := hcatest.Files{"proc/1/net/fib_trie": `Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 10.0.0.0
        /24 link UNICAST
Local:
     |-- 10.0.0.9
        /32 host LOCAL
     |-- 127.0.0.1
        /32 host LOCAL
     |-- 10.0.0.255
        /32 link BROADCAST
`}
	iwarp := hcatest.RoCENode()
	iwarp.HCAs[0].NodeType, iwarp.HCAs[1].NodeType = "4: RNIC", "4: RNIC"
	roce := hcatest.RoCENode().Files()
	second := hcatest.Dir("mlx5_1", "0000:3b:00.0") + "/ports/1/"
	ipv4 := hcatest.RoCENode().Files().With(hcatest.Files{
		second + "gids/4": "0000:0000:0000:0000:0000:ffff:0a00:0009\n", second + "gid_attrs/types/4": "RoCE v2\n",
	})
	sparse := hcatest.RoCENode().Files()
	for i := 4; i < 255; i++ {
		sparse[fmt.Sprintf("%sgids/%d", second, i)] = "0000:0000:0000:0000:0000:0000:0000:0000\n"
	}
	sparse[second+"gids/255"] = "0000:0000:0000:0000:0000:ffff:0a00:0009\n"
	both := maps.Clone(ipv4).With(hcatest.Files{
		hcatest.Dir("mlx5_0", "0000:18:00.0") + "/ports/1/gids/4":            "0000:0000:0000:0000:0000:ffff:0a00:0009\n",
		hcatest.Dir("mlx5_0", "0000:18:00.0") + "/ports/1/gid_attrs/types/4": "RoCE v2\n",
	})
	listless := maps.Clone(roce)
	maps.DeleteFunc(listless, func(name, _ string) bool { return strings.Contains(name, "/gids/") })
	var says golden.Cases
	for name, test := range map[string]struct{ node, namespace hcatest.Files }{
		"the netdevs are here":                                      {both, other},
		"an address of one HCA's netdev":                            {ipv4, other},
		"an address of one HCA's netdev, in a privileged container": {maps.Clone(ipv4).With(hcatest.Files{"dev/kmsg": ""}), other},
		"an address at the end of the table":                        {sparse, other},
		"none":                                                      {roce, other},
		"InfiniBand":                                                {mlx5Node().Files(), nil},
		"iWARP":                                                     {iwarp.Files(), nil},
		"no address but fe80":                                       {roce, own.With(other)},
		"the netdev is here, without an address":                    {roce, mac},
		"a driver that lists none":                                  {listless, other},
	} {
		says.Add(t, name, facts(t, inContainer(t, maps.Clone(test.node).With(test.namespace), unlimited, all), 0, "gid"))
	}
	c := inContainer(t, roce, unlimited, all)
	c.self = 8 // it has ended
	says.Add(t, "addresses that cannot be read", facts(t, c, 0, "gid"))
	says.Compare(t, "testdata/gids.txt")
}

// However CNI gives a pod an interface of its HCA, verify finds its address among the HCA's GIDs.
func TestVerifyNetworks(t *testing.T) {
	address := hcatest.Files{"proc/1/net/fib_trie": "Local:\n     |-- " + hcatest.PodAddress + "\n        /32 host LOCAL\n"}
	var says golden.Cases
	for name, test := range map[string]struct {
		node    hcatest.Files
		devices map[string]error
	}{
		"host-device":                 {hcatest.HostDeviceNode().Files(), map[string]error{"uverbs0": nil}},
		"SR-IOV":                      {hcatest.VirtualNode().Files(), map[string]error{"uverbs1": nil}},
		"SR-IOV, rdma-cni, exclusive": {hcatest.ExclusiveFiles("mlx5_1"), map[string]error{"uverbs1": nil}},
		"SR-IOV, exclusive":           {hcatest.ExclusiveFiles(), map[string]error{"uverbs1": unix.EPERM}},
	} {
		test.devices["rdma_cm"] = nil
		says.Add(t, name, facts(t, inContainer(t, test.node.With(address), unlimited, test.devices), 0, "device", "gid",
			"register"))
	}
	says.Compare(t, "testdata/networks.txt")
}

// verify judges the limits of the process that the user's program is, where it can tell which one, and the devices and
// libraries of the container that --target names, which are below /proc/1/root.
func TestVerifyTarget(t *testing.T) {
	proc := func(first, firstCgroup string) hcatest.Files {
		return hcatest.Files{"proc/1/comm": first + "\n", "proc/1/cgroup": firstCgroup + "\n", "proc/9/cgroup": "0::/\n",
			"proc/7/comm": "mpirun\n", "proc/7/cgroup": "0::/\n"}
	}
	var says golden.Cases
	for name, test := range map[string]struct {
		files hcatest.Files
		pid   int
		holds map[int]limits.Process
	}{
		"the first process may":     {proc("trainer", "0::/"), 0, nil},
		"the first process may not": {proc("trainer", "0::/"), 0, map[int]limits.Process{1: eight}},
		"the process that is named": {proc("init", "0::/"), 7, map[int]limits.Process{1: eight}},
		"the pod's pause":           {proc("pause", "0::/../p"), 0, map[int]limits.Process{1: eight}},
		"the node's init": {proc("systemd", "0::/init.scope").With(hcatest.Files{"proc/2/comm": "kthreadd\n"}), 0,
			map[int]limits.Process{1: eight}},
		"another container's":                {proc("trainer", "0::/../t"), 0, nil},
		"another container's, which may not": {proc("trainer", "0::/../t"), 0, map[int]limits.Process{1: eight}},
	} {
		c := inContainer(t, mlx5Node().Files().With(test.files), unlimited, all)
		c.self = 9
		if err := os.Remove(filepath.Join(c.root, "proc/1/root")); err != nil { // which may not be read
			t.Fatal(err)
		}
		c.process = func(pid int) (limits.Process, error) {
			if held, set := test.holds[pid]; set {
				return held, nil
			}
			return unlimited, nil
		}
		says.Add(t, name, facts(t, c, test.pid, "memlock", "device", "register"))
	}
	c := inContainer(t, mlx5Node().Files().With(hcatest.Files{
		"proc/1/comm": "trainer\n", "proc/1/cgroup": "0::/../t\n", "proc/9/cgroup": "0::/\n",
		"proc/1/root/dev/infiniband/uverbs1": "", "proc/1/root/usr/lib64/libibverbs.so.1": "",
		"proc/1/mountinfo": "32 30 0:6 / /dev/shm rw - tmpfs shm rw,size=65536k\n",
	}), unlimited, nil)
	c.self = 9
	says.Add(t, "the image of another container", facts(t, c, 0, "device", "library", "shared-memory"))
	says.Compare(t, "testdata/target.txt")
}

// The program of another container, which kubectl debug --target looks at, has the name that its author gave it.
func TestVerifyDoesNotSteerTheTerminal(t *testing.T) {
	node := mlx5Node().Files().With(hcatest.Files{"proc/1/comm": "\x1b]0;\r\n", "proc/9/comm": "rdma-spec\n"})
	c := inContainer(t, node, unlimited, map[string]error{"uverbs0": nil})
	c.self = 9
	var out strings.Builder
	if err := verify(&out, c, 64<<20, 0, cli.FormatText); err != nil || strings.ContainsAny(out.String(), "\x1b\r") ||
		!strings.Contains(out.String(), "process 1 (\ufffd]0;") {
		t.Errorf("%v: %q", err, out.String())
	}
}

func TestVerifyLibraries(t *testing.T) {
	const library, provider = "usr/lib/x86_64-linux-gnu/libibverbs.so.1",
		"usr/lib/x86_64-linux-gnu/libibverbs/libmlx5-rdmav34.so"
	efa := hcatest.V100Node()
	for i := range efa.HCAs {
		efa.HCAs[i].Driver = "efa"
	}
	abi := "sys/devices/pci0000:5e/0000:5e:00.0/infiniband_verbs/uverbs0/abi_version"
	var says golden.Cases
	for name, node := range map[string]hcatest.Files{
		"no library":                mlx5Node().Files(),
		"a link that leads nowhere": mlx5Node().Files().With(hcatest.Files{library: hcatest.Link("gone")}),
		"no provider":               mlx5Node().Files().With(hcatest.Files{library: ""}),
		"another ABI":               mlx5Node().Files().With(hcatest.Files{library: "", provider: "", abi: "6\n"}),
		"a provider whose ABI is not known": efa.Files().With(hcatest.Files{library: "",
			"usr/lib/libibverbs/libefa-rdmav34.so": ""}),
	} {
		says.Add(t, name, facts(t, inContainer(t, node, unlimited, map[string]error{"uverbs0": nil}), 0, "library"))
	}
	says.Compare(t, "testdata/libraries.txt")
}

func TestVerification_room(t *testing.T) {
	for name, test := range map[string]struct {
		files hcatest.Files
		want  uint64
		known bool
	}{
		"version 2":           {hcatest.Files{"memory.max": "1000\n", "memory.current": "400\n"}, 600, true},
		"version 2, no limit": {hcatest.Files{"memory.max": "max\n", "memory.current": "400\n"}, 0, false},
		"full of page cache": {hcatest.Files{
			"memory.max": "314572800\n", "memory.current": "313524224\n",
			"memory.stat": "anon 4096\nfile 300000000\ninactive_file 209715200\nactive_file 1\nslab_reclaimable 1048576\nslab " +
				"5\n",
		}, 314572800 - 313524224 + 209715200 + 1048576, true},
		"more cache than use": {hcatest.Files{"memory.max": "1000\n", "memory.current": "400\n",
			"memory.stat": "inactive_file 500\n"}, 1000, true},
		"version 1, full of page cache": {hcatest.Files{
			"memory/memory.limit_in_bytes": "1000\n", "memory/memory.usage_in_bytes": "900\n",
			"memory/memory.stat": "inactive_file 1\ntotal_inactive_file 700\n",
		}, 800, true},
		"version 1": {hcatest.Files{"memory/memory.limit_in_bytes": "1000\n",
			"memory/memory.usage_in_bytes": "1200\n"}, 0, true},
		"version 1, no limit": {hcatest.Files{"memory/memory.limit_in_bytes": "9223372036854771712\n",
			"memory/memory.usage_in_bytes": "0\n"}, 9223372036854771712, true},
		"no cgroup to be seen": {hcatest.Files{}, 0, false},
	} {
		below := hcatest.Files{"sys/": ""}
		for file, text := range test.files {
			below["sys/fs/cgroup/"+file] = text
		}
		seen, err := node.Open(node.Options{Root: below.Root(t)})
		if err != nil {
			t.Fatal(err)
		}
		v := verification{seen: seen}
		got, known := v.room()
		_ = seen.Close() // it was only read
		if got != test.want || known != test.known {
			t.Errorf("%s: %d, %v, want %d, %v", name, got, known, test.want, test.known)
		}
	}
}
