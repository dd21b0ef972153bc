// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/rdma-spec/rdma-spec/test/node/cluster"
	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/node/kubelet"
)

// nowhere is a RuntimeClass whose handler does not exist in any runtime.
const nowhere = `{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: nowhere}, handler: nowhere}`

// TestClusterWhy runs `kubectl rdma why` for several pods, each of which lacks something that a transfer needs, and for
// one that lacks nothing. It finds the cause from perftest's output, the kubelet's messages, and the pod's spec.
func TestClusterWhy(t *testing.T) {
	restartWith(t, func(o *containerd.Options) { o.Network = true })
	c := startCluster(t)
	k := joinKubelet(t, c)
	apply(t, c, nowhere)
	const transfer = `ib_write_bw -d ${NCCL_IB_HCA:-rxe0} -x 1 -s 8M -n 5 -F `
	run := func(name, resource, script string, change func(*corev1.PodSpec)) {
		pod := kubelet.Pod{Name: name, Containers: []kubelet.Container{{Name: "main", Resource: resource, Script: script}}}.Manifest()
		pod.Spec.NodeName, pod.Spec.RestartPolicy = k.NodeName(), corev1.RestartPolicyNever
		if change != nil {
			change(&pod.Spec)
		}
		createPod(t, c, k, pod)
	}
	run("nothing", "", transfer+"-p 18801", nil)
	run("small", shared, "ibv_rc_pingpong -d rxe0 -g 1 -s 10000000 -p 18802", nil)
	run("misnamed", shared, transfer+"-p 18803", func(p *corev1.PodSpec) {
		p.Containers[0].Env = []corev1.EnvVar{{Name: "NCCL_IB_HCA", Value: "mlx9_0"}}
	})
	class := "nowhere"
	run("handler", shared, "", func(p *corev1.PodSpec) { p.RuntimeClassName = &class })
	awaitEnded(t, c, corev1.PodFailed, "nothing", "small", "misnamed")
	startPlugin(t, "{}")
	run("healthy", shared, transfer+"-p 18804 & until "+transfer+"-p 18804 127.0.0.1; do sleep 1; done; wait", nil)
	awaitEnded(t, c, corev1.PodSucceeded, "healthy")
	awaitThat(t, c, kubeletPatience, "says that there is no handler", func() bool {
		events, err := c.PodEvents(t.Context(), "handler")
		return err == nil && slices.ContainsFunc(events, func(event string) bool { return strings.Contains(event, class) })
	})

	for _, test := range []struct {
		pod    string
		status int
		says   []string
	}{
		{"nothing", 1, []string{"main: not RDMA: the container has no extended resource", "(according to the pod's spec: container-hca)"}},
		{"small", 1, []string{"main: RDMA if its device plugin injects verbs devices (" + shared + ")", "Couldn't register MR",
			"1. memlock is too low"}},
		{"misnamed", 1, []string{"IB device mlx9_0 not found", "1. a variable", "(according to the pod's spec: container-environment)",
			"main: the environment sets NCCL_IB_HCA=mlx9_0"}},
		{"handler", 1, []string{"main has no log", `no runtime for "nowhere" is configured`, "1. the runtime's configuration does not contain"}},
		{"healthy", 0, []string{"Succeeded", "log of main, ", "no relevant RDMA lines"}},
	} {
		cmd := exec.CommandContext(within(t, kubeletPatience), filepath.Join(*bin, "kubectl/linux_amd64/kubectl-rdma"), "why", test.pod)
		cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig())
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil {
			t.Fatal(err)
		}
		t.Logf("kubectl rdma why %s: %v\n%s", test.pod, err, out)
		if status := cmd.ProcessState.ExitCode(); status != test.status {
			t.Errorf("%s: exit status %d, want %d", test.pod, status, test.status)
		}
		for _, says := range test.says {
			if !strings.Contains(string(out), says) {
				t.Errorf("%s: the answer lacks %q", test.pod, says)
			}
		}
	}
}

// awaitEnded waits until pods have ended in a phase.
func awaitEnded(t *testing.T, c *cluster.Cluster, phase corev1.PodPhase, pods ...string) {
	t.Helper()
	for _, name := range pods {
		awaitThat(t, c, kubeletPatience, "has pod "+name+" "+string(phase), func() bool {
			pod, err := c.Pod(t.Context(), name)
			return err == nil && pod.Status.Phase == phase
		})
	}
}
