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
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdma-spec/rdma-spec/test/node"
	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/node/kubelet"
	"github.com/rdma-spec/rdma-spec/test/testing/child"
	"github.com/rdma-spec/rdma-spec/test/testing/repository"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// TestClusterDaemonSet installs the plugin as the documentation describes, with Helm and with kubectl, on a cluster
// that has a real DaemonSet controller and a scheduler.
func TestClusterDaemonSet(t *testing.T) {
	d, k, withNRI := forDaemonSets(t)
	t.Run("Helm", func(t *testing.T) { testHelm(t, d, k) })
	t.Run("kubectl", func(t *testing.T) { testKubectl(t, d, k, withNRI) })
}

// TestClusterPolicy rolls out policies on such a cluster. The plugin refuses some of them. It also runs in the node's
// network.
func TestClusterPolicy(t *testing.T) {
	d, k, _ := forDaemonSets(t)
	t.Run("Policy", func(t *testing.T) { testPolicy(t, d, k) }) // these tests replace the kubelet
	t.Run("HostNetwork", func(t *testing.T) { testHostNetwork(t, d, k) })
}

// forDaemonSets starts a cluster to which a release can be installed, a kubelet, and a containerd, and returns
// containerd's options.
func forDaemonSets(t *testing.T) (*daemonSet, *kubelet.Kubelet, containerd.Options) {
	t.Helper()
	withNRI := options()
	withNRI.Network = true
	// Like systemd, make the mount shared, so that containers see what is mounted below it later.
	if err := syscall.Mount("none", "/", "", syscall.MS_SHARED|syscall.MS_REC, ""); err != nil {
		t.Fatal(err)
	}
	restart(t, withNRI)
	t.Cleanup(func() { removePods(t, pluginNamespace) })
	importImage(t)
	importRelease(t)
	d := &daemonSet{c: startWholeCluster(t), begin: time.Now()}
	return d, joinKubelet(t, d.c), withNRI
}

// testKubectl installs the image from Containerfile with the kustomizations in deploy and docs/install.md, on a node on
// which NRI is off at first.
func testKubectl(t *testing.T, d *daemonSet, k *kubelet.Kubelet, withNRI containerd.Options) {
	t.Cleanup(func() { d.tell(t) })
	withoutNRI := withNRI
	withoutNRI.NoNRI = true
	replaceContainerd(t, withoutNRI)
	if err := os.RemoveAll(filepath.Dir(containerd.NRISocket)); err != nil { // a node that never had NRI lacks this directory
		t.Fatal(err)
	}
	early := runClusterPod(t, d.c, k, kubelet.Pod{Name: "early",
		Containers: []kubelet.Container{{Name: "main", Resource: shared}}})
	early.expectHolds(t, "main", kernelDefault, given(0)...)
	away := runClusterPod(t, d.c, k, kubelet.Pod{Name: "away",
		Containers: []kubelet.Container{{Name: "main", Resource: shared}}})
	away.expectHolds(t, "main", kernelDefault, given(0)...)

	overlay, own := kustomizations(t)
	d.kubectl(t, "apply", "-k", overlay)
	d.awaitEvent(t, "without NRI", "/var/run/nri is not a directory")
	replaceContainerd(t, withNRI)
	d.awaitRollout(t)
	d.expectAnswers(t, "9797", "/readyz", "registered")
	d.expectAnswers(t, "9797", "/metrics", "\nnri_rdma_connected 1\n")
	d.awaitLog(t, "nri-rdma", "run kubectl rdma repair "+k.NodeName())
	d.expectAnswers(t, "9797", "/metrics", "\nnri_rdma_registered_below_policy 2\n")
	late := runClusterPod(t, d.c, k, kubelet.Pod{Name: "late",
		Containers: []kubelet.Container{{Name: "main", Resource: shared}}})
	late.expectHolds(t, "main", "unlimited", given(0)...)
	expectCapabilities(t, late.running(t, "main"), everySet)
	early.expectHolds(t, "main", kernelDefault, given(0)...)

	testHostPod(t, d, k, away)
	early.expectHolds(t, "main", kernelDefault, given(0)...)

	d.kubectl(t, "apply", "-k", own)
	d.awaitRollout(t)
	d.expectAnswers(t, "9798", "/readyz", "registered")
	awaitThat(t, d.c, kubeletPatience, "has the early pod's limit raised",
		func() bool { return memlock(t, early.running(t, "main")) == "unlimited" })
	status := d.kubectl(t, "exec", d.pod(t).Name, "-c", "nri-rdma", "--", "rdma-spec", "status", "--root", "/host")
	for _, pod := range []string{"early", "late"} {
		if line := regexp.MustCompile(`(?m)^default/` + pod + ` +main .*$`).FindString(status); !strings.Contains(line,
			" ok") {
			t.Errorf("rdma-spec status in the plugin's pod says %q, want that %s is ok:\n%s", line, pod, status)
		}
	}
	testKubectlRDMA(t, d, k)
	testValidatorContainer(t, d, k)
}

