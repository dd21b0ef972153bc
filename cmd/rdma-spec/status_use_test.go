// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri/critest"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/rdma/rdmatest"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
	"github.com/rdma-spec/rdma-spec/test/testing/race"
)

const (
	selfStatus = "proc/4000/status"
	gibi       = 1 << 30
)

// self is the status of this process, of which the kernel's book has the PID namespace.
func self() []byte { return fmt.Appendf(nil, "NSpid:\t%d\n", os.Getpid()) }

// addUser adds a process that has pinned memory.
func addUser(files hcatest.Files, n int, cgroup string, pinned uint64) {
	addProcess(files, n, "unlimited unlimited", ipcLocked)
	at := fmt.Sprintf("proc/%d/", n)
	files[at+"cgroup"] = "0::" + cgroup + "\n"
	files[at+"status"] = strings.Replace(files[at+"status"], "main\n", "train\n", 1) +
		fmt.Sprintf("Tgid:\t%d\nVmPin:\t%8d kB\n", n, pinned>>10)
	files["proc/self"], files[selfStatus] = hcatest.Link("4000"), string(self())
}

// usingNode is a node whose containers use RDMA, or not, in every way, and what its kernel knows.
func usingNode() (files hcatest.Files, containers []critest.Container, kernel []rdmatest.HCA) {
	files = hcatest.V100Node().Files()
	add := func(c critest.Container, pinned uint64) {
		c.Started = time.Now().Add(-3 * time.Hour)
		addUser(files, c.PID, "/kubepods/"+c.ID, pinned)
		containers = append(containers, c)
	}
	add(holder(1, 0, "idle"), 0)
	add(holder(2, 1, "busy"), 41*gibi)
	both := holder(3, 0, "both")
	both.Spec.Linux.Devices = append(both.Spec.Linux.Devices, holder(3, 1, "").Spec.Linux.Devices...)
	add(both, gibi)
	add(holder(4, 1, "devx"), gibi)
	add(holder(5, 1, "opened"), 0)
	small := holder(6, 1, "full")
	small.Namespace = "small"
	add(small, 15*gibi+gibi/5)
	privileged := other(7, "privileged")
	privileged.Spec.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}
	add(privileged, gibi)
	idle := other(8, "privileged-idle")
	idle.Spec = privileged.Spec
	add(idle, 0)
	add(other(9, "mounted"), gibi)
	files["proc/9/mountinfo"] = "31 30 0:5 /infiniband /dev/infiniband ro - devtmpfs udev rw\n"
	optedOut := holder(10, 0, "opted-out")
	optedOut.Annotations = map[string]string{"rdma.noderesource.dev": "false"}
	add(optedOut, gibi)
	add(other(11, "unrelated"), gibi) // io_uring pins memory as well
	addUser(files, 20, "/system.slice/storage.service", gibi)
	addUser(files, 21, "/system.slice/docker-"+containerID(99)+".scope", gibi)
	of := func(pid int, state uint8, regions ...uint64) rdmatest.Context {
		return rdmatest.Context{Thread: uint32(pid), RegionThread: uint32(pid), Regions: regions,
			QueuePairs: []uint8{3, 3, state}}
	}
	return files, containers, []rdmatest.HCA{
		{Name: "mlx5_0", Contexts: []rdmatest.Context{of(3, 3, gibi/2), of(7, 3, gibi), of(9, 3, gibi), of(10, 3, gibi),
			of(20, 3, gibi)}},
		{Name: "mlx5_1", Contexts: []rdmatest.Context{of(2, 6, 40*gibi, gibi), of(3, 5, gibi/2),
			{Thread: 5}, of(6, 3, 15*gibi), of(20, 3), of(21, 3, gibi)}},
	}
}

