// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package kustomize_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/test/testing/repository"
)

func TestMain(m *testing.M) { repository.Main(m) }

// manifest holds the objects of the base.
type manifest struct {
	account   corev1.ServiceAccount
	network   networkingv1.NetworkPolicy
	daemonSet appsv1.DaemonSet
}

// decode reads the base. A field that Kubernetes does not know is an error.
func decode(t *testing.T) manifest {
	t.Helper()
	var m manifest
	kinds := map[string]any{"ServiceAccount": &m.account, "NetworkPolicy": &m.network, "DaemonSet": &m.daemonSet}
	for _, text := range strings.Split(repository.Read(t, "deploy/kustomize/base/daemonset.yaml"), "\n---\n")[1:] {
		var kind struct {
			Kind string `json:"kind"`
		}
		if err := yaml.Unmarshal([]byte(text), &kind); err != nil {
			t.Fatal(err)
		}
		into, ok := kinds[kind.Kind]
		if !ok {
			t.Fatalf("unexpected %q, or twice", kind.Kind)
		}
		delete(kinds, kind.Kind)
		if err := yaml.UnmarshalStrict([]byte(text), into); err != nil {
			t.Fatalf("%s: %v", kind.Kind, err)
		}
	}
	if len(kinds) > 0 {
		t.Fatalf("objects that are missing: %v", kinds)
	}
	return m
}

// TestDaemonSetHoldsTogether: the arguments fit the program and the mounts. An API server checks what objects refer to.
func TestDaemonSetHoldsTogether(t *testing.T) {
	pod := decode(t).daemonSet.Spec.Template.Spec
	ctr := pod.Containers[0]
	line := "nri-rdma " + strings.Join(ctr.Args, " ")
	if ours, problem := repository.Build(t).Check(line); !ours || problem != "" {
		t.Errorf("args: %s", problem)
	}
	for _, mount := range ctr.VolumeMounts {
		if propagated := mount.MountPropagation != nil &&
			*mount.MountPropagation == corev1.MountPropagationHostToContainer; mount.Name == "containerd" && !propagated {
			t.Error("/run/containerd is mounted without HostToContainer: it would hold on to the mounts of containers that " +
				"are gone")
		}
		if mount.ReadOnly == ownDir(mount.Name) {
			t.Errorf("volume %s: readOnly is %t, and the plugin writes its own directories and nothing else",
				mount.Name, mount.ReadOnly)
		}
	}
	for flag, path := range map[string]string{"--config=": "/etc/rdma-spec/config.yaml",
		"--socket=": "/var/run/nri/nri.sock"} {
		if !strings.Contains(line, flag+path) || !mounted(ctr, path) {
			t.Errorf("%s%s: not among the arguments, or its directory not mounted", flag, path)
		}
	}
}

// mounted says whether a file lies in a directory that is mounted, not in the image and not mounted by itself: a socket
// is replaced by a new one.
func mounted(ctr corev1.Container, file string) bool {
	for _, m := range ctr.VolumeMounts {
		if filepath.Dir(file) == m.MountPath && m.SubPath == "" {
			return true
		}
	}
	return false
}

func TestDaemonSetPrivileges(t *testing.T) {
	m := decode(t)
	pod := m.daemonSet.Spec.Template.Spec
	// With it kubectl exec and logs mean the plugin, also where a patch has put the validator first.
	if got, want := m.daemonSet.Spec.Template.Annotations["kubectl.kubernetes.io/default-container"],
		pod.Containers[0].Name; got != want {
		t.Errorf("kubectl means container %q, want %q", got, want)
	}
	if pod.HostNetwork || pod.HostPID || pod.HostIPC || len(pod.InitContainers) > 0 || len(pod.Containers) != 1 {
		t.Error("the pod shares a namespace with the node, or has containers that nobody asked for")
	}
	for _, token := range []*bool{m.account.AutomountServiceAccountToken, pod.AutomountServiceAccountToken} {
		if token == nil || *token {
			t.Error("the pod gets a token for the API server")
		}
	}
	no, yes := false, true
	want := &corev1.SecurityContext{
		AllowPrivilegeEscalation: &no,
		ReadOnlyRootFilesystem:   &yes,
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
	if diff := cmp.Diff(want, pod.Containers[0].SecurityContext); diff != "" {
		t.Errorf("the container's securityContext, -want +got:\n%s", diff)
	}
	if got := pod.SecurityContext.SeccompProfile; got == nil || got.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("seccomp profile %v, want RuntimeDefault", got)
	}
	mounts, paths := map[string]string{}, map[string]string{}
	for _, m := range pod.Containers[0].VolumeMounts {
		mounts[m.Name] = m.MountPath
	}
	for _, v := range pod.Volumes {
		if v.HostPath == nil {
			continue
		}
		paths[v.HostPath.Path] = mounts[v.Name]
		// A directory that the kubelet makes hides that the node's is elsewhere.
		if made := *v.HostPath.Type == corev1.HostPathDirectoryOrCreate; made != ownDir(v.Name) {
			t.Errorf("volume %s is of type %s, and only the plugin's own directories may be made", v.Name, *v.HostPath.Type)
		}
	}
	wantPaths := map[string]string{"/var/run/nri": "/var/run/nri", "/run/rdma-spec/handover/rdma-spec.nri-rdma": "/run/rdma-spec/handover"}
	for _, path := range strings.Fields("/sys/class /sys/devices /sys/dev /sys/module /dev /proc /run/containerd " +
		"/run/rdma-spec /var/lib/kubelet/pod-resources /var/lib/rdma-spec/inforce") {
		wantPaths[path] = "/host" + path // the plugin's root
	}
	if diff := cmp.Diff(wantPaths, paths); diff != "" {
		t.Errorf("directories of the node, and where the plugin has them, -want +got:\n%s", diff)
	}
}

