// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"context"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/test/node"
	"github.com/rdma-spec/rdma-spec/test/node/cluster"
	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// enforced sets a level of Pod Security for the namespace of this cluster's pods.
const enforced = `{apiVersion: v1, kind: Namespace, metadata: {name: default, labels: {pod-security.kubernetes.io/enforce: LEVEL}}}`

// TestClusterRestricted has a real API server enforce Pod Security's level restricted. The pod in docs/restricted.md
// registers 10 MB and transfers them, with that page's configuration and with the default one. Without the plugin, it
// cannot. The API server refuses the same pod with the settings that RDMA needs without the plugin.
func TestClusterRestricted(t *testing.T) {
	restartWith(t, func(o *containerd.Options) { o.Network = true })
	importVerbs(t)
	c := startCluster(t)
	k := joinKubelet(t, c)
	apply(t, c, strings.Replace(enforced, "LEVEL", "restricted", 1))
	finally(t, patience, func(ctx context.Context) error {
		return c.Apply(ctx, strings.Replace(enforced, "LEVEL", "privileged", 1))
	})
	pod := func(name string) *corev1.Pod {
		p := restrictedPod(t)
		p.Name, p.Spec.NodeName = name, k.NodeName()
		return p
	}
	t.Run("more is refused", func(t *testing.T) { testMoreIsRefused(t, c, pod("more")) })

	t.Run("without the plugin", func(t *testing.T) {
		low := createPod(t, c, k, pod("low"))
		expectNoRegistration(t, low.running(t, "main"))
	})
	for name, test := range map[string]struct{ config, memlock string }{
		"the page's configuration": {deployFile(t, "examples/config-restricted.yaml"), gi1},
		"the default":              {"{}", "unlimited"},
	} {
		t.Run(name, func(t *testing.T) {
			startPlugin(t, test.config)
			p := createPod(t, c, k, pod("restricted-"+test.memlock))
			id := p.running(t, "main")
			if got := memlock(t, id); got != test.memlock {
				t.Errorf("memlock is %s, want %s", got, test.memlock)
			}
			inside := shell(t, id, "id -u; grep -E 'Cap(Eff|Bnd)|NoNewPrivs|Seccomp:' /proc/self/status; touch /x 2>&1")
			for _, want := range []string{"1000\n", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1",
				"Seccomp:\t2", "Read-only file system"} {
				if !strings.Contains(inside, want) {
					t.Errorf("the container does not say %q:\n%s", want, inside)
				}
			}
			expectTransfer(t, id, id)
		})
	}
}

// TestClusterRestrictedChart installs the chart as docs/restricted.md describes. The API server accepts the page's pod
// only in a namespace that can use RDMA. The plugin, which has no access to the runtime's socket, sets the pod's
// memlock to its memory limit.
func TestClusterRestrictedChart(t *testing.T) {
	d, k, _ := forDaemonSets(t)
	t.Cleanup(func() { d.tell(t) })
	importVerbs(t)
	d.helm(t, "install", "nri-rdma", released(t, "nri-rdma-*.tgz"), "--create-namespace", "-f",
		deployPath("helm/nri-rdma/restricted.yaml"), "--set", "extraArgs={--budget="+budget+"}")
	finally(t, kubeletPatience, func(ctx context.Context) error {
		_, err := d.c.Helm(ctx, "-n", pluginNamespace, "uninstall", "nri-rdma", "--wait")
		return err
	})
	d.awaitRollout(t)
	pod := restrictedPod(t)
	pod.Spec.NodeName = k.NodeName()
	awaitForbidden(t, d.c, true)
	_, err := d.c.Try(within(t, patience), pod)
	expectForbidden(t, err, "container main requests "+shared)

	label := func(level string) string {
		return strings.NewReplacer("LEVEL", level, "labels: {", "labels: {"+allowed+`: "true", `).Replace(enforced)
	}
	apply(t, d.c, label("privileged"))
	finally(t, patience, func(ctx context.Context) error {
		return d.c.Apply(ctx, strings.Replace(enforced, "LEVEL", "privileged", 1))
	})
	awaitForbidden(t, d.c, false)
	apply(t, d.c, label("restricted"))
	p := createPod(t, d.c, k, pod)
	if got := memlock(t, p.running(t, "main")); got != gi1 {
		t.Errorf("memlock is %s, want %s", got, gi1)
	}
	d.awaitLog(t, "nri-rdma", "msg=adjusted") // the adjustment is known only from containerd's event, because the plugin has no socket to read the spec
	d.awaitLog(t, "validator", "msg=registered")
	expectTransfer(t, p.running(t, "main"), p.running(t, "main"))
}