// kubectlRDMA runs kubectl rdma, and returns its output and its exit status.
func (d *daemonSet) kubectlRDMA(t *testing.T, args ...string) (string, int) {
	t.Helper()
	cmd := exec.CommandContext(within(t, kubeletPatience), filepath.Join(*bin, "kubectl/linux_amd64/kubectl-rdma"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+d.c.Kubeconfig())
	begin := time.Now()
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	t.Logf("kubectl rdma %s: %v, %s\n%s", strings.Join(args, " "), err, time.Since(begin).Round(time.Second), out)
	return string(out), cmd.ProcessState.ExitCode()
}

// testHostPod: kubectl rdma repair raises the limit of a pod that started while the plugin was not running, without a
// change to the DaemonSet. The doctor sees the host, collect writes a support bundle, and none of their pods is left.
func testHostPod(t *testing.T, d *daemonSet, k *kubelet.Kubelet, away *staticPod) {
	archive := filepath.Join(scratch.Dir(t), "node.tar.gz")
	const raise = "default/away main: memlock %s unlimited: "
	for _, test := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"repair", k.NodeName(), "default/away", "--dry-run"}, 1, fmt.Sprintf(raise, "would be raised to")},
		{[]string{"repair", k.NodeName(), "default/away"}, 0, fmt.Sprintf(raise, "raised to")},
		{[]string{"collect", k.NodeName(), "--to", archive}, 0, "sys/class/infiniband"},
		{[]string{"doctor", k.NodeName(), "--host"}, 1, "memlock"},
	} {
		said, status := d.kubectlRDMA(t, append(test.args, "--timeout", kubeletPatience.String())...)
		if status != test.status || !strings.Contains(said, test.want) {
			t.Errorf("kubectl rdma %v: exit status %d, want %d and %q", test.args, status, test.status, test.want)
		}
		if strings.Contains(said, "not visible from here") {
			t.Errorf("kubectl rdma %v does not see the node", test.args)
		}
	}
	if limit := memlock(t, away.running(t, "main")); limit != "unlimited" {
		t.Errorf("kubectl rdma repair left the pod with %s", limit)
	}
	if out, notes, status := call(t, "devices", "--root", archive); status != 0 || !strings.Contains(out, "rxe0") {
		t.Errorf("the archive has no HCA: %d\n%s%s", status, out, notes)
	}
	said := d.kubectl(t, "debug", "node/"+k.NodeName(), "--profile=sysadmin", "--image=rdma-spec:devel", "--attach", "-q", "--",
		"rdma-spec", "devices", "--root", "/host")
	if said == "" { // its container ended before kubectl attached to it
		said = d.kubectl(t, "logs", "-l", "app.kubernetes.io/managed-by=kubectl-debug", "--tail=-1")
	}
	if !strings.Contains(said, "rxe0") {
		t.Errorf("kubectl debug says\n%s", said)
	}
	d.kubectl(t, "delete", "pods", "-l", "app.kubernetes.io/managed-by=kubectl-debug")
	awaitThat(t, d.c, kubeletPatience, "deletes the pods of kubectl rdma", func() bool {
		return d.kubectl(t, "get", "pods", "-l", "app.kubernetes.io/name=kubectl-rdma", "-o", "name") == ""
	})
}

// testKubectlRDMA: kubectl rdma shows the node's HCAs and containers through the plugin's pod. From the API server
// alone, it shows which pods have which resource, and a resource that no device plugin offers any more.
func testKubectlRDMA(t *testing.T, d *daemonSet, k *kubelet.Kubelet) {
	d.kubectl(t, "patch", "node", k.NodeName(), "--subresource=status", "--type=merge",
		"--patch", `{"status":{"capacity":{"rdma/gone":"0"}}}`)
	for _, test := range []struct {
		args   []string
		status int
		want   []string // regular expressions for lines
	}{
		{[]string{"devices", k.NodeName()}, 0, []string{k.NodeName() + ` +rxe0 +1 .*ACTIVE`}},
		{[]string{"status", "--all"}, 0, []string{k.NodeName() + ` +default/early +main +unlimited .* ok`,
			k.NodeName() + ` +default/late +main +unlimited .* ok`}},
		{[]string{"resources"}, 1, []string{k.NodeName() + ` +` + shared + ` .*default/away,default/early,default/late`,
			k.NodeName() + ` +rdma/gone +0 .*no device plugin offers the resource`}},
	} {
		said, status := d.kubectlRDMA(t, append(test.args, "--request-timeout=1m")...)
		if status != test.status {
			t.Errorf("kubectl rdma %v: exit status %d, want %d", test.args, status, test.status)
		}
		for _, line := range test.want {
			if !regexp.MustCompile("(?m)^" + line).MatchString(said) {
				t.Errorf("kubectl rdma %v has no line %q", test.args, line)
			}
		}
	}
}

