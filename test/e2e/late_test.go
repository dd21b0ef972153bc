// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

const netCDI = `cdiVersion: "0.5.0"
kind: example.com/net-rdma
devices:
- name: rxe0
  containerEdits:
    deviceNodes:
    - path: /dev/infiniband/uverbs0
`

// byName is another NRI plugin. It injects an HCA by a CDI name into containers called cdi-…. It also sets a memlock of
// 1 MiB for cdi-low-…, and of 1 GiB for cdi-high.
type byName struct{ registered chan struct{} }

func (b byName) Synchronize(context.Context, []*api.PodSandbox, []*api.Container) ([]*api.ContainerUpdate, error) {
	close(b.registered)
	return nil, nil
}

func (byName) CreateContainer(_ context.Context, _ *api.PodSandbox,
	ctr *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	if !strings.HasPrefix(ctr.GetName(), "cdi-") {
		return nil, nil, nil
	}
	a := &api.ContainerAdjustment{}
	a.AddCDIDevice(&api.CDIDevice{Name: "example.com/net-rdma=rxe0"})
	if strings.HasPrefix(ctr.GetName(), "cdi-low-") {
		a.AddRlimit("RLIMIT_MEMLOCK", 1<<20, 1<<20)
	}
	if ctr.GetName() == "cdi-high" {
		a.AddRlimit("RLIMIT_MEMLOCK", 1<<30, 1<<30)
	}
	return a, nil, nil
}

// writeCDIFile writes a CDI file of another vendor, which is removed when the test ends.
func writeCDIFile(t *testing.T, name, text string) {
	t.Helper()
	file := filepath.Join("/etc/cdi", name)
	scratch.File(t, file, text, 0o644)
	t.Cleanup(func() { _ = os.Remove(file) })
}

// startByName runs the other plugin with index 10 until the test ends.
func startByName(t *testing.T) {
	t.Helper()
	writeCDIFile(t, "net-rdma.yaml", netCDI)
	b := byName{make(chan struct{})}
	other, err := stub.New(b, stub.WithPluginName("net"), stub.WithPluginIdx("10"),
		stub.WithSocketPath(containerd.NRISocket))
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(other.Stop)
	await.Receive(t, patience, "the other plugin is registered", b.registered)
}

// If another plugin adds an HCA by a CDI name, the HCA is injected after all plugins have answered. The container
// nevertheless has its grant before it starts, whatever the other plugin set, and status and the log report it.
func TestCDINameOfAnotherPlugin(t *testing.T) {
	plugin := startPlugin(t, "{rules: [{name: small, match: {namespaces: [small]}, memlock: memory-limit}]}")
	startByName(t)
	pod := runPod(t, containerd.Pod{Name: "late",
		Annotations: map[string]string{"rdma.noderesource.dev/container.cdi-out": "false"}})
	for _, test := range []struct {
		ctr                   containerd.Container
		memlock, sets, result string
	}{
		{containerd.Container{Name: "cdi-root"}, "unlimited", everySet, "adjusted"},
		{containerd.Container{Name: "cdi-1000", User: 1000, NoNewPrivs: true}, "unlimited", everySet, "adjusted"},
		{containerd.Container{Name: "cdi-low-1000", User: 1000}, "unlimited", everySet, "from=1Mi"},
		{containerd.Container{Name: "cdi-dropped", User: 1000, DropCaps: []string{"ALL"}}, "unlimited", "", "ipc_lock=false"},
		{containerd.Container{Name: "cdi-out", User: 1000}, kernelDefault, "", "opted out"},
		{containerd.Container{Name: "device-1000", User: 1000, Devices: containerd.Verbs(0)}, "unlimited", everySet,
			"msg=adjusted"},
		{containerd.Container{Name: "plain", User: 1000}, kernelDefault, "", ""},
	} {
		id := runContainer(t, pod, test.ctr)
		expectMemlock(t, id, test.memlock)
		expectCapabilities(t, id, test.sets)
		if line := lineAbout(plugin.Log(), test.ctr.Name); (line == "") != (test.result == "") ||
			!strings.Contains(line, test.result) {
			t.Errorf("about %s the log says %q, want %q", test.ctr.Name, line, test.result)
		}
	}
	refused := runPod(t, containerd.Pod{Name: "refused", Namespace: "small"})
	expectMemlock(t, runContainer(t, refused, containerd.Container{Name: "cdi-refused"}), kernelDefault)
	if line := lineAbout(plugin.Log(), "cdi-refused"); !strings.Contains(line, "a container that the policy refuses is running") {
		t.Errorf("about a container that should have been refused the log says %q", line)
	}

	expectStates(t, map[string]string{"cdi-root": "ok", "cdi-1000": "ok", "cdi-low-1000": "ok", "cdi-dropped": "ok",
		"cdi-out": "", "plain": "", "cdi-refused": "refused"})
}

// nvidiaPlugin is the prefix of the pod annotation that NVIDIA's plugin reads for one of the pod's containers.
const nvidiaPlugin = "nvidia.cdi.k8s.io/container."

// managementCDI is the CDI file for the management containers of NVIDIA's GPU Operator, on a node without a GPU.
const managementCDI = `cdiVersion: "0.5.0"
kind: management.nvidia.com/gpu
devices:
- name: all
  containerEdits:
    deviceNodes:
    - {path: /dev/nvidiactl, hostPath: /dev/null}
`

