// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/test/testing/golden"
	"github.com/rdma-spec/rdma-spec/test/testing/race"
	"github.com/rdma-spec/rdma-spec/test/testing/repository"
)

const (
	wellStatus = `{"apiVersion": "rdma-spec/v1alpha1", "containers": [{"namespace": "ml", "pod": "ok", "container": "main", "state": "ok",
		"memlock": {"soft": "unlimited", "hard": "unlimited"}, "ipcLock": true, "problems": []}]}`
	lowStatus = `{"apiVersion": "rdma-spec/v1alpha1", "containers": [{"namespace": "ml", "pod": "train-0", "container": "main", "state": "below",
		"memlock": {"soft": "8Mi", "hard": "unlimited"}, "use": {"summary": "41 GiB on mlx5_0"}, "problems": ["memlock is 8Mi\u001b[2J, the policy gives unlimited", "and more"], "fix": "rdma-spec repair --root /host ml/train-0", "notes": ["a note"]},
		{"namespace": "ml", "pod": "ok", "container": "main", "state": "ok", "memlock": null, "ipcLock": false, "problems": []}]}`
	wrongDoctor = `{"apiVersion": "rdma-spec/v1alpha1", "findings": [
		{"check": "port-active", "status": "wrong", "object": "HCA mlx5_0 port 1", "text": "It is DOWN.", "fix": "ip link set ib0 up", "fixType": "safe"},
		{"check": "port-rate", "status": "ignored", "object": "HCA mlx5_1 port 1", "text": "It is slow (ignored: it is for storage).", "fix": "replace it", "fixType": "manual"},
		{"check": "memlock", "status": "ok", "text": "All is well."}, {"check": "acs", "status": "unknown", "text": "It cannot be told."},
		{"check": "cgroup-rdma", "status": "unknown", "text": "/sys/fs/cgroup is not visible from here: run the doctor on the node itself."}]}`
	someDevices = `{"apiVersion": "rdma-spec/v1alpha1", "hcas": [
		{"name": "mlx5_0", "ports": [{"number": 1, "state": "ACTIVE", "rate": "100 Gb/sec (4X EDR)", "netdevs": ["ib0", "ib0.8001"]}]},
		{"name": "mlx5_1", "ports": [], "unread": "no response within 2s"}], "problems": []}`
)

// fleet is a server with so many nodes, on each of which a pod of the DaemonSet runs.
func fleet(nodes int) *server {
	s := &server{says: map[string]says{}}
	s.set("rdma-spec", corev1.PodSpec{Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}})
	for i := range nodes {
		s.add(fmt.Sprintf("n%04d", i), fmt.Sprintf("p%04d", i), true)
	}
	return s
}

// set adds a DaemonSet.
func (s *server) set(namespace string, pod corev1.PodSpec) {
	d := appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "nri-rdma", Namespace: namespace}}
	d.Labels = map[string]string{"app.kubernetes.io/part-of": "rdma-spec"}
	pod.Containers = []corev1.Container{{Name: container}}
	d.Spec.Template.Spec = pod
	s.sets = append(s.sets, d)
}

// add adds a node, unless it is "", and a pod of the DaemonSet.
func (s *server) add(node, pod string, ready bool) *corev1.Pod {
	if !slices.ContainsFunc(s.nodes, func(n corev1.Node) bool { return n.Name == node }) && node != "" {
		s.nodes = append(s.nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
	}
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: "rdma-spec"}, Spec: corev1.PodSpec{NodeName: node}}
	p.Labels = map[string]string{"app.kubernetes.io/part-of": "rdma-spec"}
	p.Spec.Containers = []corev1.Container{{Name: container}}
	p.Status.Phase = corev1.PodRunning
	if ready {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	s.pods = append(s.pods, p)
	return &s.pods[len(s.pods)-1]
}

