// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/rdma-spec/rdma-spec/test/node/kubelet"
	"github.com/rdma-spec/rdma-spec/test/testing/churn"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// refusedRules are rules that the chart accepts and the plugin refuses, because the second one can never match.
const refusedRules = `config.rules=[{"name":"all","match":{"namespaces":["*"]},"memlock":"5Gi"},` +
	`{"name":"never","match":{"namespaces":["a"]}}]`

// These limits in bytes.
const (
	gi1 = "1073741824"
	gi2 = "2147483648"
)

// policies is a release of the chart whose policy the test changes.
type policies struct {
	*daemonSet
	k     *kubelet.Kubelet
	chart string
}

// testPolicy: the policy is part of the pods. A change is a rollout with a handover. If the plugin refuses the new
// policy, the rollout fails, and the previous policy stays in force, even if processes are killed, and after a reboot.
func testPolicy(t *testing.T, d *daemonSet, k *kubelet.Kubelet) {
	t.Cleanup(func() { d.tell(t) })
	d.kubectl(t, "delete", "daemonsets,networkpolicies,serviceaccounts,configmaps", "--all", "--wait")
	d.awaitNoPods(t)
	p := &policies{daemonSet: d, k: k, chart: released(t, "nri-rdma-*.tgz")}
	p.helm(t, "install", "nri-rdma", p.chart, "--create-namespace", "--set", "extraArgs={--budget="+budget+"},config.memlock=1Gi")
	p.awaitRollout(t)
	p.expectLimit(t, gi1)
	before := p.registrations()

	pods := churn.Start(t, func(ctx context.Context, number int) error {
		return runToEnd(ctx, p.c, p.k, fmt.Sprintf("policy-%d", number))
	})
	pods.AwaitMore(t, kubeletPatience)
	p.upgrade(t, "--set", "config.memlock=2Gi")
	p.awaitRollout(t)
	pods.AwaitMore(t, kubeletPatience)
	pods.End()
	p.expectLimits(t, pods.Count())
	p.expectLimit(t, gi2)
	if got := p.registrations(); got != before {
		t.Errorf("the plugin has registered %d times during the change of the policy", got-before)
	}

	back := p.annotate(t)
	p.expectLimit(t, gi2)
	back() // a restarted container reads it

	newer := p.newer(t)
	p.helm(t, "upgrade", "nri-rdma", newer, "--reset-then-reuse-values")
	p.awaitRollout(t)
	p.expectLimit(t, gi2)
	// If the plugin refuses the policy, the rollout fails, and the serving pod continues.
	for _, refused := range [][]string{
		{p.chart, "--set-json", refusedRules},
		{newer, "--skip-schema-validation", "--set", "config.rules=null,config.keyOfAVersionToCome=true"},
	} {
		said, err := p.c.Helm(within(t, kubeletPatience), append([]string{"-n", pluginNamespace, "upgrade", "nri-rdma",
			"--reset-then-reuse-values", "--wait", "--timeout", "40s"}, refused...)...)
		if err == nil {
			t.Errorf("helm upgrade --wait takes %q, which the plugin refuses: %s", refused, said)
		}
		p.expectLimit(t, gi2)
	}
	if got := p.registrations(); got != before {
		t.Errorf("beside policies that are refused, the plugin has registered %d times", got-before)
	}
	p.kill(t)
	p.awaitRegistrations(t, before+1)
	p.expectLimit(t, gi2)

	p.reboot(t)
	p.expectLimit(t, gi2)
	before = p.registrations()
	p.helm(t, "rollback", "nri-rdma", "1")
	p.awaitRollout(t)
	p.expectLimit(t, gi1)
	if got := p.registrations(); got != before {
		t.Errorf("the plugin has registered %d times during the rollback", got-before)
	}
	p.helm(t, "uninstall", "nri-rdma")
	p.awaitNoPods(t)
	kept, err := os.ReadFile("/var/lib/rdma-spec/inforce/DaemonSet." + pluginNamespace + ".nri-rdma")
	if string(kept) != "memlock: 1Gi\n" {
		t.Errorf("kept is %q, %v", kept, err)
	}
}

// awaitNoPods waits until the plugin's pods are gone.
func (d *daemonSet) awaitNoPods(t *testing.T) {
	t.Helper()
	awaitThat(t, d.c, kubeletPatience, "has nothing of the plugin", func() bool {
		left, err := d.c.Pods(t.Context(), pluginNamespace, "")
		return err == nil && len(left) == 0 && processes(t, "/usr/local/bin/nri-rdma") == 0
	})
}

// newer returns a later version of the chart for the same plugin.
func (p *policies) newer(t *testing.T) string {
	t.Helper()
	dir := scratch.Dir(t)
	onNode(t, "tar xzf "+p.chart+" -C "+dir+" && sed -i 's/^version: .*/version: 99.0.0/' "+dir+"/nri-rdma/Chart.yaml")
	return filepath.Join(dir, "nri-rdma")
}