// TestStatusUse has a table for what status says of who uses RDMA. An archive has the same.
func TestStatusUse(t *testing.T) {
	files, containers, kernel := usingNode()
	root := files.Root(t)
	rdmatest.Serve(t, kernel...)
	node := by(t, mixedConfig, serve(t, root, containers...))
	archive := collected(t, root, node...)
	masked := func(text string) string {
		text = regexp.MustCompile(`"started": ".*"`).ReplaceAllString(text, `"started": "…"`)
		return strings.NewReplacer(node[1], "CONFIG", root, "ROOT", node[5], "SOCKET").Replace(text)
	}
	var all strings.Builder
	for _, args := range []string{"", "--outside", "--queue-pairs ml/busy ml/both", "--outside -o json",
		"-o json ml/idle ml/busy ml/devx"} {
		got := words("status "+args, node...)
		fmt.Fprintf(&all, "$ rdma-spec status %s\n%s--- stderr, %d\n%s\n", args, masked(got.Stdout), got.Status,
			masked(got.Stderr))
		if !strings.HasPrefix(args, "--queue-pairs") {
			here := words("status "+args, "--root", archive)
			if diff := cmp.Diff(masked(got.Stdout), masked(here.Stdout)); diff != "" {
				t.Errorf("status %s (-there +here):\n%s", args, diff)
			}
		}
	}
	golden.Compare(t, filepath.Join("testdata", "status/use.txt"), all.String())
}

// What the kernel does not tell is unknown, and never none: of ml/idle, which holds mlx5_0 and has done nothing, and of
// who uses RDMA outside.
func TestStatusUseUnknown(t *testing.T) {
	files, containers, kernel := usingNode()
	runtime := critest.Serve(t, critest.Options{}, containers...)
	file, says := configFile(t, mixedConfig), golden.Cases{}
	for name, change := range map[string]func(files hcatest.Files, kernel []rdmatest.HCA) []rdmatest.HCA{
		"known": func(_ hcatest.Files, k []rdmatest.HCA) []rdmatest.HCA { return k },
		"an old kernel": func(_ hcatest.Files, k []rdmatest.HCA) []rdmatest.HCA {
			return []rdmatest.HCA{{Name: "mlx5_0", Old: true}, k[1]}
		},
		"a thread that has ended": func(_ hcatest.Files, k []rdmatest.HCA) []rdmatest.HCA {
			return []rdmatest.HCA{{Name: "mlx5_0", Contexts: []rdmatest.Context{{}}}, k[1]}
		},
		"another network namespace": func(_ hcatest.Files, k []rdmatest.HCA) []rdmatest.HCA { return k[1:] },
		"exclusive": func(files hcatest.Files, k []rdmatest.HCA) []rdmatest.HCA {
			files["sys/module/ib_core/parameters/netns_mode"] = "N\n"
			return k
		},
		"exclusive, in the node's network": func(files hcatest.Files, k []rdmatest.HCA) []rdmatest.HCA {
			files["sys/module/ib_core/parameters/netns_mode"] = "N\n"
			files["proc/1/ns/net"] = hcatest.Link("net:[2]")
			return k
		},
		"another PID namespace": func(files hcatest.Files, k []rdmatest.HCA) []rdmatest.HCA {
			files[selfStatus] = "NSpid:\t4000\t7\n"
			return k
		},
	} {
		changed := maps.Clone(files)
		rdmatest.Serve(t, change(changed, kernel)...)
		root := changed.Root(t)
		node := []string{"--config", file, "--root", root, "--runtime-endpoint", runtime.Socket}
		got := words("status ml/idle", node...)
		names := strings.NewReplacer(file, "CONFIG", root, "ROOT", runtime.Socket, "SOCKET")
		says.Add(t, name, names.Replace(got.Stdout+got.Stderr)+
			fmt.Sprintf("exit status %d, --outside %d\n", got.Status, words("status --outside", node...).Status))
	}
	says.Compare(t, "testdata/status/use-unknown.txt")
}