// tells calls kubectl rdma with the words of each line, and keeps what it writes.
func (s *server) tells(t *testing.T, lines ...string) {
	t.Helper()
	for _, line := range lines {
		got := s.rdma(t, strings.Fields(line)...)
		fmt.Fprintf(&s.told, "# kubectl rdma %s\n%s\n# on stderr\n%s\n# exit status %d\n", line, inOrder(got.stdout), got.stderr, got.status)
	}
}

// inOrder sorts the nodes of a JSON result, which come as they answer, each on a line.
func inOrder(text string) string {
	nodes, is := strings.CutPrefix(text, jsonBegins+"\n")
	if !is {
		return text
	}
	lines := strings.Split(strings.TrimSuffix(nodes, jsonEnds), ",\n")
	slices.Sort(lines)
	return jsonBegins + "\n" + strings.Join(lines, ",\n") + jsonEnds
}

// compare compares what was kept with a golden file.
func (s *server) compare(t *testing.T, name string) {
	t.Helper()
	golden.Compare(t, "testdata/"+name+".golden", s.told.String())
	s.told.Reset()
}

// Who should answer are the nodes that the DaemonSet selects and those with a resource, not those whose pods answer.
func TestExpected_nodes(t *testing.T) {
	s := fleet(3)
	s.says[""] = says{stdout: wellStatus}
	s.set("other", corev1.PodSpec{NodeSelector: map[string]string{"pool": "b"}})
	for i := range 497 {
		s.nodes = append(s.nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("x%04d", i)}})
	}
	s.tells(t, "status")
	s.sets[0].Spec.Template.Spec = corev1.PodSpec{NodeSelector: map[string]string{"pool": "a"}, Containers: []corev1.Container{{Name: container}}}
	s.nodes[3].Labels = map[string]string{"pool": "a"}
	s.nodes[3].Spec.Taints = []corev1.Taint{{Key: "node.kubernetes.io/not-ready", Effect: corev1.TaintEffectNoExecute}}
	s.nodes[4].Labels = map[string]string{"pool": "a"}
	s.nodes[4].Spec.Taints = []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}}
	s.nodes[5].Status.Capacity = resourceList(map[string]int64{"rdma/shared": 1})
	s.nodes[6].Status.Capacity = resourceList(map[string]int64{"openshift.io/mlxnics": 1})
	s.tells(t, "status")
	s.sets[0].Annotations = map[string]string{resourcesKey: "openshift.io/*,other/*"} // the chart's admission.resources
	s.tells(t, "status")
	s.nodes[7].Labels = map[string]string{"pool": "b"}
	s.tells(t, "-A status", "status --all-namespaces", "status -o json")
	s.compare(t, "who-should-answer")
}

// Who may not list nodes gets the DaemonSet's number. Who may not exec learns so once, and which Role allows it.
func TestMayNot(t *testing.T) {
	s := fleet(3)
	s.says[""] = says{stdout: wellStatus}
	s.sets[0].Status.DesiredNumberScheduled = 5
	s.may = func(r *http.Request) bool { return !strings.HasSuffix(r.URL.Path, "/nodes") }
	if got := s.rdma(t, "status"); got.status != 3 || got.stderr != "kubectl rdma: cannot determine which nodes lack a pod of the DaemonSet, "+
		"or have an RDMA resource but no plugin: cannot list nodes: you may not: nodes\nkubectl rdma: 3 of 5 nodes responded\n" {
		t.Errorf("%+v", got)
	}
	s = fleet(5 * atOnce)
	s.delay = 50 * time.Millisecond
	var refused atomic.Int64
	s.may = func(r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/exec") {
			refused.Add(1)
			return false
		}
		return true
	}
	got := s.rdma(t, "status")
	const role = "set the chart's execRole.enabled value, and bind the nri-rdma-exec Role in namespace rdma-spec"
	if got.status != 3 || got.stdout != "" || strings.Count(got.stderr, "\n") != 1 || !strings.Contains(got.stderr, role) || refused.Load() > 3*atOnce {
		t.Errorf("%d execs were refused: %+v", refused.Load(), got)
	}
}

