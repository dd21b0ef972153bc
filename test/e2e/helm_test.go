// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/rdma-spec/rdma-spec/test/node/cluster"
	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/node/kubelet"
	"github.com/rdma-spec/rdma-spec/test/testing/churn"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// testHelm installs the image and chart of a release, upgrades them, and removes them.
func testHelm(t *testing.T, d *daemonSet, k *kubelet.Kubelet) {
	t.Cleanup(func() { d.tell(t) })
	chart, begin := released(t, "nri-rdma-*.tgz"), time.Now()
	// The budget is long, because the node's CPU is emulated.
	notes := installPublished(t, d, chart, "--set", "extraArgs={--budget="+budget+"},config.optIn.namespaces={default}")
	testNotes(t, d, notes)
	testSecondPlugin(t)
	testDeployment(t, d.c, k)
	t.Logf("a pod transfers %s after the first command of README.md", time.Since(begin).Round(time.Second))
	testJob(t, d.c, k)
	d.helm(t, "test", "nri-rdma", "--timeout", kubeletPatience.String()) // runs rdma-spec status in a pod
	testDoctorContainer(t, d, chart)
	testHelmUpgrade(t, d, k, chart)
	testHelmUninstall(t, d, k)
	testRendered(t, d, chart)
}

// released returns the path of a file that `make release` built.
func released(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(*bin, "release", pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("bin/release has %q, %v; want one %s: run make release", found, err, pattern)
	}
	return found[0]
}

// testNotes runs the commands of the notes that Helm prints. The first one waits for the plugin's pod.
func testNotes(t *testing.T, d *daemonSet, notes string) {
	var said strings.Builder
	for _, command := range regexp.MustCompile(`(?m)^  kubectl -n `+pluginNamespace+
		` (.*)$`).FindAllStringSubmatch(notes, -1) {
		line := command[1]
		if strings.Contains(line, "POD") || strings.Contains(line, "NODE") {
			pod := d.pod(t)
			line = strings.NewReplacer("POD", pod.Name, "NODE", pod.Spec.NodeName).Replace(line)
		}
		said.WriteString(d.kubectl(t, strings.Fields(line)...))
	}
	for _, want := range []string{"successfully rolled out", "1/1", "the configuration is in force"} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("the commands of the notes do not print %q:\n%s\n%s", want, notes, said.String())
		}
	}
}

// testSecondPlugin: a plugin that runs as a service on the node does not register while the DaemonSet serves.
func testSecondPlugin(t *testing.T) {
	t.Helper()
	second := start(t, filepath.Join(*bin, "nri-rdma"), "--socket", containerd.NRISocket, "--budget", budget)
	awaitLog(t, second, "not registering: the rdma-spec/nri-rdma DaemonSet serves this node")
	second.Stop()
}

// testDoctorContainer: the doctor in the pod sees the node's hardware, runtime, and containers, and serves its findings
// as metrics.
func testDoctorContainer(t *testing.T, d *daemonSet, chart string) {
	d.helm(t, "upgrade", "nri-rdma", chart, "--reset-then-reuse-values", "--set", "doctor.enabled=true")
	d.awaitRollout(t)
	address, said := d.pod(t).Status.PodIP+":9799", ""
	awaitThat(t, d.c, kubeletPatience, "has the doctor's metrics", func() bool {
		var err error
		said, err = metricsOf(address)
		return err == nil
	})
	for _, check := range []string{"plugin-registered", "container-memlock", "port-active", "nri-on"} {
		if !strings.Contains(said, `rdma_spec_doctor_findings{check="`+check+`",status="unknown"} 0`) {
			t.Errorf("the doctor knows nothing of %s", check)
		}
	}
	t.Logf("the doctor in the pod:\n%s", strings.Join(regexp.MustCompile(`(?m)^rdma_spec_doctor_finding\{.*`).FindAllString(said, -1), "\n"))
	d.helm(t, "upgrade", "nri-rdma", chart, "--reset-then-reuse-values", "--set", "doctor.enabled=false")
	d.awaitRollout(t)
}

// testDeployment: the pod of a Deployment that requests an HCA gets its grant, and transfers.
func testDeployment(t *testing.T, c *cluster.Cluster, k *kubelet.Kubelet) {
	runDeployment(t, c, "trainer", kubelet.Container{Name: "main", Resource: shared},
		kubelet.Container{Name: "other", Resource: shared})
	trainer := podWith(t, c, k, "app=trainer")
	trainer.expectHolds(t, "main", "unlimited", given(0)...)
	expectCapabilities(t, trainer.running(t, "main"), everySet)
	expectTransfer(t, trainer.running(t, "main"), trainer.running(t, "other"))
}

