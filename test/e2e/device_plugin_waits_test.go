// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/rdma-spec/rdma-spec/test/node"
	"github.com/rdma-spec/rdma-spec/test/node/cluster"
	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/node/daemon"
	"github.com/rdma-spec/rdma-spec/test/node/deviceplugin"
	"github.com/rdma-spec/rdma-spec/test/node/kubelet"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// late is how much later the plugin starts than the device plugin.
const late = 10 * time.Second

// TestClusterDevicePluginWaits: if a device plugin waits with `rdma-spec wait`, its resource does not exist before
// nri-rdma is registered, and a pod that waited for the resource gets its limit. The device plugin is a short version
// of upstream's DaemonSet, with the kustomization that administrators apply.
func TestClusterDevicePluginWaits(t *testing.T) {
	restartWith(t, func(o *containerd.Options) { o.Network = true }) // without a network, the node is not ready, and the scheduler places no pods on it
	t.Cleanup(func() { removePods(t, devicePluginNamespace) })
	t.Cleanup(func() { removePods(t, corev1.NamespaceDefault) })
	importImage(t)
	g := &gated{c: startWholeCluster(t), begin: time.Now()}
	g.k = join(t, g.c)
	t.Cleanup(func() { g.tell(t) })

	kubectl(t, g.c, "apply", "-k", waitingDevicePlugin(t))
	g.awaitWaiting(t)
	g.deploy(t, "first")
	g.expectNotPlaced(t, "first", late)
	plugin := g.register(t)
	g.expectUnlimited(t, "first")

	// The plugin ends. A container that has its HCA keeps it, and a pod that is placed now starts without its limit, as
	// the page says.
	plugin.Stop()
	g.deploy(t, "without")
	podWith(t, g.c, g.k, "app=without").expectHolds(t, "main", kernelDefault, given(0)...)

	// If a device plugin starts while nri-rdma is not running, its resource disappears.
	kubectl(t, g.c, "-n", devicePluginNamespace, "delete", "pod", "--selector=name="+devicePluginName)
	g.awaitWaiting(t)
	g.awaitAllocatable(t, 0)
	g.deploy(t, "second")
	g.expectNotPlaced(t, "second", 5*time.Second)
	g.expectUnlimited(t, "first") // it kept running
	g.register(t)
	g.expectUnlimited(t, "second")
	if again := g.containers(t, "first"); again != 1 {
		t.Errorf("the first pod has had %d containers, want that its one ran all the time", again)
	}
}

// gated is a cluster whose device plugin waits for nri-rdma.
type gated struct {
	c     *cluster.Cluster
	k     *kubelet.Kubelet
	begin time.Time
}

// tell logs the state of the pods if the test failed.
func (g *gated) tell(t *testing.T) {
	t.Helper()
	if !t.Failed() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	pods, err := g.c.Kubectl(ctx, "describe", "pods", "--all-namespaces")
	t.Logf("the pods: %s, %v", pods, err)
}

// register starts the plugin, and waits until it is registered.
func (g *gated) register(t *testing.T) *daemon.Process {
	t.Helper()
	plugin := startPluginWith(t)
	t.Logf("after %s: nri-rdma is registered", g.since())
	return plugin
}

func (g *gated) since() time.Duration { return time.Since(g.begin).Round(time.Second) }

// awaitWaiting waits until the init container of the device plugin's newest pod is running, and has logged what it
// waits for.
func (g *gated) awaitWaiting(t *testing.T) {
	t.Helper()
	awaitThat(t, g.c, kubeletPatience, "has a device plugin that waits", func() bool {
		pods, err := g.c.Pods(t.Context(), devicePluginNamespace, "name="+devicePluginName)
		return err == nil && len(pods) == 1 && slices.ContainsFunc(pods[0].Status.InitContainerStatuses,
			func(s corev1.ContainerStatus) bool { return s.Name == "wait-for-nri-rdma" && s.State.Running != nil }) &&
			strings.Contains(g.log(pods[0]), "waiting until nri-rdma is registered on this node: ")
	})
	t.Logf("after %s: the device plugin waits", g.since())
}

// log returns the output of a pod's init container, from the kubelet's log file.
func (*gated) log(pod corev1.Pod) string {
	return readLog(fmt.Sprintf("/var/log/pods/%s_%s_%s/wait-for-nri-rdma/0.log", pod.Namespace, pod.Name, pod.UID))
}

// awaitAllocatable waits until the node offers the wanted number of the resource.
func (g *gated) awaitAllocatable(t *testing.T, want int) {
	t.Helper()
	awaitThat(t, g.c, kubeletPatience, fmt.Sprintf("has a node that offers %d of the resource", want),
		func() bool { return g.allocatable(t) == want })
	t.Logf("after %s: the node offers %d of %s", g.since(), want, shared)
}

// allocatable returns how many of the resource the node offers, according to the API server.
func (g *gated) allocatable(t *testing.T) int {
	t.Helper()
	n, err := g.c.Node(within(t, patience), g.k.NodeName())
	if err != nil {
		t.Fatal(err)
	}
	offered := n.Status.Allocatable[shared]
	return int(offered.Value())
}