// A node that hangs, whose kubelet is gone, or that says nothing holds no other up, and is named.
func TestStatus(t *testing.T) {
	s := fleet(5)
	s.says[""] = says{stdout: wellStatus}
	s.says["p0001"] = says{stdout: lowStatus, status: 1}
	s.says["p0002"] = says{hangs: true}
	s.says["p0003"] = says{broken: true}
	s.says["p0004"] = says{stdout: "half an {", stderr: "rdma-spec: a\nrdma-spec: no containerd\x1b[2J\n", status: 3}
	s.tells(t, "status --request-timeout=2s")
	for _, pod := range []string{"p0002", "p0003", "p0004"} {
		delete(s.says, pod)
	}
	s.tells(t, "status --all")
	delete(s.says, "p0001")
	s.asked = nil
	s.tells(t, "status")
	s.compare(t, "status")
	if want := "p0000 nri-rdma: rdma-spec status --root /host -o json"; !slices.Contains(s.asked, want) {
		t.Errorf("asked %q, want %q among it", s.asked, want)
	}
}

// What uses RDMA outside the policy is a part of status, and can be asked for alone. A node that does not know is
// named.
func TestStatus_outside(t *testing.T) {
	s := fleet(2)
	s.says["p0000"] = says{stdout: `{"containers": [], "outside": [
		{"namespace": "ml", "pod": "old", "container": "main", "state": "outside", "memlock": {"soft": "unlimited", "hard": "unlimited"},
		"use": {"summary": "1 GiB on mlx5_0"}, "problems": ["privileged, uses mlx5_0"]},
		{"namespace": "", "pod": "", "container": "train", "state": "outside", "use": {"summary": "1 GiB on mlx5_1"}, "problems": ["a process of the node"]}]}`}
	s.says["p0001"] = says{stderr: "rdma-spec: cannot determine which processes use RDMA: hostPID: true\n", status: 3}
	s.tells(t, "status")
	s.asked = nil
	s.tells(t, "status --outside")
	s.compare(t, "outside")
	if want := "p0000 nri-rdma: rdma-spec status --root /host -o json --outside"; !slices.Contains(s.asked, want) {
		t.Errorf("asked %q, want %q among it", s.asked, want)
	}
}

// Of two pods on a node the ready one is asked, also by an API server that knows no WebSocket.
func TestDoctor(t *testing.T) {
	s := &server{old: true, says: map[string]says{"": {stdout: wrongDoctor, status: 1}}}
	s.add("a", "old", false)
	s.add("a", "new", true)
	s.add("a", "ends", true).DeletionTimestamp = &metav1.Time{}
	s.add("b", "alone", false)
	s.add("", "unscheduled", false)
	s.nodes[0].Labels = map[string]string{"rdma": "true"}
	for i := range s.pods {
		s.pods[i].Namespace = "other"
	}
	s.set("other", corev1.PodSpec{})
	s.add("a", "reporter", true).Namespace = "other" // of deploy/node-readiness, which has the label as well
	s.pods[len(s.pods)-1].Spec.Containers[0].Name = "reporter"
	s.tells(t, "doctor -l rdma=true --context test -n other")
	const asked = "new nri-rdma: rdma-spec doctor --root /host -o json"
	if diff := cmp.Diff([]string{asked, asked}, s.asked); diff != "" { // by WebSocket, and by SPDY
		t.Errorf("asked, -want +got:\n%s", diff)
	}
	s.tells(t, "doctor -o json -n other")
	s.compare(t, "doctor")
}

func TestDevices(t *testing.T) {
	s := fleet(2)
	s.says["p0000"], s.says["p0001"] = says{stdout: someDevices}, says{stdout: `{"hcas": []}`}
	s.tells(t, "devices")
	s.compare(t, "devices")
}