// testJob: the pod of a Job gets memlock because of its annotation, in a namespace that is allowed to opt in.
func testJob(t *testing.T, c *cluster.Cluster, k *kubelet.Kubelet) {
	pod := kubelet.Pod{Containers: []kubelet.Container{{Name: "main", Script: sayMemlock}}}.Manifest()
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	runWorkload(t, c, &batchv1.Job{
		TypeMeta: metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"}, ObjectMeta: metav1.ObjectMeta{Name: "annotated"},
		Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{asks: "true"}}, Spec: pod.Spec}},
	})
	podWith(t, c, k, "job-name=annotated").expectSaid(t, "main", "unlimited")
}

// runDeployment creates a Deployment. Its pods have the label app with the Deployment's name.
func runDeployment(t *testing.T, c *cluster.Cluster, name string, containers ...kubelet.Container) {
	t.Helper()
	labels := map[string]string{"app": name}
	runWorkload(t, c, &appsv1.Deployment{
		TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}, ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: kubelet.Pod{Containers: containers}.Manifest().Spec},
		},
	})
}

// runWorkload creates a workload, which is removed when the test ends.
func runWorkload(t *testing.T, c *cluster.Cluster, workload any) {
	t.Helper()
	text, err := json.Marshal(workload)
	if err != nil {
		t.Fatal(err)
	}
	apply(t, c, string(text))
	finally(t, patience, func(ctx context.Context) error { return c.Delete(ctx, string(text)) })
}

// podWith returns the pod with a label that a controller creates.
func podWith(t *testing.T, c *cluster.Cluster, k *kubelet.Kubelet, label string) *staticPod {
	t.Helper()
	p := &staticPod{kubelet: k}
	awaitThat(t, c, kubeletPatience, "has a pod with "+label, func() bool {
		pods, err := c.Pods(t.Context(), corev1.NamespaceDefault, label)
		if err != nil || len(pods) == 0 {
			return false
		}
		p.name = pods[0].Name
		return true
	})
	return p
}

// upgrades is the number of chart upgrades.
var upgrades = flag.Int("upgrades", 2, "how often to upgrade the DaemonSet while pods start and end")

// testHelmUpgrade upgrades the chart several times while pods are created. The runtime does not notice: each plugin
// takes over from the previous one, every container starts with its limit, and none is refused.
func testHelmUpgrade(t *testing.T, d *daemonSet, k *kubelet.Kubelet, chart string) {
	pods := churn.Start(t, func(ctx context.Context, number int) error {
		return runToEnd(ctx, d.c, k, fmt.Sprintf("made-%d", number))
	})
	const values = "validator.enabled=true,repair.enabled=true,podAnnotations.upgrade=number-"
	for i := range *upgrades {
		d.helm(t, "upgrade", "nri-rdma", chart, "--reset-then-reuse-values", "--set", values+strconv.Itoa(i))
		d.awaitRollout(t)
		d.awaitLog(t, "nri-rdma", tookOver)
		if i > 0 { // the first upgrade added the validator
			d.awaitLog(t, "validator", tookOver)
		}
		d.expectAnswers(t, "9797", "/readyz", "registered")
		d.expectAnswers(t, "9798", "/readyz", "registered")
		pods.AwaitMore(t, kubeletPatience)
	}
	pods.End()
	expectUnlimited(t, "made", pods.Count())
	t.Logf("%d pods were made during %d upgrades", pods.Count(), *upgrades)
	for _, name := range []string{"90-rdma", "90-rdma-validator"} {
		registered := strings.Count(ctrd.Log(), `plugin \"`+name+`\" connected and synchronized`)
		gone := strings.Count(ctrd.Log(), `connection to plugin \"`+name+`\" closed`)
		if registered != 1 || gone != 0 {
			t.Errorf("for containerd %s has come %d times and gone %d times, want 1 and 0", name, registered, gone)
		}
	}
	if refused := d.refusals(t); len(refused) > 0 {
		t.Errorf("during the upgrades containers were refused: %q", refused)
	}
	// This fails if a container is below policy.
	d.kubectl(t, "exec", d.pod(t).Name, "-c", "nri-rdma", "--", "rdma-spec", "status", "--root", "/host")
}

// expectUnlimited checks that the containers of all pods whose names begin with a prefix printed unlimited.
func expectUnlimited(t *testing.T, name string, want int) {
	t.Helper()
	for file, text := range logs(t, name, want) {
		if !strings.HasSuffix(text, " unlimited\n") {
			t.Errorf("%s: %q", file, text)
		}
	}
}

// logs returns the output of the containers of pods whose names begin with a prefix, from the kubelet's log files.
func logs(t *testing.T, name string, want int) map[string]string {
	t.Helper()
	files, err := filepath.Glob("/var/log/pods/default_" + name + "-*/*/*.log")
	if err != nil || len(files) != want {
		t.Errorf("pods have the logs %q, %v; want one for each of %d", files, err, want)
	}
	said := map[string]string{}
	for _, file := range files {
		said[file] = scratch.Read(t, file)
	}
	return said
}

