// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net/netip"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/agents"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri/critest"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/runtime"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

const limitsText = "Limit                     Soft Limit           Hard Limit           Units\nMax locked memory     " +
	"    8388608              8388608              bytes\n"

// aProcess adds a process of the node to its files.
func aProcess(files hcatest.Files, pid int, exe string, args ...string) hcatest.Files {
	dir := fmt.Sprintf("proc/%d/", pid)
	name := filepath.Base(strings.TrimSuffix(exe, process.Deleted))
	return files.With(hcatest.Files{
		dir + "comm": name[:min(len(name), 15)] + "\n", dir + "exe": hcatest.Link(exe), dir +
			"cmdline": strings.Join(append([]string{exe}, args...), "\x00") + "\x00",
		dir + "ns/mnt": hcatest.Link("mnt:[1]"), dir + "ns/net": hcatest.Link("net:[1]"), dir + "limits": limitsText,
		dir + "stat": fmt.Sprintf("%d (%s) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 %d00 0 0", pid, name, pid),
	})
}

// aNode has a process 1, and was booted in 2026.
func aNode() hcatest.Files {
	return aProcess(hcatest.Files{"proc/stat": "cpu 1\nbtime 1767225600\n"}, 1, "/sbin/init")
}

// known returns an answer, which must have come.
func known[T any](answer T, err error) T {
	if err != nil {
		panic(err)
	}
	return answer
}

// aContainerd is a program that prints its effective configuration.
const aContainerd = `#!/bin/sh
case "$*" in
*dump) cat <<END
[plugins.'io.containerd.cri.v1.runtime'.containerd]
default_runtime_name = 'runc'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.good]
base_runtime_spec = '/etc/containerd/good.json'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.gone]
base_runtime_spec = '/etc/containerd/gone.json'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = 'io.containerd.runc.v2'
[plugins.'io.containerd.nri.v1.nri']
socket_path = '/var/run/nri/nri.sock'
END
;;
*) echo containerd github.com/containerd/containerd/v2 v2.4.2 ;;
esac
`