func (p *policies) upgrade(t *testing.T, args ...string) {
	t.Helper()
	p.helm(t, append([]string{"upgrade", "nri-rdma", p.chart, "--reset-then-reuse-values"}, args...)...)
}

// registrations returns how often the runtime has registered the plugin.
func (p *policies) registrations() int {
	return strings.Count(ctrd.Log(), `plugin \"90-rdma\" connected and synchronized`)
}

func (p *policies) awaitRegistrations(t *testing.T, want int) {
	t.Helper()
	awaitThat(t, p.c, kubeletPatience, fmt.Sprintf("has %d registrations", want),
		func() bool { return p.registrations() >= want })
}

// expectLimit creates an RDMA container, and checks its memlock.
func (p *policies) expectLimit(t *testing.T, want string) {
	t.Helper()
	p.made++
	name := fmt.Sprintf("limit-%d", p.made)
	if err := createSaying(within(t, patience), p.c, p.k, name); err != nil {
		t.Fatal(err)
	}
	(&staticPod{kubelet: p.k, name: name}).expectSaid(t, "main", want)
}

// expectLimits checks the output of the containers that were created while the policy changed.
func (p *policies) expectLimits(t *testing.T, want int) {
	t.Helper()
	said := map[string]int{}
	for _, text := range logs(t, "policy", want) {
		fields := strings.Fields(text)
		said[fields[len(fields)-1]]++
	}
	if said[gi1] == 0 || said[gi2] == 0 || said[gi1]+said[gi2] != want {
		t.Errorf("limits during the change: %v", said)
	}
	t.Logf("limits during the change: %v", said)
}

// annotate writes another policy into the annotation of the running pod, and waits until the pod's file contains it.
// back restores the former policy.
func (p *policies) annotate(t *testing.T) (back func()) {
	t.Helper()
	pod := p.pod(t)
	const key = "rdma-spec.github.io/policy"
	set := func(policy string) { p.kubectl(t, "annotate", "pod", pod.Name, "--overwrite", key+"="+policy) }
	set("memlock: 3Gi")
	begin := time.Now()
	file := "/var/lib/kubelet/pods/" + string(pod.UID) + "/volumes/kubernetes.io~projected/config/config.yaml"
	awaitThat(t, p.c, kubeletPatience, "has the annotation in the pod",
		func() bool { return strings.Contains(readLog(file), "3Gi") })
	t.Logf("the annotation was in the pod after %s", time.Since(begin).Round(time.Second))
	return func() { set(pod.Annotations[key]) }
}

// ready returns a ready pod of the plugin whose container is not one of the given ones.
func (p *policies) ready(ctx context.Context, but ...string) (pod corev1.Pod, err error) {
	pods, err := p.pods(ctx)
	for _, pod := range pods {
		if isReady(pod) && pod.DeletionTimestamp == nil && !slices.Contains(but, containerID(pod)) {
			return pod, nil
		}
	}
	return pod, errors.Join(err, errors.New("no pod of the plugin is ready"))
}

func isReady(pod corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

func containerID(pod corev1.Pod) string {
	if len(pod.Status.ContainerStatuses) == 0 {
		return ""
	}
	return pod.Status.ContainerStatuses[0].ContainerID
}

// kill kills the serving plugin.
func (p *policies) kill(t *testing.T) {
	t.Helper()
	pod, err := p.ready(within(t, patience))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("after %s: kill the plugin of %s", time.Since(p.begin).Round(time.Second), pod.Name)
	plugin := (&staticPod{kubelet: p.k, name: pod.Name}).running(t, "nri-rdma")
	if err := syscall.Kill(pid(t, plugin), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// shutDown removes what a shutdown of the node removes: the plugin's processes, its sandboxes, and /run. It returns the
// containers that the plugin had.
func (p *policies) shutDown(t *testing.T) (before []string) {
	t.Helper()
	t.Logf("after %s: the node shuts down", time.Since(p.begin).Round(time.Second))
	p.k.Stop()
	pods, err := p.pods(within(t, patience))
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range pods {
		before = append(before, containerID(pod))
	}
	removePods(t, pluginNamespace) // otherwise, a waiting plugin may register in the meantime
	if err := os.RemoveAll("/run/rdma-spec"); err != nil {
		t.Fatal(err)
	}
	return before
}

// reboot simulates a reboot, and returns when a pod of the plugin is ready again.
func (p *policies) reboot(t *testing.T) {
	t.Helper()
	before := p.shutDown(t)
	registered := p.registrations()
	p.k = joinKubelet(t, p.c)
	p.awaitRegistrations(t, registered+1)
	awaitThat(t, p.c, kubeletPatience, "has a plugin that is ready after the reboot", func() bool {
		_, err := p.ready(t.Context(), before...)
		return err == nil
	})
}