// testValidatorContainer: while the plugin does not answer, the validator refuses an RDMA container. Afterwards, it
// lets the container start.
func testValidatorContainer(t *testing.T, d *daemonSet, k *kubelet.Kubelet) {
	plugin := &staticPod{kubelet: k, name: d.pod(t).Name}
	pid, err := ctrd.PID(within(t, patience), plugin.running(t, "nri-rdma"))
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Freeze(pid); err != nil {
		t.Fatal(err)
	}
	goOn := func() { _ = syscall.Kill(pid, syscall.SIGCONT) } // the process may have been replaced
	defer goOn()
	refused := runClusterPod(t, d.c, k, kubelet.Pod{Name: "refused",
		Containers: []kubelet.Container{{Name: "main", Resource: shared}}})
	const reason = "rdma-validator: pod default/refused, container main"
	awaitThat(t, d.c, kubeletPatience, "says that the validator refuses", func() bool {
		pod, err := d.c.Pod(t.Context(), "refused")
		return err == nil && strings.Contains(waitsFor(pod), reason)
	})
	if len(d.refusals(t)) == 0 {
		t.Error("the events name no refusal")
	}
	goOn()
	refused.expectHolds(t, "main", "unlimited", given(0)...)
}

// kustomizations returns two directories: the overlay, and the reader's own kustomization in docs/install.md, with
// validator and repair. The budget is longer, because the node's CPU is emulated. Everything else is as administrators
// install it.
func kustomizations(t *testing.T) (overlay, own string) {
	t.Helper()
	dir := scratch.Dir(t)
	clone := filepath.Join(dir, "rdma-spec/deploy/kustomize")
	if err := os.CopyFS(clone, os.DirFS(deployPath("kustomize"))); err != nil {
		t.Fatal(err)
	}
	overlay, own = filepath.Join(clone, "overlays/containerd"), filepath.Join(dir, "own")
	const last = "- --http=:9797\n"
	manifest := strings.Replace(deployFile(t, "kustomize/base/daemonset.yaml"), last,
		last+"            - --budget="+budget+"\n", 1)
	scratch.File(t, filepath.Join(clone, "base/daemonset.yaml"), manifest, 0o644)
	documented := regexp.MustCompile("(?m)^   resources: (.*\n)+?   ```$").FindString(deployFile(t, "../docs/install.md"))
	kustomization := strings.NewReplacer("registry.example.com", "docker.io/library", "\n   ", "\n", "```",
		"").Replace("\n" + documented)
	scratch.Files(t, own, map[string]string{"kustomization.yaml": kustomization, "config.yaml": "{}\n"}, 0o644)
	return overlay, own
}

// importImage builds the image of deploy/Containerfile, and imports it into containerd with the name that the DaemonSet
// uses.
func importImage(t *testing.T) {
	t.Helper()
	programs := map[string]string{}
	paths, entrypoint := repository.Containerfile(t, deployFile(t, "Containerfile"))
	for _, path := range paths {
		programs[path] = filepath.Join(*bin, filepath.Base(path))
	}
	file := filepath.Join(scratch.Dir(t), "image.tar")
	if err := node.WriteImage(file, "docker.io/library/rdma-spec:devel", programs, entrypoint); err != nil {
		t.Fatal(err)
	}
	if err := ctrd.Import(within(t, patience), file); err != nil {
		t.Fatal(err)
	}
}

// importRelease imports the image of a release into containerd. Unpacking it takes a while on an emulated CPU.
func importRelease(t *testing.T) {
	t.Helper()
	begin := time.Now()
	if err := ctrd.Import(within(t, kubeletPatience), released(t, "image.tar")); err != nil {
		t.Fatal(err)
	}
	t.Logf("the release's image was imported in %s", time.Since(begin).Round(time.Second))
}

// deployPath returns the path of a file in deploy, and deployFile returns its content.
func deployPath(name string) string { return filepath.Join(*bin, "../deploy", name) }

func deployFile(t *testing.T, name string) string {
	t.Helper()
	return scratch.Read(t, deployPath(name))
}
