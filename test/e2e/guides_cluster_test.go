// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/test/node"
	"github.com/rdma-spec/rdma-spec/test/node/cluster"
	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/node/deviceplugin"
	"github.com/rdma-spec/rdma-spec/test/node/kubelet"
	"github.com/rdma-spec/rdma-spec/test/testing/pages"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// kinds are the operators' kinds that the guides' examples use. The API server accepts any object of these kinds.
var kinds = []struct{ group, version, kind, plural, scope string }{
	{"mellanox.com", "v1alpha1", "NicClusterPolicy", "nicclusterpolicies", "Cluster"},
	{"mellanox.com", "v1alpha1", "NicNodePolicy", "nicnodepolicies", "Cluster"},
	{"mellanox.com", "v1alpha1", "HostDeviceNetwork", "hostdevicenetworks", "Cluster"},
	{"sriovnetwork.openshift.io", "v1", "SriovNetworkNodePolicy", "sriovnetworknodepolicies", "Namespaced"},
	{"sriovnetwork.openshift.io", "v1", "SriovIBNetwork", "sriovibnetworks", "Namespaced"},
	{"spiderpool.spidernet.io", "v2beta1", "SpiderIPPool", "spiderippools", "Cluster"},
	{"spiderpool.spidernet.io", "v2beta1", "SpiderMultusConfig", "spidermultusconfigs", "Namespaced"},
	{"batch.volcano.sh", "v1alpha1", "Job", "jobs", "Namespaced"},
}

// guides is a cluster like that of the guides' readers: it has the operators' kinds and namespaces, and device plugins.
// Its HCA is a soft HCA.
type guides struct {
	c   *cluster.Cluster
	k   *kubelet.Kubelet
	dir string // a copy of the repository, in which the examples use the node's images
	env []string
}

// TestClusterGuides runs the pages' blocks that are for a cluster, in their order, and checks that the pods of their
// examples have memlock and an HCA.
func TestClusterGuides(t *testing.T) {
	restartWith(t, func(o *containerd.Options) { o.Network = true })
	g := &guides{c: startWholeCluster(t), dir: scratch.Dir(t)}
	g.k = joinKubelet(t, g.c)
	t.Cleanup(func() { removePods(t, corev1.NamespaceDefault) })
	g.prepare(t)
	startPlugin(t, "{}")
	for _, block := range pages.Marked(t, deployPath(".."), "TestClusterGuides") {
		t.Run(strings.TrimSuffix(filepath.Base(block.File), ".md"), func(t *testing.T) { g.run(t, block) })
	}
	const nodes = "deploy/examples/network-operator-nodes.yaml" // the guide's alternative
	g.shell(t, "kubectl apply -f "+nodes)
	g.expectPods(t, nodes)
	g.shell(t, "kubectl rdma resources")                           // no resource is stale
	g.shell(t, "kubectl explain nicclusterpolicy.spec.ofedDriver") // a sentence of the guide contains this command
}

