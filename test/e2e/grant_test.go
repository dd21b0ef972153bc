// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// listed is a configuration that lets annotations opt in, in namespaces called ml-*.
const listed = "inject: {namespaces: [ml-*]}\n"

// runOptedIn creates a pod in such a namespace that opts in by annotation.
func runOptedIn(t *testing.T) *containerd.Sandbox {
	t.Helper()
	return runPod(t, containerd.Pod{Namespace: "ml-train", Annotations: map[string]string{asks: "true"}})
}

// A container into which a device plugin injected a verbs device can register any amount of memory, without an
// annotation and without a listed namespace.
func TestDeviceSignal(t *testing.T) {
	plugin := startPlugin(t, "{}")
	pod := runPod(t, containerd.Pod{Name: "by-device"})
	server := runContainer(t, pod, containerd.Container{Name: "server", Devices: containerd.Verbs(0)})
	client := runContainer(t, pod, containerd.Container{Name: "client", Devices: containerd.Verbs(0)})
	expectMemlock(t, server, "unlimited")
	if got := shell(t, server, "ulimit -l; ulimit -Hl"); got != "unlimited\nunlimited" {
		t.Errorf("in an exec, ulimit -l says %q, want unlimited, soft and hard", got)
	}
	expectTransfer(t, server, client)
	expectLogged(t, plugin, "msg=adjusted", "container=server", "pod=default/by-device", "signal=device", "rule=default",
		"memlock=unlimited", "/dev/infiniband/uverbs0 (rxe0)")

	plugin.Stop()
	without := runContainer(t, pod, containerd.Container{Name: "without", Devices: containerd.Verbs(0)})
	expectMemlock(t, without, kernelDefault)
	expectNoRegistration(t, without)
}

// With an annotation in a listed namespace, the plugin injects the HCAs that have an ACTIVE port, but no devices that
// could disturb the fabric.
func TestAnnotationInjects(t *testing.T) {
	startPlugin(t, listed)
	pod := runOptedIn(t)
	server := runContainer(t, pod, containerd.Container{Name: "server"})
	client := runContainer(t, pod, containerd.Container{Name: "client"})
	expectDevices(t, server, "rdma_cm", "uverbs0", "uverbs1") // rxe2's port is down, and umad and issm are never injected
	expectMemlock(t, server, "unlimited")
	expectTransfer(t, server, client)
	if out := shell(t, client,
		"/usr/bin/rping -h 2>&1 | head -1; exec 3<>/dev/infiniband/rdma_cm && echo opened"); !strings.HasSuffix(out,
		"opened") {
		t.Errorf("rdma_cm cannot be opened: %s", out)
	}
}

// RLIMIT_MEMLOCK applies to every user; IPC_LOCK in the pod's spec does not.
func TestNonRoot(t *testing.T) {
	startPlugin(t, "{}")
	pod := runPod(t, containerd.Pod{})
	server := runContainer(t, pod, containerd.Container{Name: "server", Devices: containerd.Verbs(0),
		User: 1000, NoNewPrivs: true})
	client := runContainer(t, pod, containerd.Container{Name: "client", Devices: containerd.Verbs(0), User: 1000})
	if got := shell(t, client, "id -u"); got != "1000" {
		t.Fatalf("the container runs as user %s, want 1000", got)
	}
	expectMemlock(t, client, "unlimited")
	expectTransfer(t, server, client)
}