func TestRuntimes(t *testing.T) {
	files := aProcess(aNode(), 100, "/usr/bin/containerd").With(hcatest.Files{
		"etc/containerd/config.toml": "version = 3\n",
		"etc/containerd/good.json":   `{"ociVersion": "1.3.0", "linux": {}, "process": {"rlimits": [{"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024}, {"type": "RLIMIT_MEMLOCK", "hard": 18446744073709551615, "soft": 65536}]}}`,
		"proc/100/cgroup":            "0::/system.slice/containerd.service\n",
		"proc/100/fd/7":              hcatest.Link("socket:[4711]"),
		"proc/net/unix": "Num RefCount Protocol Flags Type St Inode Path\n0: 00000002 00000000 00010000 0001 " +
			"01 4711 /run/nri/nri.sock\n0: 3 0 00000000 0001 03 4712 /run/nri/nri.sock\n",
	})
	files = aProcess(files, 101, "/usr/bin/containerd", "--config", "/run/docker/containerd.toml",
		"--address", "/run/docker/c.sock")
	files = aProcess(files, 102, "/usr/bin/containerd")                                                     // in a container
	files = aProcess(files, 103, "/usr/bin/containerd", "--config", "/run/x/config.toml", "config", "dump") // no daemon
	files["proc/102/root/"] = ""
	files["run/docker/containerd.toml"] = "disabled_plugins = ['cri']\n"
	dir := files.Root(t)
	scratch.File(t, filepath.Join(dir, "usr/bin/containerd"), aContainerd, 0o755)
	critest.Serve(t, critest.Options{Root: dir, Path: "run/containerd/containerd.sock"})
	scratch.Socket(t, filepath.Join(dir, "var/run/nri/nri.sock"))

	got := known(runtime.Read(t.Context(), dir)).Runtimes
	if len(got) != 2 {
		t.Fatalf("%+v", got)
	}
	memlock, small := spec.Limit(8<<20), spec.Limit(64<<10)
	want := runtime.Runtime{
		Name: "containerd", Version: "v2.4.2", PID: 100, Unit: "containerd.service", Memlock: &memlock,
		Socket: "/run/containerd/containerd.sock", Serves: true,
		Config: "/etc/containerd/config.toml", Known: true, DefaultHandler: "runc",
		Handlers: []runtime.Handler{
			{Name: "gone", NoType: true, BaseSpec: "/etc/containerd/gone.json", Error: "no such file or directory"},
			{Name: "good", NoType: true, BaseSpec: "/etc/containerd/good.json", Memlock: &small, CapsFiles: true, OCIVersion: "1.3.0"},
			{Name: "runc", Program: "runc"},
		},
		NRI: runtime.NRI{On: true, Socket: "/var/run/nri/nri.sock", SocketExists: true, Listener: 100},
	}
	if diff := cmp.Diff(want, got[0]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if second := got[1]; second.PID != 101 || second.Socket != "/run/docker/c.sock" ||
		second.Config != "/run/docker/containerd.toml" || second.Serves || second.Error == "" {
		t.Errorf("%+v", second)
	}
}

// A CRI-O that is alone, and a containerd that is installed and does not run.
func TestRuntimes_crioAndInstalledContainerd(t *testing.T) {
	files := aProcess(aNode(), 100, "/usr/bin/crio").With(hcatest.Files{
		"etc/crio/crio.conf.d/10": "[crio.runtime]\ndefault_ulimits = " +
			"['memlock=-1:-1']\n[crio.nri]\nenable_nri = false\n",
		"usr/lib/systemd/system/crio.service": "",
	})
	dir := files.Root(t)
	scratch.File(t, filepath.Join(dir, "usr/bin/containerd"), aContainerd, 0o755)
	critest.Serve(t, critest.Options{Name: "cri-o", Version: "1.34.0", Root: dir, Path: "run/crio/crio.sock"})
	got := known(runtime.Read(t.Context(), dir)).Runtimes
	if len(got) != 2 {
		t.Fatalf("%+v", got)
	}
	crio, installed := got[0], got[1]
	if !crio.Serves || crio.Version != "1.34.0" || crio.Unit != "crio.service" || crio.NRI.On ||
		crio.NRI.Off != "enable_nri = false" || *crio.DefaultMemlock != 1<<64-1 {
		t.Errorf("%+v", crio)
	}
	if installed.PID != 0 || installed.Serves || installed.Socket != "" ||
		installed.Version != "2.4.2" || !installed.Known {
		t.Errorf("%+v", installed)
	}
}

// A container sees a runtime's socket, and neither its configuration nor its program.
func TestRuntimes_fromContainer(t *testing.T) {
	for program, socket := range map[string]string{"/usr/bin/crio": "run/crio/crio.sock",
		"/usr/bin/containerd": "run/containerd/containerd.sock"} {
		dir := aProcess(aNode(), 100, program).Root(t)
		critest.Serve(t, critest.Options{Name: path.Base(program), Version: "1.34.0", Root: dir, Path: socket})
		got := known(runtime.Read(t.Context(), dir)).Runtimes
		if len(got) != 1 || !got[0].Serves || got[0].Known || !got[0].NotMounted || got[0].NRI.On {
			t.Errorf("%s: %+v", program, got)
		}
	}
}

func TestPlugin(t *testing.T) {
	files := aProcess(aNode(), 200, "/usr/local/bin/nri-rdma (deleted)", "--config=/etc/my.yaml")
	files = aProcess(files, 201, "/usr/local/bin/nri-rdma", "--validate")
	files = aProcess(files, 202, "/opt/nri/plugins/10-ulimit-adjuster")
	files = aProcess(files, 203, "/nri-rdma", "--handover=/run/rdma-spec/handover") // the DaemonSet's
	files = aProcess(files, 204, "/nri-rdma")                                       // somebody's, who calls it so
	files = aProcess(files, 205, "/opt/nri/plugins/90-rdma")
	files.With(hcatest.Files{
		"etc/my.yaml": "memlok: 1Gi\n", "proc/200/root": hcatest.Link("../.."), "proc/203/root/": "", "proc/204/root/": "",
		"proc/201/root": hcatest.Link("../.."), "proc/205/root": hcatest.Link("../.."),
		"proc/200/ns/mnt": hcatest.Link("mnt:[2]"), // a service has mounts of its own
		"proc/203/mountinfo": "30 20 0:25 /nri /var/run/nri rw - tmpfs tmpfs rw\n" +
			"31 20 0:25 /rdma-spec/handover/hpc.mine /run/rdma-spec/handover rw - tmpfs tmpfs rw\n",
		"proc/204/mountinfo":      "30 20 0:25 / / rw - overlay overlay rw\n",
		"opt/nri/plugins/90-rdma": "", "etc/systemd/system/nri-rdma.service": "",
	})
	got := agents.ReadPlugin(files.Root(t), "0.9")
	started := func(pid int) time.Time { return time.Unix(1767225600+int64(pid), 0) }
	want := agents.Plugin{
		Unit: true, Launched: "/opt/nri/plugins/90-rdma", Tool: "0.9",
		Processes: []agents.PluginProcess{
			{Name: "nri-rdma", PID: 200, Started: started(200), Replaced: true, Config: "/etc/my.yaml",
				ConfigError: `unknown field "memlok"`},
			{Name: "nri-rdma", PID: 201, Started: started(201), Validator: true},
			{Name: "ulimit-adjuster", PID: 202, Started: started(202)},
			{Name: "nri-rdma", PID: 203, InContainer: true, Started: started(203), Handover: "/rdma-spec/handover/hpc.mine"},
			{Name: "nri-rdma", PID: 205, Started: started(205)},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestPolicyInForce(t *testing.T) {
	for name, test := range map[string]struct {
		files hcatest.Files
		want  agents.PolicyInForce
		error bool
	}{
		"none": {hcatest.Files{}, agents.PolicyInForce{}, false},
		"ended": {hcatest.Files{"run/rdma-spec/policy.yaml": "apiVersion: rdma-spec/v1alpha1\nsource: x\npid: 1\npolicy: " +
			"{}\n"}, agents.PolicyInForce{Exists: true}, false},
		"garbage": {hcatest.Files{"run/rdma-spec/policy.yaml": "garbage"}, agents.PolicyInForce{Exists: true}, true},
	} {
		t.Run(name, func(t *testing.T) {
			got := agents.ReadPolicyInForce(test.files.Root(t))
			if (got.Error != "") != test.error {
				t.Errorf("%+v", got)
			}
			got.Error = ""
			if got != test.want {
				t.Errorf("%+v, want %+v", got, test.want)
			}
		})
	}
}

func TestInside(t *testing.T) {
	files := aProcess(aNode(), 500, "/train").With(hcatest.Files{
		"proc/500/ns/net": hcatest.Link("net:[2]"),
		"proc/500/status": "Name:\ttrain\nUid:\t0\t1000\t0\t0\n",
		"proc/500/net/fib_trie": "Local:\n     |-- 10.0.0.9\n        /32 host LOCAL\n     |-- 127.0.0.1\n " +
			"       /32 host LOCAL\n     |-- 10.0.0.255\n        /32 link BROADCAST\n",
		"proc/500/net/if_inet6": "00000000000000000000000000000001 01 80 10 80 " +
			"lo\nfd000000000000000000000000000001 02 40 20 80 eth0\n",
		"proc/500/net/dev":                         "Inter-|   Receive  |\n face |bytes |\n    lo: 1 2\n  eth0: 3 4\n",
		"proc/500/root/sys/class/net/lo/address":   "00:00:00:00:00:00\n",
		"proc/500/root/sys/class/net/eth0/address": "52:54:00:12:34:56\n",
		"proc/500/root/sys/class/net/eth0/mtu":     "9000\n",
		"proc/500/root/sys/class/net/host/address": "52:54:00:12:34:57\n", // of the namespace that sysfs was mounted for
		"proc/500/mountinfo": "31 30 0:5 /infiniband /dev/infiniband ro - devtmpfs udev rw\n32 30 0:6 / /dev/shm rw - " +
			"tmpfs shm rw,size=65536k\n" +
			"33 30 0:5 /infiniband/uverbs0 /dev/infiniband/uverbs0 rw - devtmpfs udev rw\n34 30 0:7 / /data rw - xfs " +
			"/dev/sda1 rw\n35 30 0:8 / /hugepages rw - hugetlbfs nodev rw,pagesize=2M\n",
		"proc/500/root/usr/lib/x86_64-linux-gnu/libibverbs.so.1":                   hcatest.Link("libibverbs.so.1.14"),
		"proc/500/root/usr/lib/x86_64-linux-gnu/libibverbs.so.1.14":                "",
		"proc/500/root/usr/lib/x86_64-linux-gnu/libibverbs/libmlx5-rdmav34.so":     "",
		"proc/500/root/usr/lib/x86_64-linux-gnu/libibverbs/libmlx5-rdmav34.so.old": "",
		"proc/500/root/usr/lib64/libibverbs/librxe-rdmav34.so":                     "",
	})
	dir, shm := files.Root(t), spec.Limit(64<<20)
	want := process.Inside{
		User: 1000, Known: true, OwnNetwork: true, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.9"),
			netip.MustParseAddr("fd00::1")}, HostPaths: []string{"/dev/infiniband", "/dev/infiniband/uverbs0"},
		SharedMem: &shm, HugePages: true,
		Links: []process.Link{{Name: "lo", Addresses: []netip.Addr{netip.IPv6Loopback()}},
			{Name: "eth0", Addresses: []netip.Addr{netip.MustParseAddr("fd00::1")}}},
		Image: process.Image{
			MTU:       map[string]int{"eth0": 9000},
			LibVerbs:  "/usr/lib/x86_64-linux-gnu/libibverbs.so.1",
			LinkLocal: []netip.Addr{netip.MustParseAddr("fe80::5054:ff:fe12:3456")},
			Providers: map[string]string{"mlx5": "/usr/lib/x86_64-linux-gnu/libibverbs/libmlx5-rdmav34.so",
				"rxe": "/usr/lib64/libibverbs/librxe-rdmav34.so"},
		},
	}
	got := process.Look(dir, 500, true, time.Minute)
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if paths := process.HostPaths(dir, 500); len(paths) != 1 {
		t.Errorf("%q", paths)
	}
	gone := process.Look(dir, 501, false, time.Minute)
	if gone.Known || gone.User != -1 {
		t.Errorf("%+v", gone)
	}
}
