// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"context"
	"os"
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

// byName is another NRI plugin: it gives containers called cdi-… an HCA by a CDI name, and cdi-low-… also a memlock of
// 1 MiB, cdi-high one of 1 GiB.
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

// startByName runs the other plugin at index 10 until the test ends.
func startByName(t *testing.T) {
	t.Helper()
	const file = "/etc/cdi/net-rdma.yaml"
	scratch.File(t, file, netCDI, 0o644)
	t.Cleanup(func() { _ = os.Remove(file) })
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

// An HCA that another plugin names by CDI comes when all plugins have answered. The container has what the policy gives
// before it starts, whatever the other plugin wanted, and status and the log say so.
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
	if line := lineAbout(plugin.Log(), "cdi-refused"); !strings.Contains(line, "although the policy refuses it") {
		t.Errorf("about a container that should have been refused the log says %q", line)
	}

	by := uses(t)
	for name, want := range map[string]string{"cdi-root": "ok", "cdi-1000": "ok", "cdi-low-1000": "ok", "cdi-dropped": "ok",
		"cdi-out": "", "plain": "", "cdi-refused": "refused"} {
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