// A node that did not answer comes first, then a problem on any node, then a node that could not look at everything.
func TestDoctor_exitStatus(t *testing.T) {
	s := fleet(2)
	s.says["p0000"] = says{stdout: `{"findings": [], "missed": ["containers", "kubelet"]}`, status: 3}
	for status, want := range map[int]int{0: 3, 1: 1, 124: 3} {
		s.says["p0001"] = says{stdout: `{"findings": []}`, status: status}
		if got := s.rdma(t, "doctor"); got.status != want ||
			!strings.Contains(got.stderr, "kubectl rdma: some checks were not possible on n0000: containers, kubelet\n") {
			t.Errorf("%d: %+v, want the exit status %d", status, got, want)
		}
	}
}

// A node that has not looked at all its containers says so, also where none of them is in the table.
func TestStatus_missedContainers(t *testing.T) {
	s := fleet(2)
	s.says[""] = says{stdout: `{"containers": []}`, stderr: "rdma-spec: a note\nrdma-spec: cannot examine 2 containers\n", status: 3}
	s.tells(t, "status")
	s.compare(t, "status-missed")
}

// resourceList are so many of a resource.
func resourceList(resources map[string]int64) corev1.ResourceList {
	list := corev1.ResourceList{"cpu": resource.MustParse("8"), "nvidia.com/gpu": resource.MustParse("8")}
	for name, n := range resources {
		list[corev1.ResourceName(name)] = *resource.NewQuantity(n, resource.DecimalSI)
	}
	return list
}

// runs makes a pod hold resources, in a container and in an init container that has ended.
func (s *server) runs(node, name string, phase corev1.PodPhase, resources map[string]int64) {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ml"}, Status: corev1.PodStatus{Phase: phase}}
	c := corev1.Container{Resources: corev1.ResourceRequirements{Requests: resourceList(resources)}}
	p.Spec = corev1.PodSpec{NodeName: node, Containers: []corev1.Container{c}, InitContainers: []corev1.Container{c}}
	s.pods = append(s.pods, p)
}

// The resources come from the API server alone. One without a device is stale.
func TestResources(t *testing.T) {
	s := &server{}
	s.add("a", "unrelated", true)
	s.add("b", "unrelated", true)
	s.add("c", "unrelated", true)
	capacity := map[string]int64{"rdma/shared": 8, "rdma/gone": 4, "rdma/renamed": 0, "openshift.io/mlxnics": 2}
	s.nodes[0].Status = corev1.NodeStatus{Capacity: resourceList(capacity)}
	capacity["rdma/gone"] = 0
	s.nodes[0].Status.Allocatable = resourceList(capacity)
	s.runs("a", "train-0", corev1.PodRunning, map[string]int64{"rdma/shared": 1, "rdma/gone": 2})
	s.runs("a", "train-1", corev1.PodPending, map[string]int64{"rdma/shared": 2})
	s.runs("a", "over", corev1.PodSucceeded, map[string]int64{"rdma/shared": 1})
	s.runs("", "waits", corev1.PodPending, map[string]int64{"rdma/shared": 1})
	s.runs("b", "left", corev1.PodRunning, map[string]int64{"vpc.amazonaws.com/efa": 1})
	s.tells(t, "resources")
	s.nodes[2].Labels = map[string]string{"rdma": "true"}
	s.tells(t, "resources -l rdma")
	for i := range 5 {
		s.runs("a", fmt.Sprintf("many-%d", i), corev1.PodRunning, map[string]int64{"openshift.io/mlxnics": 1})
	}
	s.tells(t, "resources openshift.io/mlxnics")
	s.tells(t, "resources -o json")
	s.compare(t, "resources")
}

