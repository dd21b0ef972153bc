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
)

// What verify says more than once.
const (
	pinned    = "memory: \"Couldn't allocate MR\" is caused by a lack of memory that can be pinned, or of the HCA's memory keys\n"
	untried   = "?     register 64Mi with mlx5_0: not tried: verify cannot register memory with its driver (unknown)"
	scarce    = "cannot allocate memory, although memlock or CAP_IPC_LOCK allow it: the node has too little memory that can be pinned, or the HCA has no memory keys left: see CREATE_MKEY in the node's kernel log"
	denied    = "the container's device cgroup does not permit it: a mount alone gives no access; take the device from a device plugin or by the annotation"
	dark      = "ports of mlx5_0: none is ACTIVE: check the cable, the switch and, on InfiniBand, the subnet manager"
	elsewhere = "its HCA is in another network namespace, and the node's mode is exclusive: have an RDMA CNI plugin move the HCA into the pod's namespace, or run rdma system set netns shared on the node"
	noHCA     = "device: the container has no usable HCA, so no memory can be registered\n"
	portDown  = "port down: an HCA's ports carry no traffic; this does not prevent a registration, but connections\n"
	notHere   = "?     register 64Mi: not tried: this container is not the target's, and has its own limits and devices"
	unseen    = "?     verbs devices of the target: cannot be seen from this container"
	noLibrary = "libibverbs: not in the image's usual folders: a program needs its own, or must be linked with it statically"
	remedy    = "see that nri-rdma runs on the node and takes this container for an RDMA container (rdma-spec " +
		"explain, rdma-spec status), and recreate the pod or run rdma-spec repair on the node\n"
	memlock = `memlock: "Couldn't allocate MR" is caused by RLIMIT_MEMLOCK
`
	well = `nothing found: memory of 64Mi can be registered; if "Couldn't allocate MR" is still reported, look at larger buffers, and at GPU memory (nvidia_peermem, DMA-BUF)
`
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
	second := hcatest.Folder("mlx5_1", "0000:3b:00.0") + "/ports/1/"
	ipv4 := hcatest.RoCENode().Files().With(hcatest.Files{
		second + "gids/4": "0000:0000:0000:0000:0000:ffff:0a00:0009\n", second + "gid_attrs/types/4": "RoCE v2\n",
	})
	sparse := hcatest.RoCENode().Files()
	for i := 4; i < 255; i++ {
		sparse[fmt.Sprintf("%sgids/%d", second, i)] = "0000:0000:0000:0000:0000:0000:0000:0000\n"
	}
	sparse[second+"gids/255"] = "0000:0000:0000:0000:0000:ffff:0a00:0009\n"
	both := maps.Clone(ipv4).With(hcatest.Files{
		hcatest.Folder("mlx5_0", "0000:18:00.0") + "/ports/1/gids/4":            "0000:0000:0000:0000:0000:ffff:0a00:0009\n",
		hcatest.Folder("mlx5_0", "0000:18:00.0") + "/ports/1/gid_attrs/types/4": "RoCE v2\n",
	})
	listless := maps.Clone(roce)
	maps.DeleteFunc(listless, func(name, _ string) bool { return strings.Contains(name, "/gids/") })
	none := func(hca string) string {
		return "FAIL  GIDs of " + hca + " port 1: none belongs to this network namespace, so RDMA_CM does not find the HCA, and " +
			"programs report Failed to query GID: give the pod the HCA's netdev by macvlan or SR-IOV, or use hostNetwork\n"
	}
	local := func(hca string) string {
		return "FAIL  GIDs of " + hca + " port 1 in this network namespace: only 0 (fe80::202:2ff:fe02:0, IB/RoCE v1), " +
			"1 (fe80::202:2ff:fe02:0, RoCE v2), which NCCL and RDMA_CM do not use: give the HCA's interface an IP address\n"
	}
	const namespace = "namespace: all addresses of an HCA belong to another network namespace; this does not " +
		"prevent a registration, but connections\n"
	for name, test := range map[string]struct {
		node, namespace hcatest.Files
		want            string
	}{
		"the netdevs are here": {both, other, `
ok    GIDs of mlx5_0 port 1 in this network namespace: 4 (10.0.0.9, RoCE v2)
ok    GIDs of mlx5_1 port 1 in this network namespace: 4 (10.0.0.9, RoCE v2)
` + well},
		"an address of one HCA's netdev": {ipv4, other, "\n" + none("mlx5_0") + `ok    GIDs of mlx5_1 port 1 in this network namespace: 4 (10.0.0.9, RoCE v2)
` + namespace},
		"an address of one HCA's netdev, in a privileged container": {maps.Clone(ipv4).With(hcatest.Files{"dev/kmsg": ""}), other,
			"\n" + strings.Replace(none("mlx5_0"), "FAIL", "-   ", 1) + `ok    GIDs of mlx5_1 port 1 in this network namespace: 4 (10.0.0.9, RoCE v2)
` + well},
		"an address at the end of the table": {sparse, other, "\n" + none("mlx5_0") + `ok    GIDs of mlx5_1 port 1 in this network namespace: 255 (10.0.0.9, unknown)
` + namespace},
		"none":       {roce, other, "\n" + none("mlx5_0") + none("mlx5_1") + namespace},
		"InfiniBand": {mlx5Node().Files(), nil, "\n" + well},
		"iWARP":      {iwarp.Files(), nil, "\n" + well},
		"no address but fe80": {roce, own.With(other), "\n" + local("mlx5_0") + local("mlx5_1") +
			"address: an HCA's interface has no IP address; this does not prevent a registration, but connections\n"},
		"the netdev is here, without an address": {roce, mac, "\n" + local("mlx5_0") + local("mlx5_1") +
			"address: an HCA's interface has no IP address; this does not prevent a registration, but connections\n"},
		"a driver that lists none": {listless, other, `
?     GIDs of mlx5_0 port 1: the driver lists none
?     GIDs of mlx5_1 port 1: the driver lists none
` + well},
	} {
		t.Run(name, func(t *testing.T) {
			c := inContainer(t, maps.Clone(test.node).With(test.namespace), unlimited, all)
			expectFacts(t, test.want, c, 0, "gid")
		})
	}
	c := inContainer(t, roce, unlimited, all)
	c.self = 8 // it has ended
	expectFacts(t, "?     GIDs: the addresses of this network namespace cannot be read: open "+c.root+
		"/proc/8/net/fib_trie: no such file or directory\n"+well, c, 0, "gid")
}

