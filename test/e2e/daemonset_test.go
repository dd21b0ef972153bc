// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/rdma-spec/rdma-spec/test/node"
	"github.com/rdma-spec/rdma-spec/test/node/cluster"
	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/node/kubelet"
)

// pluginNamespace is the DaemonSet's.
const pluginNamespace = "rdma-spec"

// allDevices are what the shared device plugin gives.
var allDevices = []string{"issm0", "rdma_cm", "umad0", "uverbs0"}

// TestClusterDaemonSet installs the plugin as the documentation says: the image, daemonset.yaml and its patches, on a cluster with a real
// DaemonSet controller, by kubectl.
func TestClusterDaemonSet(t *testing.T) {
	withoutNRI := containerd.Options{Version: *version, Runtime: *runtime, Network: true, NoNRI: true}
	withNRI := withoutNRI
	withNRI.NoNRI = false
	// As systemd mounts it: containers see what is mounted below it later.
	if err := syscall.Mount("none", "/run", "", syscall.MS_SHARED|syscall.MS_REC, ""); err != nil {
		t.Fatal(err)
	}
	restart(t, withoutNRI)
	if err := os.RemoveAll(filepath.Dir(containerd.NRISocket)); err != nil { // as on a node that never had NRI
		t.Fatal(err)
	}
	t.Cleanup(func() { removePods(t, pluginNamespace) })
	importImage(t)
	d := &daemonSet{c: startCluster(t), begin: time.Now()}
	t.Cleanup(func() { d.tell(t) })
	if err := d.c.StartControllers(); err != nil {
		t.Fatal(err)
	}
	k := joinKubelet(t, d.c)
	early := runClusterPod(t, d.c, k, kubelet.Pod{Name: "early", Containers: []kubelet.Container{{Name: "main", Resource: shared}}})
	early.expectHolds(t, "main", kernelDefault, allDevices...)

	// The node's CPU is emulated, hence the budget. All else is as people install it.
	d.apply(t, strings.Replace(deployFile(t, "daemonset.yaml"), "- --http=:9797\n", "- --http=:9797\n            - --budget="+budget+"\n", 1))
	d.awaitEvent(t, "without NRI", "/var/run/nri is not a directory")
	replaceContainerd(t, withNRI)
	d.awaitRollout(t)
	d.expectAnswers(t, "9797", "/readyz", "registered")
	d.expectAnswers(t, "9797", "/metrics", "\nnri_rdma_connected 1\n")
	late := runClusterPod(t, d.c, k, kubelet.Pod{Name: "late", Containers: []kubelet.Container{{Name: "main", Resource: shared}}})
	late.expectHolds(t, "main", "unlimited", allDevices...)
	expectCapabilities(t, late.running(t, "main"), everySet)
	early.expectHolds(t, "main", kernelDefault, allDevices...)

	d.kubectl(t, "patch", "configmap", "nri-rdma", "--patch", `{"data": {"config.yaml": "repair: {mode: fix, every: 1s}"}}`)
	d.patch(t, "validator")
	d.patch(t, "repair")
	d.awaitRollout(t)
	d.expectAnswers(t, "9798", "/readyz", "registered")
	err := d.c.Await(within(t, kubeletPatience), "has the early pod's limit raised", func() bool { return memlock(t, early.running(t, "main")) == "unlimited" })
	if err != nil {
		t.Error(err)
	}
	status := d.kubectl(t, documentedCommand(t, "exec daemonset/nri-rdma -- rdma-spec status")...)
	for _, pod := range []string{"early", "late"} {
		if line := regexp.MustCompile(`(?m)^default/` + pod + ` +main .*$`).FindString(status); !strings.Contains(line, " ok") {
			t.Errorf("rdma-spec status in the plugin's pod says %q, want that %s is ok:\n%s", line, pod, status)
		}
	}
	testValidatorContainer(t, d, k)
	testPatchForCRIO(t, d)
}

