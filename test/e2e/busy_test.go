// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/node/daemon"
)

var busyContainers = flag.Int("busy", 0,
	"how many containers a busy node starts one at a time, and as many eight at a time; 0 skips the test")

// On a node with four busy loops per CPU, whose disk takes 50 ms for each request, and with all defaults: containers
// that are created one at a time have memlock and IPC_LOCK when they start, for root and for other users. Of containers
// that are created eight at a time, all have memlock. Each one that starts without IPC_LOCK is counted, is named by the
// log and by status, and is not logged as a success.
func TestBusyNode(t *testing.T) {
	if *busyContainers == 0 {
		t.Skip("the load that it makes is the only one where nothing else runs on the host: make busy")
	}
	ctrd.Stop()
	t.Cleanup(func() { replaceContainerd(t, options()) })
	slowDisk(t, "/var/lib/containerd")
	slow, err := containerd.Start(t.Context(), containerd.Options{Version: *version, Runtime: *runtime})
	if err != nil {
		t.Fatal(err)
	}
	ctrd = slow
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("containerd said:\n%s", slow.Log())
		}
	})
	plugin := start(t, filepath.Join(*bin, "nri-rdma"), "--socket", containerd.NRISocket, "--http", metricsAddress)
	awaitLog(t, plugin, "msg=registered")
	pod := runPod(t, containerd.Pod{})
	for range 4 * goruntime.NumCPU() {
		start(t, "/bin/busybox", "sh", "-c", "while :; do :; done")
	}
	for i := range *busyContainers {
		name := fmt.Sprintf("alone-%d", i)
		if !startBusy(t, pod, name, int64(i%2*1000)) {
			t.Errorf("container %s starts without IPC_LOCK", name)
		}
	}
	var clients sync.WaitGroup
	numbers, without := make(chan int, *busyContainers), make(chan string, *busyContainers)
	for i := range *busyContainers {
		numbers <- i
	}
	close(numbers)
	for range 8 {
		clients.Go(func() {
			for i := range numbers {
				if name := fmt.Sprintf("beside-%d", i); !startBusy(t, pod, name, int64(i%2*1000)) {
					without <- name
				}
			}
		})
	}
	clients.Wait()
	close(without)
	missed := map[string]bool{}
	for name := range without {
		missed[name] = true
	}
	expectMissed(t, plugin, missed)
}

// startBusy starts a container that has an HCA, checks its memlock, and reports whether its first process has IPC_LOCK.
func startBusy(t *testing.T, pod *containerd.Sandbox, name string, user int64) (ipcLock bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	id, err := pod.Run(ctx, containerd.Container{Name: name, Devices: containerd.Verbs(0), User: user})
	if err != nil {
		t.Errorf("container %s: %v", name, err)
		return true
	}
	pid, err := ctrd.PID(ctx, id)
	if err != nil {
		t.Errorf("container %s: %v", name, err)
		return true
	}
	if limit, err := softMemlock(pid); err != nil || limit != "unlimited" {
		t.Errorf("container %s starts with memlock %s, %v", name, limit, err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Errorf("container %s: %v", name, err)
	}
	return strings.Contains(capabilities(t, string(status)), "CapEff")
}

// expectMissed checks that the containers that started without IPC_LOCK are counted, and that the log and status name
// them.
func expectMissed(t *testing.T, plugin *daemon.Process, missed map[string]bool) {
	t.Helper()
	text, err := metrics()
	if err != nil {
		t.Fatal(err)
	}
	counted := map[string]int{}
	for line := range strings.Lines(text) {
		if rest, found := strings.CutPrefix(line, `nri_rdma_grants_total{result="`); found {
			result, count, _ := strings.Cut(strings.TrimSpace(rest), `"} `)
			if counted[result], err = strconv.Atoi(count); err != nil {
				t.Error(err)
			}
		}
	}
	t.Logf("%d of %d start without IPC_LOCK; the plugin counts %v", len(missed), *busyContainers, counted)
	if counted["unconfirmed"] < len(missed) || counted["confirmed"] > 2**busyContainers-len(missed) {
		t.Errorf("%d containers start without IPC_LOCK, and the plugin counts %v", len(missed), counted)
	}
	by := uses(t)
	for name := range missed {
		warned := false
		for line := range strings.Lines(plugin.Log()) {
			if !strings.Contains(line, "container="+name+" ") {
				continue
			}
			warned = warned || strings.Contains(line, "level=warning") && strings.Contains(line, "not confirmed")
			if strings.Contains(line, "msg=adjusted") {
				t.Errorf("container %s starts without IPC_LOCK, and the log calls it a success: %s", name, line)
			}
		}
		if !warned {
			t.Errorf("container %s starts without IPC_LOCK, and the log does not say so", name)
		}
		if !by[name].says("lacks CAP_IPC_LOCK") {
			t.Errorf("container %s starts without IPC_LOCK, and status does not say so: %+v", name, by[name])
		}
	}
}

// slowDisk mounts a new disk at a directory until the test ends. The disk takes 50 ms for each request.
func slowDisk(t *testing.T, dir string) {
	t.Helper()
	const disks = "/sys/kernel/config/nullb/slow"
	onNode(t, `modprobe null_blk nr_devices=0
		mountpoint -q /sys/kernel/config || mount -t configfs configfs /sys/kernel/config
		mkdir `+disks+` && cd `+disks+`
		echo 2048 > size; echo 1 > memory_backed; echo 2 > irqmode; echo 50000000 > completion_nsec; echo 1 > power`)
	t.Cleanup(func() { onNodeAfter(t, "rmdir "+disks) })
	disk := "/dev/nullb0"
	if _, err := os.Stat(disk); err != nil {
		disk = "/dev/slow" // newer kernels name it after the directory
	}
	onNode(t, fmt.Sprintf("mkfs.ext4 -q -E nodiscard %s && mkdir -p %s && mount -o noatime %s %s",
		disk, dir, disk, dir))
	t.Cleanup(func() {
		ctrd.Stop()
		onNodeAfter(t, "umount "+dir)
	})
}
