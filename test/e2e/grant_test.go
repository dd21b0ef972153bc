// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
)

// listed is a configuration that lets annotations opt in, in namespaces called ml-*.
const listed = "inject: {namespaces: [ml-*]}\n"

// A container that a device plugin has given a verbs device can register what it likes, with no annotation and no
// namespace listed.
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
	for _, words := range []string{"msg=adjusted", "container=server", "pod=default/by-device", "signal=device",
		"rule=default", "memlock=unlimited", "/dev/infiniband/uverbs0 (rxe0)"} {
		if !strings.Contains(plugin.Log(), words) {
			t.Errorf("the log does not say %q", words)
		}
	}

	plugin.Stop()
	without := runContainer(t, pod, containerd.Container{Name: "without", Devices: containerd.Verbs(0)})
	expectMemlock(t, without, kernelDefault)
	expectNoRegistration(t, without)
}

// An annotation in a listed namespace has the HCAs with an ACTIVE port injected, and nothing that could disturb the
// fabric.
func TestAnnotationInjects(t *testing.T) {
	startPlugin(t, listed)
	pod := runPod(t, containerd.Pod{Namespace: "ml-train",
		Annotations: map[string]string{"rdma.noderesource.dev": "true"}})
	server := runContainer(t, pod, containerd.Container{Name: "server"})
	client := runContainer(t, pod, containerd.Container{Name: "client"})
	if got, want := shell(t, server, "ls /dev/infiniband"), "rdma_cm\nuverbs0\nuverbs1"; got != want {
		t.Errorf("the container holds %q, want %q: rxe2's port is down, umad and issm never leave the node", got, want)
	}
	expectMemlock(t, server, "unlimited")
	expectTransfer(t, server, client)
	if out := shell(t, client,
		"/usr/bin/rping -h 2>&1 | head -1; exec 3<>/dev/infiniband/rdma_cm && echo opened"); !strings.HasSuffix(out,
		"opened") {
		t.Errorf("rdma_cm cannot be opened: %s", out)
	}
}

// Of the annotation's scopes the narrowest counts, for its container alone.
func TestAnnotationScopes(t *testing.T) {
	startPlugin(t, listed)
	pod := runPod(t, containerd.Pod{Namespace: "ml-train", Annotations: map[string]string{
		"rdma.noderesource.dev/container.worker": `{devices: [rxe1], memlock: 1Gi}`,
		"rdma.noderesource.dev/pod":              "false",
		"rdma.noderesource.dev":                  "true",
	}})
	worker := runContainer(t, pod, containerd.Container{Name: "worker"})
	expectMemlock(t, worker, strconv.Itoa(1<<30))
	if got, want := shell(t, worker, "ls /dev/infiniband"), "rdma_cm\nuverbs1"; got != want {
		t.Errorf("the container holds %q, want %q", got, want)
	}
	other := runContainer(t, pod, containerd.Container{Name: "other"})
	expectMemlock(t, other, kernelDefault)
	if got := shell(t, other, "ls /dev/infiniband 2>&1"); !strings.Contains(got, "No such file") {
		t.Errorf("the other container holds %q, want nothing", got)
	}
	// The annotation is "false": a container that holds a device stays as it is.
	optedOut := runContainer(t, pod, containerd.Container{Name: "opted-out", Devices: containerd.Verbs(0)})
	expectMemlock(t, optedOut, kernelDefault)
}

// RLIMIT_MEMLOCK works for every user, which IPC_LOCK in the pod spec does not.
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

// What looks like an RDMA device and is none gives nothing.
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
			if ctr.Privileged && shell(t, id, "ls /dev/infiniband/uverbs0") != "/dev/infiniband/uverbs0" {
				t.Error("the privileged container should hold the node's verbs devices, or this tests nothing")
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

// A container that has nothing to do with RDMA is stored by containerd as without the plugin.
func TestUntouched(t *testing.T) {
	pod := runPod(t, containerd.Pod{Name: "unrelated"})
	ctr := containerd.Container{Name: "unrelated", Env: map[string]string{"A": "b"},
		Devices: []containerd.Device{{Host: "/dev/null", Container: "/dev/null2"}}}
	create := func() string {
		id, err := pod.Create(within(t, patience), ctr)
		if err != nil {
			t.Fatal(err)
		}
		spec := normalised(t, storedSpec(t, id))
		if err := ctrd.RemoveContainer(within(t, patience), id); err != nil {
			t.Fatal(err)
		}
		return anyNamespace.ReplaceAllString(anyID.ReplaceAllString(spec, "ID"), "/proc/PID/ns/")
	}
	without := create()
	startPlugin(t, listed)
	if diff := cmp.Diff(without, create()); diff != "" {
		t.Errorf("the stored spec differs (-without plugin +with plugin):\n%s", diff)
	}
}

// The plugin is small: it sits on every node.
func TestSize(t *testing.T) {
	info, err := os.Stat(filepath.Join(*bin, "nri-rdma"))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("nri-rdma is %.1f MB", float64(info.Size())/1e6)
	if info.Size() >= 15e6 {
		t.Errorf("nri-rdma is %d bytes, want less than 15 MB", info.Size())
	}
	plugin := startPlugin(t, "{}")
	status, err := os.ReadFile("/proc/" + strconv.Itoa(plugin.PID()) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	match := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindStringSubmatch(string(status))
	if match == nil {
		t.Fatalf("no VmRSS in %s", status)
	}
	kB, err := strconv.Atoi(match[1])
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("its resident memory at rest is %.1f MB", float64(kB)*1024/1e6)
	if kB*1024 >= 18e6 {
		t.Errorf("resident memory at rest is %d kB, want less than 18 MB", kB)
	}
}
