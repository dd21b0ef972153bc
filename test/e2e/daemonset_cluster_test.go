// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/rdma-spec/rdma-spec/test/node/cluster"
)

// pluginNamespace is the DaemonSet's namespace.
const pluginNamespace = "rdma-spec"

// tookOver is what a plugin logs when it takes over from one that has stopped.
const tookOver = "took over the runtime connection from the previous process"

// daemonSet is the plugin's DaemonSet in a cluster.
type daemonSet struct {
	c     *cluster.Cluster
	begin time.Time
	made  int // number of pods that expectLimit created, because each name is used only once
}

// tell logs the state of the pods if the test failed.
func (d *daemonSet) tell(t *testing.T) {
	t.Helper()
	if !t.Failed() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	pods, err := d.c.Kubectl(ctx, "-n", pluginNamespace, "describe", "pods")
	var said strings.Builder // one message, because a table of failures repeats a test's last messages
	fmt.Fprintf(&said, "the plugin's pods: %s, %v\n", pods, err)
	logs, _ := filepath.Glob("/var/log/pods/" + pluginNamespace + "_*/*/*.log") // the pattern is valid
	for _, file := range logs {
		text, err := os.ReadFile(file)
		fmt.Fprintf(&said, "%s: %s, %v\n", file, text, err)
	}
	for line := range strings.Lines(ctrd.Log()) {
		if strings.Contains(line, "rdma") && strings.Contains(line, "plugin") {
			said.WriteString("containerd: " + line)
		}
	}
	t.Log(said.String())
}

// kubectl runs kubectl in the plugin's namespace.
func (d *daemonSet) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	return d.run(t, "kubectl", d.c.Kubectl, args)
}

// helm runs Helm in the plugin's namespace.
func (d *daemonSet) helm(t *testing.T, args ...string) string {
	t.Helper()
	return d.run(t, "helm", d.c.Helm, args)
}

func (d *daemonSet) run(t *testing.T, name string,
	program func(context.Context, ...string) (string, error), args []string) string {
	t.Helper()
	t.Logf("after %s: %s %s", time.Since(d.begin).Round(time.Second), name, strings.Join(args, " "))
	out, err := program(within(t, kubeletPatience), append([]string{"-n", pluginNamespace}, args...)...)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return out
}

// awaitRollout waits until the node has only the newest pod, and the pod is ready.
func (d *daemonSet) awaitRollout(t *testing.T) {
	t.Helper()
	d.kubectl(t, "rollout", "status", "daemonset/nri-rdma", "--timeout", (kubeletPatience - patience).String())
}

// awaitLog waits until a container of the plugin's pod logs a text. It reads the kubelet's log file, because each
// kubectl takes seconds on an emulated CPU.
func (d *daemonSet) awaitLog(t *testing.T, container, says string) {
	t.Helper()
	pod, said := d.pod(t), ""
	file := fmt.Sprintf("/var/log/pods/%s_%s_%s/%s/0.log", pluginNamespace, pod.Name, pod.UID, container)
	err := d.c.Await(within(t, kubeletPatience), "has "+container+" say "+says, func() bool {
		text, err := os.ReadFile(file)
		said = fmt.Sprintf("%s, %v", text, err)
		return strings.Contains(said, says)
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
}

// awaitEvent waits until an event in the plugin's namespace contains a text.
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

// refusals returns the messages of other pods' events about containers that could not be created.
func (d *daemonSet) refusals(t *testing.T) []string {
	t.Helper()
	told, err := d.c.Events(within(t, patience), corev1.NamespaceDefault)
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(told, func(message string) bool { return !strings.Contains(message, "Error: ") })
}

// pods returns the plugin's pods.
func (d *daemonSet) pods(ctx context.Context) ([]corev1.Pod, error) {
	return d.c.Pods(ctx, pluginNamespace, "app.kubernetes.io/name=nri-rdma")
}

// pod returns the plugin's running pod that is not being deleted.
func (d *daemonSet) pod(t *testing.T) corev1.Pod {
	t.Helper()
	pods, err := d.pods(within(t, patience))
	if err != nil {
		t.Fatal(err)
	}
	running := slices.DeleteFunc(pods, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
	if len(running) != 1 {
		t.Fatalf("%d pods of the plugin, want 1", len(running))
	}
	return running[0]
}

// expectAnswers sends an HTTP request to the plugin's pod, as the kubelet and Prometheus do, and checks the response.
func (d *daemonSet) expectAnswers(t *testing.T, port, path, want string) {
	t.Helper()
	asked, err := http.NewRequestWithContext(within(t, patience), http.MethodGet, fmt.Sprintf("http://%s:%s%s",
		d.pod(t).Status.PodIP, port, path), http.NoBody)
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

// removePods removes the pods of a namespace. No kubelet is running that would end them.
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