// The node also runs the NRI plugin of NVIDIA's toolkit, which adds CDI names and needs no GPU for that. If a
// container's author names an HCA, and an annotation opts in, the policy applies to the container. Otherwise, it is
// left unchanged, like the operator's management container.
func TestCDINameOfNVIDIAsPlugin(t *testing.T) {
	plugin := startPlugin(t, "optIn: {namespaces: [listed]}")
	dir := scratch.Dir(t)
	other := start(t, filepath.Join(nodeParts(t).Dir(), "nvidia-ctk/nvidia-ctk-installer"), "--enable-nri-plugin",
		"--nri-namespace=gpu-operator", "--nri-socket="+containerd.NRISocket, "--runtime=containerd",
		"--ignore-errors", // errors of what it installs first, which the node lacks
		"--toolkit-source-root="+dir, "--toolkit-install-dir="+filepath.Join(dir, "installed"),
		"--pid-file="+filepath.Join(dir, "toolkit.pid"))
	awaitLog(t, other, "Waiting for signal")
	writeCDIFile(t, "net-rdma.yaml", netCDI)
	writeCDIFile(t, "management.yaml", managementCDI)

	pod := runPod(t, containerd.Pod{Name: "named", Namespace: "listed", Annotations: map[string]string{
		nvidiaPlugin + "root": "example.com/net-rdma=rxe0", nvidiaPlugin + "uid-1000": "example.com/net-rdma=rxe0"}})
	for name, user := range map[string]int64{"root": 0, "uid-1000": 1000} {
		id := runContainer(t, pod, containerd.Container{Name: name, User: user})
		expectMemlock(t, id, "unlimited")
		expectCapabilities(t, id, everySet)
		if line := lineAbout(plugin.Log(), name); !strings.Contains(line, `msg="adjusted: `) ||
			strings.Contains(line, "from=") {
			t.Errorf("about %s the log says %q", name, line)
		}
	}
	guest := runPod(t, containerd.Pod{Name: "guest", Namespace: "guests",
		Annotations: map[string]string{nvidiaPlugin + "guest": "example.com/net-rdma=rxe0"}})
	guests := runContainer(t, guest, containerd.Container{Name: "guest"})
	shell(t, guests, "test -c /dev/infiniband/uverbs0") // the author requested the device from NVIDIA's plugin
	expectMemlock(t, guests, kernelDefault)
	expectCapabilities(t, guests, "")
	if line := lineAbout(plugin.Log(), "guest"); !strings.Contains(line, "left alone: ") {
		t.Errorf("about a container whose author named its HCA the log says %q", line)
	}
	operator := runPod(t, containerd.Pod{Name: "validator", Namespace: "gpu-operator",
		Annotations: map[string]string{nvidiaPlugin + "management": "management.nvidia.com/gpu=all"}})
	id := runContainer(t, operator, containerd.Container{Name: "management", User: 1000})
	shell(t, id, "test -c /dev/nvidiactl") // NVIDIA's plugin injected it
	expectMemlock(t, id, kernelDefault)
	expectCapabilities(t, id, "")
	if line := lineAbout(plugin.Log(), "management"); line != "" {
		t.Errorf("about the management container the log says %q", line)
	}
	expectStates(t, map[string]string{"root": "ok", "uid-1000": "ok", "guest": "", "management": ""})
}

// A plugin with the key and syntax of GKE's device injector injects any device that a pod's annotation names. Such a
// device is an opt-in by the pod's author, not by an administrator. A device from the runtime's client still counts,
// even in a pod that has such an annotation for another container.
func TestDeviceOfAnInjector(t *testing.T) {
	const key = "devices.gke.io/container."
	injector := start(t, filepath.Join(*bin, "peers"), "--name", "device-injector",
		"--devices-annotation", "devices.gke.io", "--socket", containerd.NRISocket)
	awaitLog(t, injector, "Started plugin")
	plugin := startPlugin(t, "optIn: {namespaces: [listed]}")
	verbs := containerd.Verbs(0)
	named := "- path: " + verbs[0].Host + "\n"
	for _, test := range []struct {
		namespace string
		ctr       containerd.Container
		memlock   string
		says      string
	}{
		{"guests", containerd.Container{Name: "guest-root"}, kernelDefault, "left alone: "},
		{"guests", containerd.Container{Name: "guest-1000", User: 1000}, kernelDefault, "left alone: "},
		{"listed", containerd.Container{Name: "listed-1000", User: 1000}, "unlimited", "adjusted"},
	} {
		pod := runPod(t, containerd.Pod{Name: "of-" + test.ctr.Name, Namespace: test.namespace,
			Annotations: map[string]string{key + test.ctr.Name: named}})
		id := runContainer(t, pod, test.ctr)
		shell(t, id, "test -c "+verbs[0].Host) // the author requested the device from the injector
		expectMemlock(t, id, test.memlock)
		if line := lineAbout(plugin.Log(), test.ctr.Name); !strings.Contains(line, test.says) {
			t.Errorf("about %s the log says %q, want %q", test.ctr.Name, line, test.says)
		}
	}
	tcpxo := runPod(t, containerd.Pod{Name: "tcpxo", Namespace: "guests",
		Annotations: map[string]string{key + "tcpxo-daemon": "- path: /dev/null\n"}})
	expectMemlock(t, runContainer(t, tcpxo, containerd.Container{Name: "worker", Devices: verbs}), "unlimited")
	expectMemlock(t, runContainer(t, tcpxo, containerd.Container{Name: "tcpxo-daemon"}), kernelDefault)
}

// expectStates compares what status reports about containers. status does not report containers without RDMA.
func expectStates(t *testing.T, want map[string]string) {
	t.Helper()
	by := uses(t)
	for name, want := range want {
		if by[name].State != want {
			t.Errorf("status says of %s: %+v, want %q", name, by[name], want)
		}
	}
}

// lineAbout returns the first line of a log about a container.
func lineAbout(log, container string) string {
	for line := range strings.Lines(log) {
		if strings.Contains(line, "container="+container+" ") {
			return line
		}
	}
	return ""
}