// deploy creates a Deployment whose pod requests the resource.
func (g *gated) deploy(t *testing.T, name string) {
	t.Helper()
	runDeployment(t, g.c, name, kubelet.Container{Name: "main", Resource: shared})
}

// expectNotPlaced checks for a while that a Deployment's pod has no node, and that the resource is not offered.
func (g *gated) expectNotPlaced(t *testing.T, name string, while time.Duration) {
	t.Helper()
	podWith(t, g.c, g.k, "app="+name)
	begin := time.Now()
	var reason string
	err := g.c.Await(within(t, kubeletPatience), "has told why a pod waits", func() bool {
		pods, err := g.c.Pods(t.Context(), corev1.NamespaceDefault, "app="+name)
		if err != nil {
			return false
		}
		for _, pod := range pods {
			if offered := g.allocatable(t); pod.Spec.NodeName != "" || offered != 0 {
				t.Fatalf("before the plugin, after %s: pod %s is on node %q, which offers %d", g.since(), pod.Name,
					pod.Spec.NodeName, offered)
			}
			for _, c := range pod.Status.Conditions {
				if c.Type == corev1.PodScheduled {
					reason = c.Message
				}
			}
		}
		return time.Since(begin) > while && strings.Contains(reason, "Insufficient "+shared)
	})
	if err != nil {
		t.Fatalf("%v\nIt says %q", err, reason)
	}
	t.Logf("after %s: pod %s waits: %s", g.since(), name, reason)
}

// expectUnlimited waits until a Deployment's pod runs, and checks that its memlock is unlimited.
func (g *gated) expectUnlimited(t *testing.T, name string) {
	t.Helper()
	podWith(t, g.c, g.k, "app="+name).expectHolds(t, "main", "unlimited", given(0)...)
	t.Logf("after %s: pod %s runs with its limit", g.since(), name)
}

// containers returns how many containers a Deployment's pods have had.
func (g *gated) containers(t *testing.T, name string) (count int) {
	t.Helper()
	pods, err := g.c.Pods(within(t, patience), corev1.NamespaceDefault, "app="+name)
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range pods {
		for _, s := range pod.Status.ContainerStatuses {
			count += 1 + int(s.RestartCount)
		}
	}
	return count
}

// asDevicePlugin is an environment variable. If it contains the name of a resource, this test program is a device
// plugin that offers an HCA as that resource.
const asDevicePlugin = "RDMA_SPEC_TEST_DEVICE_PLUGIN"

// offer runs this program as a device plugin, in a pod.
func offer(resource string) int {
	if _, err := deviceplugin.Start(context.Background(), deviceplugin.Shared(resource, 0)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	select {}
}

// Names of upstream's DaemonSet.
const (
	devicePluginNamespace = "kube-system"
	devicePluginName      = "rdma-shared-dp-ds"
)

// upstreamSet is a short version of upstream's DaemonSet, which runs this test program.
const upstreamSet = `apiVersion: apps/v1
kind: DaemonSet
metadata: {name: ` + devicePluginName + `, namespace: ` + devicePluginNamespace + `}
spec:
  selector: {matchLabels: {name: ` + devicePluginName + `}}
  template:
    metadata: {labels: {name: ` + devicePluginName + `}}
    spec:
      hostNetwork: true
      containers:
        - name: k8s-rdma-shared-dp-ds
          image: IMAGE
          imagePullPolicy: Never
          command: [/run/programs/PROGRAM]
          env: [{name: ` + asDevicePlugin + `, value: ` + shared + `}]
          volumeMounts:
            - {name: device-plugins, mountPath: /var/lib/kubelet/device-plugins}
            - {name: dev, mountPath: /dev}
            - {name: programs, mountPath: /run/programs}
      volumes:
        - {name: device-plugins, hostPath: {path: /var/lib/kubelet/device-plugins}}
        - {name: dev, hostPath: {path: /dev}}
        - {name: programs, hostPath: {path: FOLDER}}
`

// waitingDevicePlugin returns a copy of the directory in deploy/device-plugins, with a local replacement for the files
// that it fetches from GitHub.
func waitingDevicePlugin(t *testing.T) string {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	set := strings.NewReplacer("IMAGE", node.ImageName("busybox"), "PROGRAM", filepath.Base(program),
		"FOLDER", filepath.Dir(program)).Replace(upstreamSet)
	dir := scratch.Dir(t)
	if err := os.CopyFS(dir, os.DirFS(deployPath("device-plugins"))); err != nil {
		t.Fatal(err)
	}
	// The rest of the kustomization is unchanged, except for the image's name, because there is no registry.
	kept := strings.Replace(deployFile(t, "device-plugins/k8s-rdma-shared-dev-plugin/kustomization.yaml"),
		"registry.example.com/", "docker.io/library/", 1)
	own := filepath.Join(dir, "own")
	scratch.Files(t, own, map[string]string{
		"kustomization.yaml":          kept,
		"config.json":                 "{}",
		"upstream/kustomization.yaml": "resources: [daemonset.yaml, configmap.yaml]\n",
		"upstream/daemonset.yaml":     set,
		"upstream/configmap.yaml":     `{apiVersion: v1, kind: ConfigMap, metadata: {name: rdma-devices, namespace: kube-system}}`,
	}, 0o644)
	return own
}
