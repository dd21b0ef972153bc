// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/node"
	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// emptyImage is an image without any files, so it has no libraries and no shell.
const emptyImage = "docker.io/library/scratch:empty"

func importScratch(t *testing.T) {
	t.Helper()
	file := filepath.Join(scratch.Dir(t), "image.tar")
	if err := errors.Join(node.WriteImage(file, emptyImage, nil), ctrd.Import(within(t, patience), file)); err != nil {
		t.Fatal(err)
	}
}

// expectVerify runs verify in a container whose image has no other files, and checks its exit status, the beginnings of
// some lines, and its verdict.
func expectVerify(t *testing.T, pod *containerd.Sandbox, ctr containerd.Container, status int32,
	verdict string, lines ...string) {
	t.Helper()
	ctr.Image, ctr.Args = emptyImage, []string{"/rdma-spec", "verify"}
	ctr.Mounts = []containerd.Mount{{Host: filepath.Join(*bin, "rdma-spec"), Container: "/rdma-spec"}}
	id := runContainer(t, pod, ctr)
	result, err := pod.Wait(within(t, patience), id)
	if err != nil {
		t.Fatal(err)
	}
	expectSays(t, result, status, lines...)
	if all := strings.Split(strings.TrimSpace(result.Out), "\n"); !strings.HasPrefix(all[len(all)-1], "verdict: "+verdict) {
		t.Errorf("%s: the verdict is not %q", ctr.Name, verdict)
	}
}

// expectVerifyIn runs verify in a running container.
func expectVerifyIn(t *testing.T, id, program string, status int32, lines ...string) {
	t.Helper()
	result, err := ctrd.Exec(within(t, patience), id, program, "verify")
	if err != nil {
		t.Fatal(err)
	}
	expectSays(t, result, status, lines...)
}

// expectSays checks the exit status of verify, and that its output has lines that begin with these texts.
func expectSays(t *testing.T, result containerd.Result, status int32, lines ...string) {
	t.Helper()
	missing := slices.DeleteFunc(lines, func(line string) bool { return strings.Contains("\n"+result.Out, "\n"+line) })
	if result.Status != status || len(missing) > 0 {
		t.Errorf("exit status %d, want %d, and lines that begin with %q:\n%s", result.Status, status, missing, result.Out)
	}
}

// In an image that contains only the program, verify registers 64 MiB with a real HCA if the container is opted in,
// whoever its user is, and cannot if the container is opted out.
func TestVerify(t *testing.T) {
	importScratch(t)
	startPlugin(t, "ipcLock: false")
	pod := runPod(t, containerd.Pod{Annotations: map[string]string{"rdma.noderesource.dev/container.low": "false"}})
	for name, user := range map[string]int64{"root": 0, "user": 1000} {
		expectVerify(t, pod, containerd.Container{Name: name, Devices: containerd.Verbs(0), User: user}, 0,
			"no fault found: 64Mi of memory can be registered",
			"ok    memlock of this process: unlimited", "-     CAP_IPC_LOCK of this process: not effective",
			"ok    /dev/infiniband/uverbs0: opened: rxe0, port 1 ACTIVE",
			"ok    GIDs of rxe0 port 1 in this network namespace: ",
			"ok    register 64Mi with rxe0: done", "-     libibverbs: not in the image's usual directories", "-     /dev/shm: 64Mi")
	}
	expectVerify(t, pod, containerd.Container{Name: "low", Devices: containerd.Verbs(0)}, 1, "memlock: ",
		"-     memlock of this process: 8Mi",
		"FAIL  register 64Mi with rxe0: REG_MR: cannot allocate memory, because memlock is 8Mi: ")
}

// In an ephemeral container, verify checks the limits of the target container, not its own.
func TestVerifyEphemeral(t *testing.T) {
	importScratch(t)
	startPlugin(t, "ipcLock: false")
	pod := runPod(t, containerd.Pod{Annotations: map[string]string{"rdma.noderesource.dev/container.low": "false"}})
	trainer := runContainer(t, pod, containerd.Container{Name: "trainer", Devices: containerd.Verbs(0)})
	low := runContainer(t, pod, containerd.Container{Name: "low", Devices: containerd.Verbs(0)})
	expectVerify(t, pod, containerd.Container{Name: "beside-trainer", Target: trainer}, 0,
		"no fault found: the limits of process 1 allow registering 64Mi",
		"-     memlock of this process: 8Mi", "ok    memlock of process 1 (busybox) in another container: unlimited",
		"?     the target's /dev/infiniband/uverbs0: rxe0, port 1 ACTIVE: skipped, because this container is not the target",
		"?     register 64Mi: skipped, because ")
	expectVerify(t, pod, containerd.Container{Name: "beside-low", Target: low}, 1, "memlock: ",
		"FAIL  memlock of process 1 (busybox) in another container is less than 64Mi: ")
}

// A pod in its own network namespace has none of the HCA's addresses, and verify and doctor report that. With a macvlan
// on the HCA's netdev, which a CNI plugin creates, it has an address.
func TestVerifyOwnNetwork(t *testing.T) {
	restartWith(t, func(o *containerd.Options) { o.Network = true })
	importScratch(t)
	startPlugin(t, "{}")
	pod := runPod(t, containerd.Pod{Name: "own-network", OwnNetwork: true})
	holder := runContainer(t, pod, containerd.Container{Name: "main", Devices: containerd.Verbs(1)})
	expectVerify(t, pod, containerd.Container{Name: "without", Devices: containerd.Verbs(1)}, 1, "namespace: ",
		"FAIL  GIDs of rxe1 port 1: no GID belongs to this network namespace", "ok    register 64Mi with rxe1: done")
	expectNetdev(t, "wrong", "container default/own-network main HCA rxe1")

	const address = "10.0.101.7"
	macvlan(t, pid(t, holder), "dummy1", address)
	gidIndex(t, address) // waits until the GID exists
	expectVerify(t, pod, containerd.Container{Name: "with", Devices: containerd.Verbs(1)}, 0, "no fault found: ",
		"ok    GIDs of rxe1 port 1 in this network namespace: ", "ok    register 64Mi with rxe1: done")
	expectNetdev(t, "ok", "")
	expectStatus(t, map[string]string{"default/own-network main": "device unlimited true [rxe1] ok"}, "default/own-network")
}

// macvlan makes the CNI plugin add an interface net1 on a netdev to a pod, as Multus does.
func macvlan(t *testing.T, pid int, netdev, address string) {
	t.Helper()
	parts := nodeParts(t)
	command := exec.CommandContext(t.Context(), filepath.Join(parts.CNI(), "macvlan"))
	command.Env = append(command.Environ(), "CNI_COMMAND=ADD", "CNI_CONTAINERID=rail", "CNI_IFNAME=net1",
		fmt.Sprintf("CNI_NETNS=/proc/%d/ns/net", pid), "CNI_PATH="+parts.CNI())
	command.Stdin = strings.NewReader(fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "rail", "type": "macvlan", "master": %q,
		"ipam": {"type": "static", "addresses": [{"address": "%s/24"}]}}`, netdev, address))
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("macvlan: %v: %s", err, out)
	}
}

// expectNetdev compares what doctor reports about the interfaces of containers.
func expectNetdev(t *testing.T, status, object string) {
	t.Helper()
	all, _ := doctor(t, "--only", "container-netdev")
	found := slices.DeleteFunc(slices.Clone(all), func(f finding) bool { return f.Check != "container-netdev" })
	if len(found) != 1 || found[0].Status != status || found[0].Object != object {
		t.Errorf("doctor: want %s about %q, got %+v", status, object, all)
	}
}