// What only looks like an RDMA device is not a signal.
func TestNoGrant(t *testing.T) {
	startPlugin(t, "{}")
	pod := runPod(t, containerd.Pod{Privileged: true})
	for name, ctr := range map[string]containerd.Container{
		"block-device-at-a-verbs-path": {Devices: []containerd.Device{{Host: blockDevice(t),
			Container: "/dev/infiniband/uverbs0"}}},
		"character-device-at-a-verbs-path": {Devices: []containerd.Device{{Host: "/dev/null",
			Container: "/dev/infiniband/uverbs0"}}},
		"rdma-cm-alone": {Devices: []containerd.Device{{Host: "/dev/infiniband/rdma_cm",
			Container: "/dev/infiniband/rdma_cm"}}},
		"umad-alone": {Devices: []containerd.Device{{Host: "/dev/infiniband/umad0",
			Container: "/dev/infiniband/umad0"}}},
		"privileged": {Privileged: true},
		"no-device":  {},
	} {
		t.Run(name, func(t *testing.T) {
			ctr.Name = name
			id := runContainer(t, pod, ctr)
			_, err := os.Stat(fmt.Sprintf("/proc/%d/root/dev/infiniband/uverbs0", pid(t, id)))
			if ctr.Privileged && err != nil {
				t.Errorf("the privileged container should hold the node's verbs devices, or this tests nothing: %v", err)
			}
			expectMemlock(t, id, kernelDefault)
		})
	}
}

// blockDevice returns the node's disk.
func blockDevice(t *testing.T) string {
	t.Helper()
	disk, err := exec.Command("findmnt", "--noheadings", "--output", "SOURCE", "/var/lib").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(disk))
}

var (
	anyID        = regexp.MustCompile(`[0-9a-f]{64}`)
	anyNamespace = regexp.MustCompile(`/proc/\d+/ns/`)
)

// The plugin does not change the stored spec of a container without RDMA. In an RDMA container's stored spec, it
// changes only process.capabilities.
func TestStoredSpecs(t *testing.T) {
	pod := runPod(t, containerd.Pod{})
	stored := func(ctr containerd.Container) map[string]any {
		id, err := pod.Create(within(t, patience), ctr)
		if err != nil {
			t.Fatal(err)
		}
		text := anyNamespace.ReplaceAll(anyID.ReplaceAll(storedSpec(t, id), []byte("ID")), []byte("/proc/PID/ns/"))
		if err := ctrd.RemoveContainer(within(t, patience), id); err != nil {
			t.Fatal(err)
		}
		decoder := json.NewDecoder(bytes.NewReader(text))
		decoder.UseNumber()
		var spec map[string]any
		if err := decoder.Decode(&spec); err != nil {
			t.Fatal(err)
		}
		return spec
	}
	unrelated := containerd.Container{Name: "unrelated", Env: map[string]string{"A": "b"},
		Devices: []containerd.Device{{Host: "/dev/null", Container: "/dev/null2"}}}
	holder := containerd.Container{Name: "holder", Devices: containerd.Verbs(0)}
	before := stored(unrelated)
	plugin := startPlugin(t, "ipcLock: false")
	without := stored(holder)
	plugin.Stop()
	startPlugin(t, listed)
	if diff := cmp.Diff(before, stored(unrelated)); diff != "" {
		t.Errorf("the spec of an unrelated container (-without plugin +with plugin):\n%s", diff)
	}
	with := stored(holder)
	if cmp.Equal(without, with) {
		t.Fatal("nothing changed")
	}
	delete(without["process"].(map[string]any), "capabilities")
	delete(with["process"].(map[string]any), "capabilities")
	if diff := cmp.Diff(without, with); diff != "" {
		t.Errorf("more than process.capabilities differs:\n%s", diff)
	}
}

// The plugin's program is small, because it is installed on every node.
func TestSize(t *testing.T) {
	info, err := os.Stat(filepath.Join(*bin, "nri-rdma"))
	if err != nil {
		t.Fatal(err)
	}
	status := scratch.Read(t, fmt.Sprintf("/proc/%d/status", startPlugin(t, "{}").PID()))
	_, resident, _ := strings.Cut(status, "\nVmRSS:")
	var kB int
	if _, err := fmt.Sscan(resident, &kB); err != nil {
		t.Fatalf("%v: %s", err, status)
	}
	t.Logf("nri-rdma is %.1f MB, and its resident memory at rest %.1f MB", float64(info.Size())/1e6, float64(kB)*1024/1e6)
	if info.Size() >= 15e6 || kB*1024 >= 18e6 {
		t.Error("want less than 15 MB, and 18 MB of resident memory at rest")
	}
}
