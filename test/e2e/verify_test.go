// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/node"
	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
)

// scratch is an image with nothing in it: no library, no shell.
const scratch = "docker.io/library/scratch:empty"

func importScratch(t *testing.T) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "image.tar")
	if err := errors.Join(node.WriteImage(file, scratch, nil), ctrd.Import(within(t, patience), file)); err != nil {
		t.Fatal(err)
	}
}

// expectVerify runs verify in an image that has nothing else, and checks its exit status, lines that begin with
// something, and its verdict.
func expectVerify(t *testing.T, pod *containerd.Sandbox, ctr containerd.Container, status int32,
	verdict string, lines ...string) {
	t.Helper()
	ctr.Image, ctr.Args = scratch, []string{"/rdma-spec", "verify"}
	ctr.Mounts = []containerd.Mount{{Host: filepath.Join(*bin, "rdma-spec"), Container: "/rdma-spec"}}
	id := runContainer(t, pod, ctr)
	result, err := pod.Wait(within(t, patience), id)
	if err != nil {
		t.Fatal(err)
	}
	out := "\n" + result.Out
	if result.Status != status {
		t.Errorf("%s: exit status %d, want %d", ctr.Name, result.Status, status)
	}
	for _, line := range lines {
		if !strings.Contains(out, "\n"+line) {
			t.Errorf("%s: no line begins with %q", ctr.Name, line)
		}
	}
	if all := strings.Split(strings.TrimSpace(out), "\n"); !strings.HasPrefix(all[len(all)-1], "verdict: "+verdict) {
		t.Errorf("%s: the verdict is not %q", ctr.Name, verdict)
	}
	if t.Failed() {
		t.Logf("%s:%s", ctr.Name, out)
	}
}

// In an image with nothing but the program, verify registers memory with a real HCA: 64 MiB where the container is
// opted in, whoever its user is, and not where it is opted out.
func TestVerify(t *testing.T) {
	importScratch(t)
	startPlugin(t, "ipcLock: false")
	pod := runPod(t, containerd.Pod{Annotations: map[string]string{"rdma.noderesource.dev/container.low": "false"}})
	for name, user := range map[string]int64{"root": 0, "user": 1000} {
		expectVerify(t, pod, containerd.Container{Name: name, Devices: containerd.Verbs(0), User: user}, 0,
			"nothing found: memory of 64Mi can be registered",
			"ok    memlock of this process: unlimited", "-     CAP_IPC_LOCK of this process: not effective",
			"ok    /dev/infiniband/uverbs0: opened: rxe0, port 1 ACTIVE",
			"ok    GIDs of rxe0 port 1 in this network namespace: ",
			"ok    register 64Mi with rxe0: done", "-     libibverbs: not in the image's usual folders", "-     /dev/shm: 64Mi")
	}
	expectVerify(t, pod, containerd.Container{Name: "low", Devices: containerd.Verbs(0)}, 1, "memlock: ",
		"-     memlock of this process: 8Mi",
		"FAIL  register 64Mi with rxe0: REG_MR: cannot allocate memory: memlock is 8Mi: ")
}

// In an ephemeral container, verify judges the limits of the container that it targets, and not its own.
func TestVerifyEphemeral(t *testing.T) {
	importScratch(t)
	startPlugin(t, "ipcLock: false")
	pod := runPod(t, containerd.Pod{Annotations: map[string]string{"rdma.noderesource.dev/container.low": "false"}})
	trainer := runContainer(t, pod, containerd.Container{Name: "trainer", Devices: containerd.Verbs(0)})
	low := runContainer(t, pod, containerd.Container{Name: "low", Devices: containerd.Verbs(0)})
	expectVerify(t, pod, containerd.Container{Name: "beside-trainer", Target: trainer}, 0,
		"nothing found: the limits of process 1 allow memory of 64Mi",
		"-     memlock of this process: 8Mi", "ok    memlock of process 1 (busybox) in another container: unlimited",
		"?     /dev/infiniband/uverbs0 of the target: not opened from this container: rxe0, port 1 ACTIVE",
		"?     register 64Mi: not tried: ")
	expectVerify(t, pod, containerd.Container{Name: "beside-low", Target: low}, 1, "memlock: ",
		"FAIL  memlock of process 1 (busybox) in another container: less than 64Mi: ")
}

// In a network namespace of its own, a pod has none of the HCA's addresses, and verify says so. With a macvlan of the
// HCA's netdev it has one.
func TestVerifyOwnNetwork(t *testing.T) {
	o := options()
	o.Network = true
	restart(t, o)
	importScratch(t)
	startPlugin(t, "{}")
	pod := runPod(t, containerd.Pod{OwnNetwork: true})
	expectVerify(t, pod, containerd.Container{Name: "without", Devices: containerd.Verbs(1)}, 1, "namespace: ",
		"FAIL  GIDs of rxe1 port 1: none belongs to this network namespace", "ok    register 64Mi with rxe1: done")

	const address = "10.0.101.7"
	netns := pid(t, runContainer(t, pod, containerd.Container{Name: "sleeps"}))
	onNode(t, fmt.Sprintf("ip link add verify0 link dummy1 type macvlan && ip link set verify0 netns %d name net1 && "+
		"nsenter -t %d -n sh -c 'ip address add %s/24 dev net1 && ip link set net1 up'", netns, netns, address))
	await.Success(t, patience, "in the GID table", func() error {
		files, err := filepath.Glob("/sys/class/infiniband/rxe1/ports/1/gids/*")
		for _, file := range files {
			if gid, _ := os.ReadFile(file); strings.Contains(string(gid), "ffff:0a00:6507") {
				return nil
			}
		}
		return errors.Join(err, errors.New(address+" is not there"))
	})
	expectVerify(t, pod, containerd.Container{Name: "with", Devices: containerd.Verbs(1)}, 0, "nothing found: ",
		"ok    GIDs of rxe1 port 1 in this network namespace: ", "ok    register 64Mi with rxe1: done")
}
