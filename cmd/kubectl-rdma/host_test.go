// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/test/testing/golden"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// hosts is a server whose DaemonSet has what a pod on a node takes over.
func hosts() *server {
	s := fleet(2)
	set := &s.sets[0]
	set.UID = "set"
	pod := &set.Spec.Template.Spec
	pod.Containers = []corev1.Container{{Name: "sidecar", Image: "other"},
		{Name: container, Image: "registry.example.com/rdma-spec:v1", ImagePullPolicy: corev1.PullIfNotPresent}}
	pod.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "pull"}}
	pod.ServiceAccountName, pod.PriorityClassName = "nri-rdma", "system-node-critical"
	return s
}

// A pod on the node is the DaemonSet's, with all of the node; it is deleted, and the exit status is that of the tool.
func TestHost(t *testing.T) {
	s := hosts()
	s.says["host"] = says{stdout: "ml/train-0 main: raised: rdma-spec status --root /host\x1b[2J\n",
		stderr: "rdma-spec: policy /host/run\nrdma-spec: half", status: 1}
	s.tells(t, "repair n0001 ml/train-0", "repair n0001 --dry-run -o json", "doctor n0001 --host", "doctor n0001 --host -o json")
	s.compare(t, "host")
	const call = "host rdma-spec: /usr/local/bin/rdma-spec "
	want := []string{call + "repair --root /host -o text ml/train-0", call + "repair --root /host -o json --dry-run",
		call + "doctor --root /host -o table", call + "doctor --root /host -o json"}
	if diff := cmp.Diff(want, s.asked); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
	s.expectGone(t, 4)
	made := s.made[0]
	made.Name = "rdma-spec-repair-random"
	text, err := yaml.Marshal(made)
	if err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, "testdata/host-pod.golden", string(text))
}

// expectGone expects that so many pods were made, and all of them deleted.
func (s *server) expectGone(t *testing.T, many int) {
	t.Helper()
	var made []string
	for _, p := range s.made {
		made = append(made, p.Name)
	}
	if diff := cmp.Diff(made, s.gone); diff != "" || len(made) != many {
		t.Errorf("of %d pods, want %d, deleted (-made +deleted):\n%s", len(made), many, diff)
	}
}

// The archive is what the tool wrote, byte for byte, and nobody else's to read. Where there is none, no file is left.
func TestCollect_writesArchive(t *testing.T) {
	s := hosts()
	dir := scratch.Dir(t)
	file := filepath.Join(dir, "node.tar.gz")
	s.says["host"] = says{stdout: "\x1f\x8b\x00 --root /host\xff", stderr: "12 proc/version\n"}
	got := s.rdma(t, "collect", "n0000", "--to", file, "--anonymize")
	info, err := os.Stat(file)
	if err != nil || info.Mode() != 0o600 || scratch.Read(t, file) != s.says["host"].stdout || got.status != 0 || got.stdout != "" {
		t.Errorf("%v, %v: %+v", info, err, got)
	}
	s.says["host"] = says{stderr: "rdma-spec: cannot\n", status: 3}
	if got := s.rdma(t, "collect", "n0000", "--to", file+"2"); got.status != 3 {
		t.Errorf("%+v", got)
	}
	entries, err := os.ReadDir(dir)
	if len(entries) != 1 || err != nil {
		t.Errorf("%v: %v", entries, err)
	}
	s.expectGone(t, 2)
}