func TestKubectl_wrongCalls(t *testing.T) {
	s := fleet(1)
	s.tells(t, "statsu", "status doctor", "status -o yaml", "config check", "explain -f - -n ml", "status --context",
		"doctor --only port-state", "status -n none", "-n none status", "status -l a=b", "status --context nothing")
	s.compare(t, "wrong-calls")
	for args, want := range map[string]string{
		"status --request-timeout=-x": "Invalid timeout",
		"resources --token guess":     "cannot list nodes: ",
		"resources -l =":              "cannot list nodes: ",
	} {
		if got := s.rdma(t, strings.Fields(args)...); got.stdout != "" || got.status != 3 ||
			!strings.HasPrefix(got.stderr, "kubectl rdma: ") || !strings.Contains(got.stderr, want) {
			t.Errorf("%s: %+v, want %q", args, got, want)
		}
	}
	if got := s.rdma(t, "--help"); got.status != 0 || !strings.Contains(got.stdout, "kubectl rdma [command]") {
		t.Errorf("%+v", got)
	}
}

var (
	manyNodes = flag.Int("nodes", 500, "how many nodes TestManyNodes has")
	hanging   = flag.Int("hanging", 0, "how many of a hundred of them hang")
)

// A fleet is asked with less than 100 MiB, and 10 ms of CPU time for a node. TestAsk has the time that it takes; for
// what it takes with a real API server's pseudonym: -nodes 5000 -hanging 10.
func TestManyNodes(t *testing.T) {
	const podsEach, memory = 30, 100 << 20
	most := time.Duration(*manyNodes) * 10 * time.Millisecond
	s := fleet(*manyNodes)
	s.delay = 250 * time.Millisecond
	container := wellStatus[strings.Index(wellStatus, "[")+1 : len(wellStatus)-2]
	s.says[""] = says{stdout: strings.Replace(lowStatus, `"containers": [`, `"containers": [`+strings.Repeat(container+",", 100), 1)}
	hang := 0
	for i := range s.nodes {
		if i%100 < *hanging {
			hang++
			s.says[s.pods[i].Name] = says{hangs: true}
		}
	}
	for i := range s.nodes {
		s.nodes[i].Status = corev1.NodeStatus{Capacity: resourceList(map[string]int64{"rdma/shared": 64}), Allocatable: resourceList(map[string]int64{"rdma/shared": 64})}
		for j := range podsEach {
			s.runs(s.nodes[i].Name, fmt.Sprintf("train-%d-%d", i, j), corev1.PodRunning, map[string]int64{"rdma/shared": 1})
		}
	}
	for _, test := range []struct {
		args  string
		lines int
		asks  bool
	}{{"status", *manyNodes - hang, true}, {"status -o json", 0, true}, {"resources", *manyNodes, false}} {
		began := time.Now()
		got := s.rdma(t, strings.Fields(test.args)...)
		t.Logf("%s: %s, %s of CPU time, %d MiB, %d KiB each", test.args, time.Since(began).Round(time.Second/10),
			got.computed.Round(time.Second/10), got.memory>>20, len(s.says[""].stdout)>>10)
		want := 0
		if hang > 0 && test.asks {
			want = unanswered
		}
		if got.status != want || test.lines > 0 && strings.Count(got.stdout, "\n") != test.lines+1 {
			t.Errorf("%s: exit status %d, %d lines: %s", test.args, got.status, strings.Count(got.stdout, "\n"), got.stderr)
		}
		if !race.Detector && (got.computed > most || got.memory > memory) {
			t.Errorf("%s: %s and %d bytes, want %s and %d at most", test.args, got.computed, got.memory, most, memory)
		}
	}
	// The server notices a little later that a client is done.
	if n := s.atOnce.Load(); n < 2 || int(n) > atOnce+atOnce/2+hang {
		t.Errorf("%d nodes were asked at once, want %d at most", n, atOnce)
	}
}

