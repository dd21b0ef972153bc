// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/agents"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// kubeletServer is a kubelet's pod resources API.
type kubeletServer struct {
	podresources.UnimplementedPodResourcesListerServer
}

func (kubeletServer) GetAllocatableResources(context.Context,
	*podresources.AllocatableResourcesRequest) (*podresources.AllocatableResourcesResponse, error) {
	return &podresources.AllocatableResourcesResponse{Devices: []*podresources.ContainerDevices{
		{ResourceName: "rdma/hca", DeviceIds: []string{"a"}}, {ResourceName: "rdma/hca", DeviceIds: []string{"b"}},
	}}, nil
}

// List implements the API, with one container that holds two HCAs and one that holds none.
func (kubeletServer) List(context.Context,
	*podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	return &podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{
		{Namespace: "ml", Name: "train", Containers: []*podresources.ContainerResources{
			{Name: "main", Devices: []*podresources.ContainerDevices{{ResourceName: "rdma/hca"}, {ResourceName: "rdma/hca"},
				{ResourceName: "x.com/gpu"}}}, {Name: "log"}}},
	}}, nil
}

// serve serves a kubelet's pod resources API until the end of the test.
func serve(t *testing.T, socket string, kubelet podresources.PodResourcesListerServer) {
	t.Helper()
	server, listener := grpc.NewServer(), scratch.Socket(t, socket)
	podresources.RegisterPodResourcesListerServer(server, kubelet)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
}

func TestKubelet(t *testing.T) {
	if got := known(agents.ReadKubelet(t.Context(), aNode().Root(t))); got.PID != 0 {
		t.Errorf("%+v", got)
	}
	files := aProcess(aNode(), 300, "/usr/bin/kubelet", "--root-dir=/data/kubelet").With(hcatest.Files{
		"data/kubelet/device-plugins/kubelet_internal_checkpoint": `{"Data":{"PodDeviceEntries":[{"ResourceName":"rdma/old"}],"RegisteredDevices":{"rdma/hca":["a"],"x.com/gpu":[]}},"Checksum":1}`,
	})
	dir := files.Root(t)
	want := agents.Kubelet{PID: 300, Root: "/data/kubelet"}
	if diff := cmp.Diff(want, known(agents.ReadKubelet(t.Context(), dir))); diff != "" {
		t.Errorf("without sockets (-want +got):\n%s", diff)
	}
	scratch.Socket(t, filepath.Join(dir, "data/kubelet/device-plugins/kubelet.sock"))
	serve(t, filepath.Join(dir, "data/kubelet/pod-resources/kubelet.sock"), kubeletServer{})
	want.DevicePlugins, want.PodResources, want.Allocatable = true, true, map[string]int{"rdma/hca": 2,
		"rdma/old": 0, "x.com/gpu": 0}
	want.Given = map[string][]string{"ml/train/main": {"rdma/hca"}}
	if diff := cmp.Diff(want, known(agents.ReadKubelet(t.Context(), dir))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// silentKubelet never answers.
type silentKubelet struct {
	podresources.UnimplementedPodResourcesListerServer
}

func (silentKubelet) GetAllocatableResources(ctx context.Context,
	_ *podresources.AllocatableResourcesRequest) (*podresources.AllocatableResourcesResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// A kubelet that does not answer in time is late, which is no fault.
func TestKubelet_late(t *testing.T) {
	dir := aProcess(aNode(), 300, "/usr/bin/kubelet").Root(t)
	serve(t, filepath.Join(dir, "var/lib/kubelet/pod-resources/kubelet.sock"), silentKubelet{})
	if got := known(agents.ReadKubelet(shortly(t), dir)); !got.Late || got.Error == "" {
		t.Errorf("%+v", got)
	}
}

// A container of the plugin's has the socket at the usual place, wherever the kubelet has it, and nothing else.
func TestKubelet_fromContainer(t *testing.T) {
	dir := aProcess(aNode(), 300, "/usr/bin/kubelet", "--root-dir=/data/kubelet").Root(t)
	scratch.Socket(t, filepath.Join(dir, "var/lib/kubelet/pod-resources/kubelet.sock"))
	if got := known(agents.ReadKubelet(shortly(t), dir)); !got.NotMounted || !got.PodResources {
		t.Errorf("%+v", got)
	}
}

// shortly is for asking a kubelet that never answers.
func shortly(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// On a node whose root is mounted elsewhere, absolute links lead where they lead on the node.
func TestRoot_absoluteLinks(t *testing.T) {
	dir := aProcess(aNode(), 300, "/usr/bin/kubelet", "--root-dir=/gone").With(hcatest.Files{
		"var/lib": hcatest.Link("/data/lib"), "opt": hcatest.Link("/data/opt"), "var/log": hcatest.Link("/data/log"),
		"data/opt/nri/plugins/90-rdma": "",
		"data/log/audit/audit.log":     "type=AVC msg=audit(1700000000.500:77): avc:  denied  { read } for  path=\"/dev/infiniband/uverbs0\"\n",
	}).Root(t)
	scratch.Socket(t, filepath.Join(dir, "data/lib/kubelet/pod-resources/kubelet.sock"))
	if got := known(agents.ReadKubelet(shortly(t), dir)); !got.PodResources {
		t.Errorf("the kubelet: %+v", got)
	}
	if got := agents.ReadPlugin(dir, ""); got.Launched != "/opt/nri/plugins/90-rdma" {
		t.Errorf("the plugin: %+v", got)
	}
	if got := readAudit(dir, 5000, time.Unix(1700000100, 0)); len(got) != 1 {
		t.Errorf("auditd: %+v", got)
	}
}

// A kubelet in a container, as on Talos, is the node's if it has the node's directory: pods can call programs so, too.
func TestKubelet_inContainer(t *testing.T) {
	files := aProcess(aProcess(aNode(), 200, "/usr/local/bin/kubelet"), 300, "/usr/local/bin/kubelet").With(hcatest.Files{
		"proc/200/root/var/lib/kubelet/": "", "proc/300/root/var/lib/kubelet": hcatest.Link("../../../../../var/lib/kubelet"),
		"var/lib/kubelet/device-plugins/": "",
	})
	want := agents.Kubelet{PID: 300, Root: "/var/lib/kubelet"}
	if diff := cmp.Diff(want, known(agents.ReadKubelet(t.Context(), files.Root(t)))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A platform's kubelet has the unit of the platform.
func TestKubelet_k3s(t *testing.T) {
	files := aProcess(aNode(), 300,
		"/var/lib/rancher/k3s/data/current/bin/k3s-agent").With(hcatest.Files{"proc/300/cgroup": "0::/system.slice/k3s-agent.service\n"})
	want := agents.Kubelet{PID: 300, Unit: "k3s-agent.service", Root: "/var/lib/kubelet", NotMounted: true}
	if diff := cmp.Diff(want, known(agents.ReadKubelet(t.Context(), files.Root(t)))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