// However CNI gives a pod an interface of its HCA, verify finds its address among the HCA's GIDs.
func TestVerifyNetworks(t *testing.T) {
	address := hcatest.Files{"proc/1/net/fib_trie": "Local:\n     |-- " + hcatest.PodAddress + "\n        /32 host LOCAL\n"}
	works := func(hca string, number int) string {
		return fmt.Sprintf(`
ok    /dev/infiniband/uverbs%d: opened: %s, port 1 ACTIVE
ok    /dev/infiniband/rdma_cm: opened
ok    GIDs of %[2]s port 1 in this network namespace: 2 (10.244.0.8, RoCE v2)
ok    register 64Mi with %[2]s: done
`, number, hca) + well
	}
	for name, test := range map[string]struct {
		node    hcatest.Files
		devices map[string]error
		want    string
	}{
		"host-device": {hcatest.HostDeviceNode().Files(), map[string]error{"uverbs0": nil}, works("mlx5_0", 0)},
		"SR-IOV":      {hcatest.VirtualNode().Files(), map[string]error{"uverbs1": nil}, works("mlx5_1", 1)},
		"SR-IOV, rdma-cni, exclusive": {hcatest.ExclusiveFiles("mlx5_1"), map[string]error{"uverbs1": nil},
			works("mlx5_1", 1)},
		"SR-IOV, exclusive": {hcatest.ExclusiveFiles(), map[string]error{"uverbs1": unix.EPERM}, `
FAIL  /dev/infiniband/uverbs1: ` + elsewhere + `
ok    /dev/infiniband/rdma_cm: opened
` + noHCA},
	} {
		t.Run(name, func(t *testing.T) {
			test.devices["rdma_cm"] = nil
			expectFacts(t, test.want, inContainer(t, test.node.With(address), unlimited, test.devices), 0, "device", "gid",
				"register")
		})
	}
}