// What the program calls is in the DaemonSet: its label, its container, its namespace, and its root.
func TestKubectl_matchesDaemonSet(t *testing.T) {
	checked := false
	for _, document := range strings.Split(repository.Read(t, "deploy/kustomize/base/daemonset.yaml"), "\n---\n") {
		var d appsv1.DaemonSet
		if err := yaml.Unmarshal([]byte(document), &d); err != nil || d.Kind != "DaemonSet" {
			continue
		}
		checked = true
		ctr := d.Spec.Template.Spec.Containers[0]
		if podLabel != "app.kubernetes.io/part-of="+d.Spec.Template.Labels["app.kubernetes.io/part-of"] || ctr.Name != container ||
			d.Namespace != "rdma-spec" || !slices.Contains(ctr.Args, "--root="+hostRoot) {
			t.Errorf("the DaemonSet has other names: %+v", d.Spec.Template)
		}
	}
	if !checked || !strings.Contains(repository.Read(t, "deploy/Containerfile"), "COPY nri-rdma rdma-spec /usr/local/bin/") {
		t.Error("there is no DaemonSet, or rdma-spec is not in its image")
	}
}

// No program that runs on nodes links a client of the API server, and the daemon and the hook nothing that only the
// tool needs: the daemon's memory counts on every node, and every container waits for the hook to start. kubectl rdma
// links nothing that reads nodes, which would keep it from other systems than Linux.
func TestPrograms_forbiddenPackages(t *testing.T) {
	const module = "github.com/rdma-spec/rdma-spec/"
	for program, forbidden := range map[string][]string{
		"nri-rdma": {"github.com/containerd/containerd/v2", "github.com/spf13/cobra",
			"go.yaml.in/yaml/v3", "k8s.io/api", "k8s.io/cri-api", "k8s.io/client-go"},
		"rdma-spec": {"k8s.io/client-go"},
		"rdma-hook": {"github.com/containerd", "github.com/spf13/cobra", "github.com/prometheus", "github.com/sirupsen",
			"google.golang.org", "go.yaml.in", "sigs.k8s.io/yaml", "k8s.io/kubelet", "k8s.io/client-go", "tags.cncf.io", "net/http"},
		"kubectl-rdma": {"k8s.io/cli-runtime", module + "cmd/rdma-spec", module + "spec/files", module + "plugin/policy/inforce",
			module + "plugin/limits"},
	} {
		cmd := exec.Command("go", "list", "-deps", "./cmd/"+program)
		cmd.Dir, cmd.Env = repository.Path(t, "."), append(cmd.Environ(), "GOOS=linux")
		if program == "kubectl-rdma" {
			cmd.Env = append(cmd.Environ(), "GOOS=windows")
		}
		out, err := cmd.Output()
		if err != nil || !strings.Contains(string(out), module+"cmd/"+program+"\n") {
			t.Fatalf("%s: %v", program, err)
		}
		for pkg := range strings.FieldsSeq(string(out)) {
			if slices.ContainsFunc(forbidden, func(path string) bool { return strings.HasPrefix(pkg+"/", path+"/") }) {
				t.Errorf("%s links %s", program, pkg)
			}
		}
	}
}

// An author's machine explains a manifest and checks a configuration, and asks no cluster.
func TestKubectl_authorCommandsAskNoCluster(t *testing.T) {
	s := fleet(1)
	s.stdin = `{apiVersion: v1, kind: Pod, metadata: {name: train}, spec: {containers: [
		{name: main, resources: {limits: {rdma/ib: 1}}}, {name: sidecar}]}}`
	for name, args := range map[string]string{
		"explain":       "explain -f - --hca mlx5_0 --assume-devices rdma/*",
		"without-hcas":  "explain -f -",
		"by-a-file":     "explain -f - --hca mlx5_0 -o yaml --config testdata/config.yaml",
		"check":         "config check testdata/config.yaml",
		"check-wrong":   "config check -",
		"check-missing": "config check testdata/none.yaml",
		"help":          "explain --help",
		"help-check":    "config check --help",
	} {
		s.tells(t, args)
		s.compare(t, name)
	}
	if len(s.asked) > 0 {
		t.Errorf("they ask %q", s.asked)
	}
}