// Where no RDMA container holds an HCA of which the kernel does not list the users, nobody says that all is well.
func TestOutsideOfAnOldKernel(t *testing.T) {
	files, containers, _ := usingNode()
	privileged := slices.DeleteFunc(containers, func(c critest.Container) bool { return c.Pod != "privileged" })
	names := map[string]string{"NODE": files.Root(t), "CONFIG": configFile(t, mixedConfig),
		"SOCKET": critest.Serve(t, critest.Options{}, privileged...).Socket}
	rdmatest.Serve(t, rdmatest.HCA{Name: "mlx5_0", Old: true})
	compareCalls(t, "status/old-kernel", names, `
		status --config CONFIG --root NODE --runtime-endpoint SOCKET
		status --outside --config CONFIG --root NODE --runtime-endpoint SOCKET`)
}

// manyRegionsBelow is the variable with the root of a node whose kernel has many memory regions.
const manyRegionsBelow = "RDMA_SPEC_TEST_REGIONS_BELOW"

// manyRegions is a kernel with 100,000 memory regions of 80 containers on eight HCAs.
func manyRegions() []rdmatest.HCA {
	var hcas []rdmatest.HCA
	regions := make([]uint64, 100_000/80)
	for i := range regions {
		regions[i] = 1 << 20
	}
	for i := range 8 {
		h := rdmatest.HCA{Name: fmt.Sprintf("mlx5_%d", i)}
		for n := 1; n <= 80; n++ {
			if n%8 == i {
				h.Contexts = append(h.Contexts, rdmatest.Context{Thread: uint32(n), Regions: regions, RegionThread: uint32(n)})
			}
		}
		hcas = append(hcas, h)
	}
	return hcas
}

// status needs less than a second and 60 MB for 200 containers and 100,000 memory regions: in CPU time, since the
// machine has others to serve, and with what the kernel of the test needs to make its answers. On a machine so slow
// that a node without containers takes 25 ms and more, it may take 40 times that.
func TestStatusOfManyRegions(t *testing.T) {
	if race.Detector {
		t.Skip("the race detector takes its own time and memory")
	}
	files, containers := busyNode()
	for n := 1; n <= 200; n++ {
		addUser(files, n, "/kubepods/"+containerID(n), 0)
	}
	root := files.Root(t)
	busy := append([]string{"status"}, by(t, "{}", serve(t, root, containers...))...)
	idle := append([]string{"status"}, by(t, "{}", serve(t, root))...)
	expectCheap(t, time.Second, 40, 60e6, func() (time.Duration, int) {
		t.Setenv(manyRegionsBelow, root)
		stdout, took, needed := costOf(t, busy...)
		if strings.Count(stdout, " 1.2 GiB on mlx5_") != 80 {
			t.Fatal(stdout)
		}
		return took, needed
	}, func() time.Duration {
		t.Setenv(manyRegionsBelow, "")
		_, took, _ := costOf(t, idle...)
		return took
	})
}

// The metrics are of RDMA containers that hold an HCA. What is unknown has no series, and there are 500 at most.
func TestDoctorUse(t *testing.T) {
	files, containers, kernel := usingNode()
	for n := 100; n < 600; n++ {
		containers = append(containers, holder(n, 0, fmt.Sprintf("pod-%d", n), memlockOf(65536)))
	}
	node := by(t, mixedConfig, serve(t, files.Root(t), containers...))
	rdmatest.Serve(t, kernel...)
	series := regexp.MustCompile(`(?m)^rdma_spec_container_.*$`)
	all := words("doctor -o prometheus", node...).Stdout
	var got []string
	for _, line := range series.FindAllString(all, -1) {
		if !strings.Contains(line, `pod="pod-`) {
			got = append(got, line)
		}
	}
	golden.Compare(t, filepath.Join("testdata", "status/use.prom"), strings.Join(got, "\n")+"\n")
	if n := strings.Count(all, "\nrdma_spec_container_memlock_limit_bytes{"); n != 500 {
		t.Errorf("there are %d series of limits, want 500", n)
	}
	if strings.Contains(all, `rdma_spec_container_registered_bytes{container="main",namespace="ml",pod="pod-`) {
		t.Errorf("what is unknown has series:\n%s", all)
	}
	if some := words("doctor -o prometheus --only port-active", node...).Stdout; series.MatchString(some) {
		t.Errorf("--only:\n%s", some)
	}
}