// createSaying creates a pod on the kubelet's node. Its container has an HCA, prints its limit, and ends.
func createSaying(ctx context.Context, c *cluster.Cluster, k *kubelet.Kubelet, name string) error {
	pod := kubelet.Pod{Name: name, Containers: []kubelet.Container{{Name: "main", Script: sayMemlock,
		Resource: shared}}}.Manifest()
	pod.Spec.NodeName, pod.Spec.RestartPolicy = k.NodeName(), corev1.RestartPolicyNever
	_, err := c.Create(ctx, pod)
	return err
}

func runToEnd(ctx context.Context, c *cluster.Cluster, k *kubelet.Kubelet, name string) error {
	ctx, cancel := context.WithTimeout(ctx, kubeletPatience)
	defer cancel()
	if err := createSaying(ctx, c, k, name); err != nil {
		return err
	}
	return c.Await(ctx, "has pod "+name+" at its end", func() bool {
		now, err := c.Pod(ctx, name)
		return err == nil && now.Status.Phase == corev1.PodSucceeded
	})
}

// testHelmUninstall: only two things are left of the plugin: the policy that was in force, which is no longer trusted,
// and the directory for handovers. Pods can start.
func testHelmUninstall(t *testing.T, d *daemonSet, k *kubelet.Kubelet) {
	d.helm(t, "uninstall", "nri-rdma")
	d.awaitNoPods(t)
	kinds := "daemonsets,controllerrevisions,configmaps,secrets,serviceaccounts,networkpolicies"
	if left := d.kubectl(t, "get", kinds, "-o", "name"); left != "" {
		t.Errorf("helm uninstall leaves %s", left)
	}
	files, err := fs.Glob(os.DirFS("/run/rdma-spec"), "*")
	if diff := cmp.Diff([]string{"handover", "policy.yaml"}, files); diff != "" || err != nil {
		t.Errorf("%v; -want +got:\n%s", err, diff)
	}
	out, err := exec.Command(filepath.Join(*bin, "rdma-spec"), "status").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "the plugin that wrote the policy has exited") {
		t.Errorf("rdma-spec status without the plugin: %v\n%s", err, out)
	}
	for _, dir := range []string{"/run/rdma-spec", "/var/lib/rdma-spec/inforce"} { // as docs/upgrade-and-uninstall.md says
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	after := runClusterPod(t, d.c, k, kubelet.Pod{Name: "after",
		Containers: []kubelet.Container{{Name: "main", Resource: shared}}})
	after.expectHolds(t, "main", kernelDefault, given(0)...)
}

// everyOption are values that turn on everything in the chart.
var everyOption = []string{
	"validator.enabled=true,repair.enabled=true,admission.require.enabled=true,admission.forbid.enabled=true," +
		"runtimeClass.enabled=true,dashboard.enabled=true,nodeFeatureDiscovery.enabled=true,seLinuxType=spc_t,imagePullSecrets[0].name=mine," +
		"podMonitor.enabled=true,podMonitor.labels.release=mine,networkPolicy.namespaces={a},alerts.enabled=true,execRole.enabled=true",
	"runtime=crio,openshift.enabled=true,doctor.enabled=true,configureNRI.enabled=true,networkPolicy.namespaces={a,b},priorityClassName=,updateStrategy.rollingUpdate.maxSurge=2",
}

// testRendered: an API server that has the kinds of the Prometheus Operator and of OpenShift accepts what the chart
// renders with every option.
func testRendered(t *testing.T, d *daemonSet, chart string) {
	parts := nodeParts(t)
	d.kubectl(t, "create", "-f", parts.Definitions()+"/") // the directory is a link, which kubectl follows because of the slash
	d.kubectl(t, "wait", "--for=condition=Established", "customresourcedefinitions", "--all",
		"--timeout", patience.String())
	dir := scratch.Dir(t)
	for i, values := range everyOption {
		text := d.helm(t, "template", "nri-rdma", chart, "--set", values)
		scratch.File(t, filepath.Join(dir, fmt.Sprintf("%d.yaml", i)), text, 0o644)
	}
	said := d.kubectl(t, "apply", "--dry-run=server", "-f", dir)
	for kind, want := range map[string]int{
		"daemonset.apps": len(everyOption), "podmonitor.monitoring.coreos.com": 1, "prometheusrule.monitoring.coreos.com": 1,
		"securitycontextconstraints.security.openshift.io": 1,
	} {
		if got := strings.Count(said, kind+"/nri-rdma created (server dry run)\n"); got != want {
			t.Errorf("the API server takes %d %s, want %d:\n%s", got, kind, want, said)
		}
	}
}