// prepare installs what a reader of the guides already has, or has installed with another project's operator.
func (g *guides) prepare(t *testing.T) {
	t.Helper()
	resources := []deviceplugin.Resource{
		deviceplugin.Deviceless("nvidia.com/gpu"), deviceplugin.Shared("rdma/rdma_v100", 0),
		deviceplugin.Shared("rdma/rdma_a100", 1), deviceplugin.SRIOV("nvidia.com/hostdev", 0),
		deviceplugin.SRIOV("openshift.io/ib_vfs", 1), deviceplugin.Shared("smarter-devices/infiniband", 0),
	}
	for i := range 8 {
		resources = append(resources, deviceplugin.Shared(fmt.Sprintf("spidernet.io/shared_cx5_gpu%d", i+1), i%2))
	}
	devices, err := deviceplugin.Start(within(t, kubeletPatience), resources...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(devices.Stop)
	parts, err := node.Parts()
	if err != nil {
		t.Fatal(err)
	}
	g.env = append(os.Environ(), "KUBECONFIG="+g.c.Kubeconfig(), "PATH="+strings.Join([]string{parts.Kubernetes(), *bin,
		filepath.Join(*bin, "kubectl/linux_amd64"), os.Getenv("PATH")}, ":"))
	var definitions strings.Builder
	for _, k := range kinds {
		fmt.Fprintf(&definitions, `---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[4]s.%[1]s}
spec:
  group: %[1]s
  names: {kind: %[3]s, plural: %[4]s}
  scope: %[5]s
  versions:
  - name: %[2]s
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        x-kubernetes-preserve-unknown-fields: true
        properties:
          spec:
            type: object
            x-kubernetes-preserve-unknown-fields: true
            properties: {ofedDriver: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`, k.group, k.version, k.kind, k.plural, k.scope)
	}
	g.write(t, "definitions.yaml", definitions.String())
	g.shell(t, "kubectl apply -f definitions.yaml && kubectl wait --for=condition=Established crd --all --timeout=2m")
	for _, namespace := range []string{"nvidia-network-operator", "sriov-network-operator", "spiderpool"} {
		g.shell(t, "kubectl create namespace "+namespace)
	}
	g.write(t, "daemonsets.yaml", daemonSetOf("spiderpool", "spiderpool-rdma-shared-device-plugin")+
		daemonSetOf("kube-system", "calico-node"))
	g.shell(t, "kubectl apply -f daemonsets.yaml")
	examples, err := filepath.Glob(deployPath("examples/*.yaml"))
	if err != nil || len(examples) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, file := range examples {
		g.write(t, "deploy/examples/"+filepath.Base(file), g.example(t, scratch.Read(t, file)))
	}
	g.write(t, "pod.yaml", strings.Split(scratch.Read(t, filepath.Join(g.dir, "deploy/examples/spiderpool-macvlan.yaml")),
		"\n---\n")[17])
}

// example returns an example in which the pods use the node's image, and are ready as soon as they run. A container
// that would install packages sleeps instead.
func (g *guides) example(t *testing.T, text string) string {
	t.Helper()
	documents := strings.Split(text, "\n---\n")
	for i, document := range documents {
		var pod corev1.Pod
		if err := yaml.Unmarshal([]byte(document), &pod); err != nil || pod.Kind != "Pod" {
			continue
		}
		for j := range pod.Spec.Containers {
			c := &pod.Spec.Containers[j]
			c.Image, c.ImagePullPolicy, c.ReadinessProbe = node.ImageName("busybox"), corev1.PullNever, nil
			switch script := c.Command[len(c.Command)-1]; {
			case c.Command[0] == "sh" && !strings.Contains(script, "apt-get"):
				c.Command = []string{"/bin/busybox", "sh", "-c", script}
			default:
				c.Command = []string{"/bin/busybox", "sleep", "86400"}
			}
		}
		edited, err := yaml.Marshal(pod)
		if err != nil {
			t.Fatal(err)
		}
		documents[i] = string(edited)
	}
	return strings.Join(documents, "\n---\n")
}

func (g *guides) write(t *testing.T, name, text string) {
	t.Helper()
	scratch.File(t, filepath.Join(g.dir, name), text, 0o644)
}

func (g *guides) shell(t *testing.T, command string) {
	t.Helper()
	cmd := exec.CommandContext(within(t, kubeletPatience), "sh", "-ec", command)
	cmd.Dir, cmd.Env = g.dir, g.env
	out, err := cmd.CombinedOutput()
	t.Logf("%s\n%s", command, out)
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
}

// daemonSetOf returns a DaemonSet like that of an operator or a network. It runs on no node.
func daemonSetOf(namespace, name string) string {
	return fmt.Sprintf(`---
apiVersion: apps/v1
kind: DaemonSet
metadata: {namespace: %[1]s, name: %[2]s}
spec:
  selector: {matchLabels: {name: %[2]s}}
  template:
    metadata: {labels: {name: %[2]s}}
    spec:
      nodeSelector: {no: node}
      containers: [{name: %[2]s, image: none}]
`, namespace, name)
}

// run runs a block of a page, and checks that its pods and its output are as the page says. The pods use the node's
// image, whose shell has another name, and which lacks ip.
func (g *guides) run(t *testing.T, block pages.Block) {
	t.Helper()
	if block.File == "docs/troubleshoot.md" { // the block removes files that a device plugin left behind
		g.shell(t, "kubectl patch node "+g.k.NodeName()+
			` --subresource=status --type=json -p '[{"op":"add","path":"/status/capacity/rdma~1hca","value":"0"}]'`)
	}
	shell := pages.Shell{Dir: g.dir, Environment: g.env, Here: strings.NewReplacer("my-node", g.k.NodeName(),
		"-- sh -c", "-- /bin/busybox sh -c", "ip -br addr; ip rule", "true")}
	said, failed, err := shell.Run(within(t, kubeletPatience), block)
	t.Logf("%s:\n%s%s", block, block.Content, said)
	if len(failed) > 0 || err != nil {
		t.Fatalf("%s: %+v, %v", block, failed, err)
	}
	for _, line := range block.Lines() {
		if file, applied := strings.CutPrefix(line, "kubectl apply -f "); applied {
			g.expectPods(t, file)
		}
		for want, sign := range map[string]string{"ulimit -l": "unlimited", "ls /dev/infiniband": "uverbs",
			"rdma-spec explain": "unlimited"} {
			if strings.Contains(line, want) && !strings.Contains(said, sign) {
				t.Errorf("%s: %s does not say %s", block, line, sign)
			}
		}
		if names, resources := strings.CutPrefix(line, "kubectl rdma resources"); resources {
			for name := range strings.FieldsSeq(names) {
				if !strings.Contains(said, name) {
					t.Errorf("%s: %s does not name %s", block, line, name)
				}
			}
		}
	}
}

// expectPods waits for the pods of an example, and checks that each container with an RDMA resource can lock all
// memory.
func (g *guides) expectPods(t *testing.T, file string) {
	t.Helper()
	for _, document := range strings.Split(scratch.Read(t, filepath.Join(g.dir, file)), "\n---\n") {
		var pod corev1.Pod
		if err := yaml.Unmarshal([]byte(document), &pod); err != nil || pod.Kind != "Pod" || len(pod.Spec.Containers) == 0 {
			continue
		}
		c := pod.Spec.Containers[0]
		rdma := slices.ContainsFunc(deviceNames(c), func(name string) bool { return name != "nvidia.com/gpu" })
		p := &staticPod{kubelet: g.k, name: pod.Name}
		switch {
		case !rdma:
		case slices.Contains(c.Command, "sleep"):
			if got := memlock(t, p.running(t, c.Name)); got != "unlimited" {
				t.Errorf("pod %s of %s: memlock is %s", pod.Name, file, got)
			}
		default:
			p.await(t, c.Name, cri.ContainerState_CONTAINER_EXITED)
			logs, _ := filepath.Glob("/var/log/pods/default_" + pod.Name + "_*/" + c.Name + "/0.log") // the pattern is valid
			if len(logs) != 1 || !strings.Contains(scratch.Read(t, logs[0]), " unlimited\n") {
				t.Errorf("pod %s of %s does not say unlimited: %q", pod.Name, file, logs)
			}
		}
	}
}

// deviceNames returns the extended resources that a container requests.
func deviceNames(c corev1.Container) (names []string) {
	for name := range c.Resources.Limits {
		if strings.Contains(string(name), "/") {
			names = append(names, string(name))
		}
	}
	return names
}