// ownDir reports whether a volume is a directory of the plugin's: the policy in force, the one that is kept, and where
// processes of this release meet.
func ownDir(volume string) bool {
	return volume == "policy" || volume == "kept" || volume == "handover"
}

// TestDaemonSetNetworkPolicy: it is about the DaemonSet's pods, and opens the metrics ports of its containers to
// one namespace, nothing to the rest.
func TestDaemonSetNetworkPolicy(t *testing.T) {
	m := decode(t)
	if diff := cmp.Diff(m.daemonSet.Spec.Selector.MatchLabels, m.network.Spec.PodSelector.MatchLabels); diff != "" {
		t.Errorf("the pods it is about, -the DaemonSet's +its:\n%s", diff)
	}
	if got, want := m.network.Spec.PolicyTypes, []networkingv1.PolicyType{"Ingress", "Egress"}; !cmp.Equal(want, got) {
		t.Errorf("policy types %v, want %v", got, want)
	}
	if len(m.network.Spec.Egress) > 0 || len(m.network.Spec.Ingress) != 1 {
		t.Fatalf("%d rules for egress, %d for ingress, want none and one", len(m.network.Spec.Egress),
			len(m.network.Spec.Ingress))
	}
	var ports []int32
	for _, ctr := range slices.Concat(m.daemonSet.Spec.Template.Spec.Containers,
		component(t, "validator").Spec.Template.Spec.Containers, component(t, "repair").Spec.Template.Spec.Containers) {
		for _, p := range ctr.Ports {
			ports = append(ports, p.ContainerPort)
		}
	}
	var open []int32
	for _, p := range m.network.Spec.Ingress[0].Ports {
		if p.Port == nil || p.EndPort != nil {
			t.Fatalf("port %+v is not one port", p)
		}
		open = append(open, p.Port.IntVal)
	}
	if diff := cmp.Diff(ports, open); diff != "" {
		t.Errorf("ports, -that are served +that are open:\n%s", diff)
	}
	from := m.network.Spec.Ingress[0].From
	if len(from) != 1 || from[0].NamespaceSelector == nil || len(from[0].NamespaceSelector.MatchLabels) != 1 ||
		from[0].IPBlock != nil {
		t.Errorf("open to %+v, want one namespace", from)
	}
}

// TestDaemonSetLeavesNoGap: a node always has a plugin, and one node whose new pod never gets ready does not stop the
// update of all others.
func TestDaemonSetLeavesNoGap(t *testing.T) {
	spec := decode(t).daemonSet.Spec
	strategy := spec.UpdateStrategy
	if strategy.Type != appsv1.RollingUpdateDaemonSetStrategyType || strategy.RollingUpdate == nil {
		t.Fatalf("updateStrategy %+v, want a rolling update", strategy)
	}
	for _, test := range []struct{ nodes, atLeast int }{{1, 1}, {20, 2}, {1000, 2}} {
		surge, err := intstr.GetScaledValueFromIntOrPercent(strategy.RollingUpdate.MaxSurge, test.nodes, true)
		if err != nil || surge < test.atLeast {
			t.Errorf("of %d nodes %d may have a second pod, %v; want %d at least", test.nodes, surge, err, test.atLeast)
		}
		gone, err := intstr.GetScaledValueFromIntOrPercent(strategy.RollingUpdate.MaxUnavailable, test.nodes, true)
		if err != nil || gone != 0 {
			t.Errorf("of %d nodes %d may have none, %v; want 0", test.nodes, gone, err)
		}
	}
	ctr := spec.Template.Spec.Containers[0]
	if p := ctr.ReadinessProbe; p == nil || p.HTTPGet == nil || p.HTTPGet.Path != "/readyz" {
		t.Error("the readiness probe does not ask /readyz: the old plugin would go before the new one has registered")
	}
	for _, p := range ctr.Ports {
		if p.HostPort != 0 {
			t.Errorf("host port %d: two plugins could not run beside each other", p.HostPort)
		}
	}
}

// TestDaemonSetIsNoRDMAContainer: the plugin must not adjust itself, or it could not start where its own policy refuses
// it.
func TestDaemonSetIsNoRDMAContainer(t *testing.T) {
	m := decode(t)
	p, err := policy.New(policy.Default())
	if err != nil {
		t.Fatal(err)
	}
	pod := m.daemonSet.Spec.Template
	ctr := pod.Spec.Containers[0]
	for _, list := range []corev1.ResourceList{ctr.Resources.Limits, ctr.Resources.Requests} {
		for name := range list {
			if strings.Contains(string(name), "/") {
				t.Errorf("the plugin's container requests %s", name)
			}
		}
	}
	nobody := policy.Facts{
		Verbs: func(hca.Number) (hca.Device, bool, error) {
			t.Error("asked for verbs devices")
			return hca.Device{}, false, nil
		},
		HCAs: func() (*hca.Inventory, bool, error) {
			t.Error("asked for the inventory")
			return &hca.Inventory{}, false, nil
		},
	}
	got := p.Decide(policy.Container{
		Namespace: m.daemonSet.Namespace, Pod: m.daemonSet.Name + "-x", Name: ctr.Name, Annotations: pod.Annotations,
	}, nobody)
	if diff := cmp.Diff(policy.Decision{Signal: policy.SignalNone}, got); diff != "" {
		t.Errorf("the decision about the plugin itself, -want +got:\n%s", diff)
	}
}
