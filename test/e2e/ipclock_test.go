// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

const capIPCLock = 14 // linux/capability.h

// capabilities returns which capability sets in a process's status contain IPC_LOCK, of "CapInh CapPrm CapEff CapBnd
// CapAmb".
func capabilities(t *testing.T, status string) string {
	t.Helper()
	var sets []string
	for line := range strings.Lines(status) {
		name, mask, _ := strings.Cut(strings.TrimSpace(line), ":")
		if !strings.HasPrefix(name, "Cap") {
			continue
		}
		bits, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
		if err != nil {
			t.Errorf("capabilities of the process: %q", line) // not Fatal, because the caller can be in another goroutine
		}
		if bits>>capIPCLock&1 == 1 {
			sets = append(sets, name)
		}
	}
	return strings.Join(sets, " ")
}

const everySet = "CapInh CapPrm CapEff CapBnd CapAmb"

func expectCapabilities(t *testing.T, id, want string) {
	t.Helper()
	if got := capabilities(t, scratch.Read(t, fmt.Sprintf("/proc/%d/status", pid(t, id)))); got != want {
		t.Errorf("IPC_LOCK is in %q of the container's process, want %q", got, want)
	}
	if got := capabilities(t, shell(t, id, "cat /proc/self/status")); got != want {
		t.Errorf("IPC_LOCK is in %q of an exec, want %q", got, want)
	}
}

// IPC_LOCK is effective for every user, with allowPrivilegeEscalation: false, and in execs.
func TestIPCLockForEveryUser(t *testing.T) {
	startPlugin(t, "{}")
	pod := runPod(t, containerd.Pod{})
	for name, ctr := range map[string]containerd.Container{
		"root":     {},
		"uid-1000": {User: 1000, NoNewPrivs: true},
	} {
		ctr.Name, ctr.Devices = name, containerd.Verbs(0)
		expectCapabilities(t, runContainer(t, pod, ctr), everySet)
	}
	// A container whose author drops all capabilities keeps none.
	dropped := runContainer(t, pod, containerd.Container{Name: "dropped", Devices: containerd.Verbs(0),
		DropCaps: []string{"ALL"}})
	expectCapabilities(t, dropped, "")
	expectMemlock(t, dropped, "unlimited")
	unrelated := runContainer(t, pod, containerd.Container{Name: "unrelated"})
	expectCapabilities(t, unrelated, "")
}

// With ipcLock: requested, a container has IPC_LOCK only if its pod requests it, but then for every user.
func TestIPCLockRequested(t *testing.T) {
	startPlugin(t, "ipcLock: requested")
	pod := runPod(t, containerd.Pod{})
	for name, ctr := range map[string]containerd.Container{
		"drops-all-else":        {AddCaps: []string{"IPC_LOCK"}, DropCaps: []string{"ALL"}},
		"does-not-ask":          {},
		"asks-and-drops-it-too": {AddCaps: []string{"IPC_LOCK"}, DropCaps: []string{"IPC_LOCK"}},
	} {
		want := everySet
		if !slices.Contains(ctr.AddCaps, "IPC_LOCK") || slices.Contains(ctr.DropCaps, "IPC_LOCK") {
			want = ""
		}
		ctr.Name, ctr.Devices, ctr.User, ctr.NoNewPrivs = name, containerd.Verbs(0), 1000, true
		id := runContainer(t, pod, ctr)
		t.Log(name)
		expectCapabilities(t, id, want)
		expectMemlock(t, id, "unlimited")
	}
}

// locker runs test/e2e/locker in a container and returns its output.
func locker(t *testing.T, id, kind string, size int) string {
	t.Helper()
	return shell(t, id, fmt.Sprintf("/opt/locker %s %d", kind, size))
}

func withLocker(ctr containerd.Container) containerd.Container {
	ctr.Mounts = []containerd.Mount{{Host: *bin + "/locker", Container: "/opt/locker"}}
	return ctr
}

// With a memlock of 64 KiB, a process can lock a megabyte only because of the capability.
func TestIPCLockIsWhatCounts(t *testing.T) {
	for mode, want := range map[string]bool{"always": true, "false": false} {
		t.Run(mode, func(t *testing.T) {
			startPlugin(t, "{memlock: 64Ki, ipcLock: "+mode+"}")
			pod := runPod(t, containerd.Pod{})
			id := runContainer(t, pod, withLocker(containerd.Container{Devices: containerd.Verbs(0), User: 1000}))
			expectMemlock(t, id, strconv.Itoa(64<<10))
			for _, kind := range []string{"mmap", "shm"} {
				if got := locker(t, id, kind, 1<<20); (got == "locked") != want {
					t.Errorf("locking a megabyte by %s says %q", kind, got)
				}
			}
		})
	}
}

// A finite memlock is enforced: the container does not get IPC_LOCK, which would make it ineffective.
func TestFiniteMemlockHolds(t *testing.T) {
	startPlugin(t, "rules: [{name: gig, match: {namespaces: [default]}, memlock: 1Gi}]")
	pod := runPod(t, containerd.Pod{})
	id := runContainer(t, pod, withLocker(containerd.Container{Devices: containerd.Verbs(0)}))
	expectMemlock(t, id, strconv.Itoa(1<<30))
	expectCapabilities(t, id, "")
	if got := locker(t, id, "mmap", 64<<20); got != "locked" {
		t.Errorf("locking 64 MiB under a limit of 1 GiB says %q", got)
	}
	if got := locker(t, id, "mmap", 2<<30); !strings.Contains(got, "resource temporarily unavailable") {
		t.Errorf("locking 2 GiB under a limit of 1 GiB says %q", got)
	}
}

// The stored spec keeps the change after a restart of containerd, and after CRI updates the container's resources.
func TestIPCLockStays(t *testing.T) {
	startPlugin(t, "{}")
	pod := runPod(t, containerd.Pod{})
	id := runContainer(t, pod, containerd.Container{Devices: containerd.Verbs(0), User: 1000, MemoryLimit: 256 << 20})
	_, err := ctrd.CRI().UpdateContainerResources(within(t, patience), &cri.UpdateContainerResourcesRequest{
		ContainerId: id, Linux: &cri.LinuxContainerResources{MemoryLimitInBytes: 512 << 20},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := shell(t, id, "cat /sys/fs/cgroup/memory.max"); got != strconv.Itoa(512<<20) {
		t.Errorf("the memory limit is %s: the update did not take place, so this tests nothing", got)
	}
	expectCapabilities(t, id, everySet)
	if err := ctrd.Restart(within(t, patience)); err != nil {
		t.Fatal(err)
	}
	expectCapabilities(t, id, everySet)
}