// testValidatorContainer: while the plugin does not answer, the validator refuses an RDMA container, and lets it start afterwards.
func testValidatorContainer(t *testing.T, d *daemonSet, k *kubelet.Kubelet) {
	plugin := &staticPod{kubelet: k, name: d.pod(t).Name}
	pid, err := ctrd.PID(within(t, patience), plugin.running(t, "nri-rdma"))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	goOn := func() { _ = syscall.Kill(pid, syscall.SIGCONT) } // it may have been replaced
	defer goOn()
	refused := runClusterPod(t, d.c, k, kubelet.Pod{Name: "refused", Containers: []kubelet.Container{{Name: "main", Resource: shared}}})
	const reason = "rdma-validator: pod default/refused, container main"
	err = d.c.Await(within(t, kubeletPatience), "says that the validator refuses", func() bool {
		pod, err := d.c.Pod(t.Context(), "refused")
		return err == nil && strings.Contains(waitsFor(pod), reason)
	})
	if err != nil {
		t.Fatal(err)
	}
	goOn()
	refused.expectHolds(t, "main", "unlimited", allDevices...)
}

// testPatchForCRIO: an API server takes the patch for CRI-O, beside the others, and nothing of containerd is left.
func testPatchForCRIO(t *testing.T, d *daemonSet) {
	var set appsv1.DaemonSet
	text := d.kubectl(t, "patch", "daemonset", "nri-rdma", "--patch-file", deployPath("daemonset-crio.yaml"), "--dry-run=server", "-o", "json")
	if err := json.Unmarshal([]byte(text), &set); err != nil {
		t.Fatal(err)
	}
	mounted := map[string]bool{}
	for _, ctr := range set.Spec.Template.Spec.Containers {
		for _, m := range ctr.VolumeMounts {
			mounted[m.Name] = true
		}
	}
	for _, v := range set.Spec.Template.Spec.Volumes {
		if !mounted[v.Name] {
			t.Errorf("with the patch for CRI-O nobody mounts volume %s", v.Name)
		}
	}
	if mounted["containerd"] || !mounted["crio"] {
		t.Errorf("with the patch for CRI-O the volumes %v are mounted", mounted)
	}
}

// importImage makes the image of deploy/Containerfile, and has containerd take it in under the name that the DaemonSet has.
func importImage(t *testing.T) {
	t.Helper()
	programs, entrypoint := map[string]string{}, []string{}
	for line := range strings.Lines(deployFile(t, "Containerfile")) {
		words := strings.Fields(line)
		switch {
		case len(words) == 0 || words[0] == "#" || slices.Equal(words, []string{"FROM", "scratch"}):
		case words[0] == "COPY" && strings.HasSuffix(words[len(words)-1], "/"):
			for _, name := range words[1 : len(words)-1] {
				programs[words[len(words)-1]+name] = filepath.Join(*bin, name)
			}
		case words[0] == "ENTRYPOINT" && json.Unmarshal([]byte(strings.TrimPrefix(line, "ENTRYPOINT")), &entrypoint) == nil:
		default:
			t.Fatalf("Containerfile: this test does not understand %q", line)
		}
	}
	file := filepath.Join(t.TempDir(), "image.tar")
	if err := node.WriteImage(file, "docker.io/library/rdma-spec:devel", programs, entrypoint...); err != nil {
		t.Fatal(err)
	}
	if err := ctrd.Import(within(t, patience), file); err != nil {
		t.Fatal(err)
	}
}

// deployPath is the path of a file of deploy, and deployFile its text.
func deployPath(name string) string { return filepath.Join(*bin, "../deploy", name) }

func deployFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(deployPath(name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// documentedCommand returns the arguments of the kubectl command in docs/looking-at-a-node.md, from where its namespace has been named, with these words in it.
func documentedCommand(t *testing.T, words string) []string {
	t.Helper()
	const kubectl = "kubectl -n " + pluginNamespace + " "
	for line := range strings.Lines(deployFile(t, "../docs/looking-at-a-node.md")) {
		if args, found := strings.CutPrefix(line, kubectl); found && strings.HasPrefix(args, words) {
			return strings.Fields(args)
		}
	}
	t.Fatalf("docs/looking-at-a-node.md has no line that begins with %s%s", kubectl, words)
	return nil
}

// daemonSet is the plugin's DaemonSet in a cluster.
type daemonSet struct {
	c     *cluster.Cluster
	begin time.Time
}

// tell says, where the test has failed, what became of the pods.
func (d *daemonSet) tell(t *testing.T) {
	t.Helper()
	if !t.Failed() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	pods, err := d.c.Kubectl(ctx, "-n", pluginNamespace, "describe", "pods")
	t.Logf("the plugin's pods: %s, %v", pods, err)
	logs, _ := filepath.Glob("/var/log/pods/" + pluginNamespace + "_*/*/*.log") // the pattern is sound
	for _, file := range logs {
		text, err := os.ReadFile(file)
		t.Logf("%s: %s, %v", file, text, err)
	}
}

// kubectl runs kubectl in the plugin's namespace.
func (d *daemonSet) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	t.Logf("after %s: kubectl %s", time.Since(d.begin).Round(time.Second), strings.Join(args, " "))
	out, err := d.c.Kubectl(within(t, kubeletPatience), append([]string{"-n", pluginNamespace}, args...)...)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return out
}

func (d *daemonSet) apply(t *testing.T, text string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "daemonset.yaml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	d.kubectl(t, "apply", "-f", file)
}

func (d *daemonSet) patch(t *testing.T, name string) {
	t.Helper()
	d.kubectl(t, "patch", "daemonset", "nri-rdma", "--patch-file", deployPath("daemonset-"+name+".yaml"))
}

// awaitRollout waits until the node has the newest pod, ready, and no other.
func (d *daemonSet) awaitRollout(t *testing.T) {
	t.Helper()
	d.kubectl(t, "rollout", "status", "daemonset/nri-rdma", "--timeout", (kubeletPatience - patience).String())
}

// awaitEvent waits until an event in the plugin's namespace says something.
func (d *daemonSet) awaitEvent(t *testing.T, when, says string) {
	t.Helper()
	var told []string
	err := d.c.Await(within(t, kubeletPatience), "has an event that says "+says, func() bool {
		var err error
		told, err = d.c.Events(t.Context(), pluginNamespace)
		return err == nil && slices.ContainsFunc(told, func(message string) bool { return strings.Contains(message, says) })
	})
	if err != nil {
		t.Fatalf("%s: %v\nEvents: %q", when, err, told)
	}
	t.Logf("after %s: an event says %s", time.Since(d.begin).Round(time.Second), says)
}

// pod gives the plugin's pod that runs, and is not about to end.
func (d *daemonSet) pod(t *testing.T) corev1.Pod {
	t.Helper()
	var pods corev1.PodList
	if err := json.Unmarshal([]byte(d.kubectl(t, "get", "pods", "-l", "app.kubernetes.io/name=nri-rdma", "-o", "json")), &pods); err != nil {
		t.Fatal(err)
	}
	running := slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
	if len(running) != 1 {
		t.Fatalf("%d pods of the plugin, want 1", len(running))
	}
	return running[0]
}

// expectAnswers asks the plugin's pod over HTTP, as the kubelet and Prometheus do.
func (d *daemonSet) expectAnswers(t *testing.T, port, path, want string) {
	t.Helper()
	asked, err := http.NewRequestWithContext(within(t, patience), http.MethodGet, fmt.Sprintf("http://%s:%s%s", d.pod(t).Status.PodIP, port, path), http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(asked)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close() //nolint:errcheck // it was read whole
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK || !strings.Contains(string(text), want) {
		t.Errorf("%s answers %s, %v, want %q in\n%s", path, answer.Status, err, want, text)
	}
}

// removePods ends a namespace's pods that no kubelet ends any more.
func removePods(t *testing.T, namespace string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	filter := &cri.PodSandboxFilter{LabelSelector: map[string]string{"io.kubernetes.pod.namespace": namespace}}
	pods, err := ctrd.CRI().ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: filter})
	if err != nil {
		t.Error(err)
	}
	for _, pod := range pods.GetItems() {
		if _, err := ctrd.CRI().StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: pod.GetId()}); err != nil {
			t.Error(err)
		}
		if _, err := ctrd.CRI().RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: pod.GetId()}); err != nil {
			t.Error(err)
		}
	}
}
