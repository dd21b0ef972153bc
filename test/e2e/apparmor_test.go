// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// Two pods of the DaemonSet, which containerd confines with AppArmor by default, hand over the connection. The test
// needs a kernel with AppArmor.
func TestAppArmor(t *testing.T) {
	const security = "/sys/kernel/security" // from this directory, containerd knows that AppArmor is available
	if err := syscall.Mount("none", security, "securityfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(security, 0); err != nil {
			t.Error(err)
		}
		replaceContainerd(t, options())
	})
	replaceContainerd(t, options()) // containerd looks only when it starts
	importImage(t)

	first := runPluginPod(t)
	first.await(t, "msg=registered")
	second := runPluginPod(t)
	second.await(t, "waiting behind a registered plugin")
	stop := &cri.StopContainerRequest{ContainerId: first.id, Timeout: 5}
	if _, err := ctrd.CRI().StopContainer(within(t, patience), stop); err != nil {
		t.Fatal(err)
	}
	second.await(t, tookOver)
	afterwards := runContainer(t, runPod(t, containerd.Pod{}), containerd.Container{Devices: containerd.Verbs(0)})
	expectMemlock(t, afterwards, "unlimited")
	if got := strings.Count(ctrd.Log(), `plugin \"90-rdma\" connected and synchronized`); got != 1 {
		t.Errorf("the plugin has registered %d times, want 1", got)
	}
}

// pluginPod is a pod in which the plugin runs.
type pluginPod struct {
	*containerd.Sandbox
	id string // ID of the pod's container
}

// runPluginPod runs what the DaemonSet runs, in the node's network, and checks that it is confined.
func runPluginPod(t *testing.T) pluginPod {
	t.Helper()
	p := pluginPod{Sandbox: runPod(t, containerd.Pod{Namespace: pluginNamespace})}
	p.id = runContainer(t, p.Sandbox, pluginContainer(t))
	confined, err := os.ReadFile(fmt.Sprintf("/proc/%d/attr/apparmor/current", pid(t, p.id)))
	if err != nil || string(confined) != "cri-containerd.apparmor.d (enforce)\n" {
		t.Errorf("AppArmor confines the plugin with %q, %v", confined, err)
	}
	return p
}

// await waits until the plugin says something.
func (p pluginPod) await(t *testing.T, says string) {
	t.Helper()
	said := func() bool { return strings.Contains(p.log(), says) }
	if err := ctrd.Await(within(t, patience), "has the plugin say "+says, said); err != nil {
		t.Fatalf("the plugin said:\n%s", p.log())
	}
}

func (p pluginPod) log() string { return p.Log("nri-rdma") }

// pluginContainer returns the plugin's container of the DaemonSet without the HTTP port, which two containers in one
// network cannot share.
func pluginContainer(t *testing.T) containerd.Container {
	t.Helper()
	var set appsv1.DaemonSet
	for document := range strings.SplitSeq(deployFile(t, "kustomize/base/daemonset.yaml"), "\n---\n") {
		if strings.Contains(document, "\nkind: DaemonSet\n") {
			if err := yaml.UnmarshalStrict([]byte(document), &set); err != nil {
				t.Fatal(err)
			}
		}
	}
	pod := set.Spec.Template.Spec
	hosts := map[string]string{} // by volume
	for _, v := range pod.Volumes {
		switch {
		case v.HostPath != nil:
			hosts[v.Name] = v.HostPath.Path
		case v.Projected != nil:
			hosts[v.Name] = scratch.Dir(t)
			scratch.File(t, filepath.Join(hosts[v.Name], "config.yaml"), "{}\n", 0o644)
		}
	}
	plugin := pod.Containers[0]
	c := containerd.Container{
		Name: plugin.Name, Image: plugin.Image, DropCaps: []string{"ALL"}, NoNewPrivs: true,
		Args: slices.Concat([]string{"/usr/local/bin/nri-rdma", "--budget=" + budget},
			slices.DeleteFunc(plugin.Args, func(arg string) bool { return strings.HasPrefix(arg, "--http=") })),
	}
	for _, m := range plugin.VolumeMounts {
		if err := os.MkdirAll(hosts[m.Name], 0o755); err != nil {
			t.Fatal(err)
		}
		c.Mounts = append(c.Mounts, containerd.Mount{Host: hosts[m.Name], Container: m.MountPath, Writable: !m.ReadOnly})
	}
	return c
}