// An interrupt, a pod that hangs, and one that never runs: each ends with the pod deleted, and with what was the
// matter.
func TestOnHost_deletesPod(t *testing.T) {
	waits := func(reason, message string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodPending
			p.Status.ContainerStatuses[0].State = corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
		}
	}
	for name, test := range map[string]struct {
		runs      func(*corev1.Pod)
		meanwhile func(*os.Process)
		timeout   string
		want      string
	}{
		"interrupt": {meanwhile: func(p *os.Process) { _ = p.Signal(os.Interrupt) }, want: "interrupted: deleting pod rdma-spec/rdma-spec-repair-"},
		"SIGTERM":   {meanwhile: func(p *os.Process) { _ = p.Signal(syscall.SIGTERM) }, want: "interrupted: deleting pod rdma-spec/rdma-spec-repair-"},
		"hangs":     {timeout: "2s", want: " on node n0000 within 2s: for a slow node, increase --timeout\n"},
		"no image": {runs: waits("ImagePullBackOff", "no such image"), want: "the pod is not running: ImagePullBackOff: " +
			"no such image\n"},
		"slow": {runs: waits("ContainerCreating", ""), timeout: "2s", want: " within 2s (the pod is not running: " +
			"ContainerCreating): for a slow node, increase --timeout\n"},
		"refused": {runs: func(p *corev1.Pod) { p.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOfpods"} },
			want: "the pod is not running: OutOfpods\n"},
	} {
		t.Run(name, func(t *testing.T) {
			s := hosts()
			s.says["host"] = says{hangs: true}
			s.becomes, s.meanwhile = test.runs, test.meanwhile
			args := []string{"repair", "n0000"}
			if test.timeout != "" {
				args = append(args, "--timeout", test.timeout)
			}
			got := s.rdma(t, args...)
			if got.status != 3 || got.stdout != "" || !strings.Contains(got.stderr, test.want) {
				t.Errorf("%+v, want %q", got, test.want)
			}
			s.expectGone(t, 1)
		})
	}
}

// Who may not make a pod learns what it takes. Nothing is made for a wrong call, or on a node that runs nothing.
func TestOnHost_refused(t *testing.T) {
	s := hosts()
	s.nodes[1].Status.Conditions = []corev1.NodeCondition{lostCondition}
	s.may = func(r *http.Request) bool { return r.Method != http.MethodPost }
	s.tells(t, "repair", "repair n0000", "repair n0001", "repair n0009", "repair n0000 -n none", "repair n0000 --timeout 0s",
		"-l a=b repair n0000", "collect n0000", "doctor --host", "doctor n0000 n0001 --host")
	s.compare(t, "host-refusals")
	s.expectGone(t, 0)
}

var lostCondition = corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionUnknown,
	LastTransitionTime: metav1.Date(2026, time.November, 27, 3, 0, 0, 0, time.UTC)}

// A question about a node goes to that node alone.
func TestOnNodes_asksOnlyNamedNodes(t *testing.T) {
	s := fleet(500)
	s.says[""] = says{stdout: wellStatus}
	s.nodes = append(s.nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "cpu"}})
	s.sets[0].Spec.Template.Spec.NodeSelector = map[string]string{"pool": "rdma"}
	s.tells(t, "status n0007 n0300 -a", "devices cpu", "status none", "status n0007 -l a=b")
	s.may = func(r *http.Request) bool { return !strings.HasSuffix(r.URL.Path, "/nodes") }
	s.tells(t, "status n0007 none -a")
	s.compare(t, "named-nodes")
	slices.Sort(s.asked)
	want := []string{"p0007 nri-rdma: rdma-spec status --root /host -o json", "p0007 nri-rdma: rdma-spec status --root /host -o json",
		"p0300 nri-rdma: rdma-spec status --root /host -o json"}
	if diff := cmp.Diff(want, s.asked); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
}

// Of nodes whose kubelets have not reported, none is asked. Those that hang all the same hold up no other: one after
// the other, they take as many timeouts as there are places for them.
func TestLostNodes(t *testing.T) {
	s := fleet(500)
	s.says[""] = says{stdout: wellStatus}
	for i := range 100 {
		s.nodes[i].Status.Conditions = []corev1.NodeCondition{lostCondition}
		s.says[fmt.Sprintf("p%04d", i)] = says{hangs: true}
		s.says[fmt.Sprintf("p%04d", 100+i)] = says{hangs: true}
	}
	got := s.rdma(t, "status", "--request-timeout=10s")
	for _, want := range []string{"100 nodes do not respond (n0000,n0001,n0002,n0003,96 more): the kubelet has not " +
		"reported the node's status since 2026-11-27 03:00:00 UTC",
		"100 nodes do not respond (n0100,n0101,n0102,n0103,96 more): no response within 10s", "300 of 500 nodes responded"} {
		if !strings.Contains(got.stderr, want) {
			t.Errorf("stderr lacks %q: %s", want, got.stderr)
		}
	}
	if n := s.atOnce.Load(); n <= 100 || len(s.asked) != 400 {
		t.Errorf("%d nodes were asked, want 400, and %d at once, want more than those that hang", len(s.asked), n)
	}
}
