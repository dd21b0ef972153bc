// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/node/daemon"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// If the policy refuses a container, its creation fails with a one-line error, and leaves nothing behind. The tests of
// the policy cover the other refusals.
func TestRefusals(t *testing.T) {
	plugin := startPlugin(t, listed+"memlock: 16Gi\n")
	tests := map[string]struct {
		namespace, annotation string
		devices               []containerd.Device
		want                  string
	}{
		"namespace-not-listed": {"guest", "true", nil, `the policy does not allow pods in namespace "guest" to opt in by annotation`},
		"another-hca": {"guest", "{devices: [rxe1]}", containerd.Verbs(0),
			`HCA "rxe1", which cannot be injected because the container already has other verbs devices`},
		"no-such-hca": {"ml-a", "{devices: [mlx5_7]}", nil,
			`HCA "mlx5_7", which this node does not have: the node has rxe0 (ACTIVE), rxe1 (ACTIVE), rxe2 (DOWN)`},
		"memlock-above-policy": {"ml-a", "{memlock: 17Gi}", nil, `requests memlock 17Gi, but rule "default" grants at most 16Gi`},
	}
	pods := map[string]*containerd.Sandbox{}
	for _, namespace := range []string{"guest", "ml-a"} {
		annotations := map[string]string{}
		for name, test := range tests {
			annotations["rdma.noderesource.dev/container."+name] = test.annotation
		}
		pods[namespace] = runPod(t, containerd.Pod{Namespace: namespace, Name: "refused", Annotations: annotations})
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			pod := pods[test.namespace]
			_, err := pod.Create(within(t, patience), containerd.Container{Name: name, Devices: test.devices})
			if err == nil {
				t.Fatal("the container was created")
			}
			promised := "rdma: pod " + test.namespace + "/refused, container " + name + ": "
			if !strings.Contains(err.Error(), promised) || !strings.Contains(err.Error(), test.want) ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("the refusal is\n%s\nwant one line with %q and %q", err, promised, test.want)
			}
			// The runtime may get the answer before the plugin logs it.
			awaitLog(t, plugin, "container="+name)
			if got := strings.Count(plugin.Log(), "container="+name); got != 1 {
				t.Errorf("the plugin logged %d lines about it, want 1", got)
			}
		})
	}
	for namespace, pod := range pods {
		left, err := onRuntime().CRI().ListContainers(within(t, patience),
			&cri.ListContainersRequest{Filter: &cri.ContainerFilter{PodSandboxId: pod.ID}})
		if err != nil {
			t.Fatal(err)
		}
		if len(left.Containers) > 0 {
			t.Errorf("containers are left behind in %s: %v", namespace, left.Containers)
		}
	}
}

// While no plugin is registered, the validator refuses RDMA containers and no others. It accepts containers that the
// plugin adjusted. If a runtime does not support validators, the validator reports that, and nothing changes.
func TestValidator(t *testing.T) {
	if strings.HasPrefix(*version, "1.") {
		awaitLog(t, startValidator(t), "not registered: containerd v"+*version+
			" does not call NRI plugins to validate containers: upgrade to 2.2.0 or later")
		runContainer(t, runPod(t, containerd.Pod{}), containerd.Container{Devices: containerd.Verbs(0)})
		return
	}
	startPlugin(t, "{}", "--validate")
	pod := runPod(t, containerd.Pod{Name: "validated"})
	expectRefused(t, pod, containerd.Container{Name: "refused", Devices: containerd.Verbs(0)},
		"rdma-validator: pod default/validated, container refused: the RDMA container (device: /dev/infiniband/uverbs0 (rxe0)) "+
			`would start without memlock unlimited, which rule "default" grants: check that nri-rdma is registered on this node`)
	expectMemlock(t, runContainer(t, pod, containerd.Container{Name: "unrelated"}), kernelDefault)
	startPlugin(t, "{}")
	expectMemlock(t, runContainer(t, pod, containerd.Container{Name: "holder", Devices: containerd.Verbs(0)}), "unlimited")
}

// startValidator runs nri-rdma --validate with its defaults, whether or not the runtime accepts it. It ends with the
// test.
func startValidator(t *testing.T) *daemon.Process {
	t.Helper()
	config := filepath.Join(scratch.Dir(t), "config.yaml")
	scratch.File(t, config, "{}", 0o644)
	return start(t, filepath.Join(*bin, "nri-rdma"), "--validate", "--config", config, "--socket", containerd.NRISocket)
}

// If containerd cannot raise limits, RDMA containers start with containerd's hard limit, and the plugin says how to
// allow containerd to raise it. With a higher limit, runc could not start the container. (crun 1.8 starts no containers
// there, because it raises its own limit.)
func TestRuntimeThatMayNotRaiseLimits(t *testing.T) {
	restartWith(t, func(o *containerd.Options) { o.Bounded = true })
	plugin := startPlugin(t, "{}")
	pod := runPod(t, containerd.Pod{Name: "bounded",
		Annotations: map[string]string{"rdma.noderesource.dev/container.asks": "{memlock: 1Gi}"}})
	id := runContainer(t, pod, containerd.Container{Name: "trainer", User: 1000, Devices: containerd.Verbs(0)})
	expectMemlock(t, id, kernelDefault)
	expectCapabilities(t, id, everySet)
	expectLogged(t, plugin, "the runtime cannot raise limits", "memlock is lowered from unlimited to "+
		"8Mi", "msg=adjusted",
		"LimitMEMLOCK=infinity")
	expectRefused(t, pod, containerd.Container{Name: "asks", Devices: containerd.Verbs(0)},
		"no container with a memlock above 8Mi can start")
	plugin.Stop()

	startByName(t)
	_, err := pod.Run(within(t, patience), containerd.Container{Name: "cdi-high"})
	if err == nil || !strings.Contains(strings.ToLower(err.Error()), "operation not permitted") {
		t.Errorf("a container with more than the runtime can set: %v", err)
	}
	t.Logf("with more, %s says: %v", *runtime, err)
}
