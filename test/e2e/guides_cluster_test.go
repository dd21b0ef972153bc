// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// notHere are the commands of the guides that this cluster cannot run, and why.
var notHere = []struct{ command, why string }{
	{`^helm `, "an operator of others, from the internet"},
	{`^kubectl (cp|exec) .*(/tmp/rdma-spec|ib_write_bw)`, "Debian's packages, from the internet"},
	{`^kubectl logs vllm-master-0`, "Volcano, and GPUs"},
	{`rollout restart daemonset/spiderpool`, "Spiderpool's device plugin"},
}

// kinds are those of the operators that the guides' examples have. The API server takes any object of them.
var kinds = []struct{ group, version, kind, plural, scope string }{
	{"mellanox.com", "v1alpha1", "NicClusterPolicy", "nicclusterpolicies", "Cluster"},
	{"mellanox.com", "v1alpha1", "HostDeviceNetwork", "hostdevicenetworks", "Cluster"},
	{"sriovnetwork.openshift.io", "v1", "SriovNetworkNodePolicy", "sriovnetworknodepolicies", "Namespaced"},
	{"sriovnetwork.openshift.io", "v1", "SriovIBNetwork", "sriovibnetworks", "Namespaced"},
	{"spiderpool.spidernet.io", "v2beta1", "SpiderIPPool", "spiderippools", "Cluster"},
	{"spiderpool.spidernet.io", "v2beta1", "SpiderMultusConfig", "spidermultusconfigs", "Namespaced"},
	{"batch.volcano.sh", "v1alpha1", "Job", "jobs", "Namespaced"},
}

// guides is a cluster as the guides' readers have one: with kinds and namespaces of operators, and device plugins. Its
// HCA is a software one.
type guides struct {
	c      *cluster.Cluster
	k      *kubelet.Kubelet
	folder string // of the repository, with examples whose images are the node's
	env    []string
}

// TestClusterGuides runs the commands of the three guides that a cluster takes, from top to bottom, and sees that the
// pods of their examples have memlock and an HCA. notHere has the others.
func TestClusterGuides(t *testing.T) {
	restartWith(t, func(o *containerd.Options) { o.Network = true })
	g := &guides{c: startWholeCluster(t), folder: scratch.Folder(t)}
	g.k = joinKubelet(t, g.c)
	t.Cleanup(func() { removePods(t, corev1.NamespaceDefault) })
	g.prepare(t)
	startPlugin(t, "{}")
	ran := 0
	for _, page := range []string{"guide-gpu-cluster", "guide-sriov", "guide-spiderpool"} {
		t.Run(page, func(t *testing.T) {
			for _, block := range regexp.MustCompile("(?ms)^```sh cluster\n(.*?)^```").FindAllStringSubmatch(
				deployFile(t, "../docs/"+page+".md"), -1) {
				for line := range strings.Lines(block[1]) {
					ran += g.run(t, strings.TrimSpace(line))
				}
			}
		})
	}
	if ran < 12 {
		t.Errorf("%d commands of the guides were run: too few", ran)
	}
}

// prepare brings what a reader of the guides has, or has installed with another project's operator.
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
  - {name: %[2]s, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`, k.group, k.version, k.kind, k.plural, k.scope)
	}
	g.write(t, "definitions.yaml", definitions.String())
	g.shell(t, "kubectl apply -f definitions.yaml && kubectl wait --for=condition=Established crd --all --timeout=2m")
	for _, namespace := range []string{"nvidia-network-operator", "sriov-network-operator", "spiderpool"} {
		g.shell(t, "kubectl create namespace "+namespace)
	}
	examples, err := filepath.Glob(deployPath("examples/*.yaml"))
	if err != nil || len(examples) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, file := range examples {
		g.write(t, "deploy/examples/"+filepath.Base(file), g.example(t, scratch.Read(t, file)))
	}
	g.write(t, "pod.yaml", strings.Split(scratch.Read(t, filepath.Join(g.folder, "deploy/examples/spiderpool-macvlan.yaml")),
		"\n---\n")[17])
}

// example returns an example whose pods have the node's image. What would install packages waits, and is ready at once.
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
	scratch.File(t, filepath.Join(g.folder, name), text, 0o644)
}

func (g *guides) shell(t *testing.T, command string) string {
	t.Helper()
	cmd := exec.CommandContext(within(t, kubeletPatience), "sh", "-ec", command)
	cmd.Dir, cmd.Env = g.folder, g.env
	out, err := cmd.CombinedOutput()
	t.Logf("%s\n%s", command, out)
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	return string(out)
}

// run runs a line of a guide, and returns 1, or 0 where this cluster cannot.
func (g *guides) run(t *testing.T, line string) int {
	t.Helper()
	for _, command := range notHere {
		if regexp.MustCompile(command.command).MatchString(line) {
			t.Logf("not here: %s: %s", command.why, line)
			return 0
		}
	}
	said := g.shell(t, strings.NewReplacer("my-node", g.k.NodeName(), "-- sh -c", "-- /bin/busybox sh -c",
		"ip -br addr; ip rule", "true").Replace(line))
	switch {
	case strings.HasPrefix(line, "kubectl apply -f deploy/examples/"):
		g.expectPods(t, strings.TrimPrefix(line, "kubectl apply -f "))
	case strings.HasPrefix(line, "kubectl rdma resources"):
		for _, name := range strings.Fields(line)[3:] {
			if !strings.Contains(said, name) {
				t.Errorf("%s does not name %s", line, name)
			}
		}
	case strings.Contains(line, "ulimit -l") && !strings.Contains(said, "unlimited"),
		strings.Contains(line, "ls /dev/infiniband") && !strings.Contains(said, "uverbs"),
		strings.Contains(line, "rdma-spec explain") && !strings.Contains(said, "unlimited"):
		t.Errorf("%s: the answer is not the guide's", line)
	}
	return 1
}

// expectPods waits for the pods of an example, and sees that a container with a resource of RDMA may lock all memory.
func (g *guides) expectPods(t *testing.T, file string) {
	t.Helper()
	for _, document := range strings.Split(scratch.Read(t, filepath.Join(g.folder, file)), "\n---\n") {
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
			logs, _ := filepath.Glob("/var/log/pods/default_" + pod.Name + "_*/" + c.Name + "/0.log") // the pattern is sound
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