// testMoreIsRefused: Pod Security refuses privileged and IPC_LOCK, and the error names them.
func testMoreIsRefused(t *testing.T, c *cluster.Cluster, pod *corev1.Pod) {
	if _, err := c.Try(within(t, patience), pod); err != nil {
		t.Fatalf("the pod itself is refused: %v", err)
	}
	yes := true
	for says, change := range map[string]func(*corev1.SecurityContext){
		"privileged": func(s *corev1.SecurityContext) { s.Privileged, s.AllowPrivilegeEscalation = &yes, nil },
		"IPC_LOCK":   func(s *corev1.SecurityContext) { s.Capabilities.Add = []corev1.Capability{"IPC_LOCK"} },
	} {
		more := pod.DeepCopy()
		change(more.Spec.Containers[0].SecurityContext)
		_, err := c.Try(within(t, patience), more)
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `violates PodSecurity "restricted`) ||
			!strings.Contains(err.Error(), says) {
			t.Errorf("with %s: %v, want a refusal by Pod Security that names it", says, err)
			continue
		}
		t.Logf("with %s: %v", says, err)
	}
}

// restrictedPod returns the pod in docs/restricted.md, with an image that contains the node's verbs programs, and with
// a resource of the node's device plugin. It is in the namespace of this cluster's pods.
func restrictedPod(t *testing.T) *corev1.Pod {
	t.Helper()
	for _, document := range strings.Split(deployFile(t, "examples/restricted.yaml"), "\n---\n") {
		var pod corev1.Pod
		if err := yaml.Unmarshal([]byte(document), &pod); err != nil || pod.Kind != "Pod" {
			continue
		}
		main := &pod.Spec.Containers[0]
		main.Image, main.ImagePullPolicy, main.Command = node.ImageName("verbs"), corev1.PullNever, []string{"/bin/busybox",
			"sleep", "86400"}
		for name, amount := range main.Resources.Limits {
			if strings.HasPrefix(string(name), "rdma/") {
				delete(main.Resources.Limits, name)
				main.Resources.Limits[shared] = amount
			}
		}
		grace := int64(1)
		pod.Namespace, pod.Spec.TerminationGracePeriodSeconds = corev1.NamespaceDefault, &grace
		return &pod
	}
	t.Fatal("the example has no pod")
	return nil
}

// importVerbs imports an image into containerd that contains the node's verbs program and its dependencies, because a
// restricted pod cannot mount them from the node.
func importVerbs(t *testing.T) {
	t.Helper()
	program, _, _ := strings.Cut(pingpong, " ")
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{program: program, "/bin/busybox": busybox}
	for _, name := range []string{"sh", "grep", "id", "touch", "sleep"} {
		files["/bin/"+name] = busybox
	}
	drivers, err := filepath.Glob("/etc/libibverbs.d/rxe*") // the pattern is sound
	providers, _ := filepath.Glob("/usr/lib/*/libibverbs/librxe*")
	if err != nil || len(drivers) == 0 || len(providers) == 0 {
		t.Fatalf("the node has the drivers %q and the providers %q", drivers, providers)
	}
	for _, file := range append(drivers, providers...) {
		files[file] = file
	}
	for _, file := range append(providers, program) {
		cmd := exec.Command(file)
		cmd.Env = []string{"LD_TRACE_LOADED_OBJECTS=1"}
		if strings.HasSuffix(file, ".so") {
			cmd = exec.Command("/lib64/ld-linux-x86-64.so.2", "--list", file)
		}
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("the libraries of %s: %v", file, err)
		}
		for _, library := range regexp.MustCompile(`(/\S+) \(0x`).FindAllSubmatch(out, -1) {
			files[string(library[1])] = string(library[1])
		}
	}
	image := filepath.Join(scratch.Dir(t), "verbs.tar")
	if err := node.WriteImage(image, node.ImageName("verbs"), files); err != nil {
		t.Fatal(err)
	}
	if err := ctrd.Import(within(t, patience), image); err != nil {
		t.Fatal(err)
	}
}