// verify judges the limits of the process that the user's program is, where it can tell which one.
func TestVerifyTarget(t *testing.T) {
	here := "ok    memlock of this process: unlimited (hard: unlimited)\n"
	proc := func(first, firstCgroup string) hcatest.Files {
		return hcatest.Files{"proc/1/comm": first + "\n", "proc/1/cgroup": firstCgroup + "\n", "proc/9/cgroup": "0::/\n",
			"proc/7/comm": "mpirun\n", "proc/7/cgroup": "0::/\n"}
	}
	for name, test := range map[string]struct {
		files hcatest.Files
		pid   int
		holds map[int]limits.Process
		want  string
	}{
		"the first process may": {proc("trainer", "0::/"), 0, nil,
			here + "ok    memlock of process 1 (trainer): unlimited (hard: unlimited)\n" + well},
		"the first process may not": {proc("trainer", "0::/"), 0, map[int]limits.Process{1: eight},
			here + `-     memlock of process 1 (trainer): 8Mi (hard: 8Mi)
FAIL  memlock of process 1 (trainer): less than 64Mi: ` + remedy + memlock},
		"the process that is named": {proc("init", "0::/"), 7, map[int]limits.Process{1: eight},
			here + "ok    memlock of process 7 (mpirun): unlimited (hard: unlimited)\n" + well},
		"the pod's pause": {proc("pause", "0::/../p"), 0, map[int]limits.Process{1: eight},
			here + "?     memlock of the program: process 1 is the pod's pause (shareProcessNamespace: true): name the " +
				"program's process with --pid\n" + well},
		"the node's init": {proc("systemd", "0::/init.scope").With(hcatest.Files{"proc/2/comm": "kthreadd\n"}), 0,
			map[int]limits.Process{1: eight}, here + well},
		"another container's": {proc("trainer", "0::/../t"), 0, nil,
			here + `ok    memlock of process 1 (trainer) in another container: unlimited (hard: unlimited)
` + unseen + `
` + notHere + `
nothing found: the limits of process 1 allow memory of 64Mi, but none was registered in its container
`},
		"another container's, which may not": {proc("trainer", "0::/../t"), 0, map[int]limits.Process{1: eight},
			here + `-     memlock of process 1 (trainer) in another container: 8Mi (hard: 8Mi)
FAIL  memlock of process 1 (trainer) in another container: less than 64Mi: ` + remedy + unseen + `
` + notHere + `
` + memlock},
	} {
		t.Run(name, func(t *testing.T) {
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
			about := []string{"memlock"}
			if test.pid == 0 && test.files["proc/1/cgroup"] == "0::/../t\n" {
				about = []string{"memlock", "device", "register"}
			}
			expectFacts(t, test.want, c, test.pid, about...)
		})
	}
}

// The devices and libraries of the container that --target names are visible below /proc/1/root.
func TestVerifyTargetImage(t *testing.T) {
	c := inContainer(t, mlx5Node().Files().With(hcatest.Files{
		"proc/1/comm": "trainer\n", "proc/1/cgroup": "0::/../t\n", "proc/9/cgroup": "0::/\n",
		"proc/1/root/dev/infiniband/uverbs1": "", "proc/1/root/usr/lib64/libibverbs.so.1": "",
		"proc/1/mountinfo": "32 30 0:6 / /dev/shm rw - tmpfs shm rw,size=65536k\n",
	}), unlimited, nil)
	c.self = 9
	expectFacts(t, `
?     /dev/infiniband/uverbs1 of the target: not opened from this container: mlx5_1, port 1 ACTIVE
ok    libibverbs: /usr/lib64/libibverbs.so.1
?     provider mlx5 for mlx5_1: not beside libibverbs, which then reports No IB devices found: install it (ibverbs-providers, libibverbs, rdma-core)
-     /dev/shm: 64Mi, too little for NCCL with several GPUs: mount an emptyDir with medium: Memory there
nothing found: the limits of process 1 allow memory of 64Mi, but none was registered in its container
`, c, 0, "device", "library", "shared-memory")
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
	for name, test := range map[string]struct {
		node hcatest.Files
		want string
	}{
		"no library": {mlx5Node().Files(),
			"-     " + noLibrary + "\n"},
		"a link that leads nowhere": {mlx5Node().Files().With(hcatest.Files{library: hcatest.Link("gone")}),
			"-     " + noLibrary + "\n"},
		"no provider": {mlx5Node().Files().With(hcatest.Files{library: ""}), "ok    libibverbs: /" + library +
			"\n?     provider mlx5 for mlx5_0: not beside libibverbs, which then reports No IB devices found: install it " +
			"(ibverbs-providers, libibverbs, rdma-core)\n"},
		"another ABI": {mlx5Node().Files().With(hcatest.Files{library: "", provider: "", abi: "6\n"}), "ok    libibverbs: /" +
			library + "\n?     provider mlx5 for mlx5_0: /" + provider +
			"; the kernel's ABI is 6, and rdma-core's provider supports 1 to 1; with another ABI it reports \"does not " +
			"support the kernel ABI\": install the provider that belongs to the kernel's driver\n"},
		"a provider whose ABI is not known": {efa.Files().With(hcatest.Files{library: "",
			"usr/lib/libibverbs/libefa-rdmav34.so": ""}), "ok    libibverbs: /" + library +
			"\n-     provider efa for mlx5_0: /usr/lib/libibverbs/libefa-rdmav34.so; which versions of the kernel's ABI (1) " +
			"it supports is not known here\n"},
	} {
		t.Run(name, func(t *testing.T) {
			c := inContainer(t, test.node, unlimited, map[string]error{"uverbs0": nil})
			if got, _ := cutLast(facts(t, c, 0, "library")); got != test.want {
				t.Errorf("got:\n%swant:\n%s", got, test.want)
			}
		})
	}
}

// cutLast cuts the last line off.
func cutLast(text string) (before, last string) {
	end := len(text) - 1
	for end > 0 && text[end-1] != '\n' {
		end--
	}
	return text[:end], text[end:]
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
