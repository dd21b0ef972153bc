// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/test/testing/repository"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// podsInTrouble are pods of an author, each with a fault, and a healthy one.
const podsInTrouble = `
- metadata: {name: small, namespace: ml}
  spec: {nodeName: node-1, containers: [{name: main, resources: {limits: {rdma/hca: 1}}}]}
  status:
    phase: Running
    containerStatuses:
    - {name: main, restartCount: 3, state: {waiting: {reason: CrashLoopBackOff, message: back-off}},
      lastState: {terminated: {exitCode: 139, reason: Error}}}
- metadata: {name: nothing, namespace: ml}
  spec: {nodeName: node-1, containers: [{name: main}]}
  status: {phase: Failed, containerStatuses: [{name: main, state: {terminated: {exitCode: 1, reason: Error}}}]}
- metadata: {name: named, namespace: ml}
  spec:
    nodeName: node-1
    containers: [{name: main, env: [{name: UCX_NET_DEVICES, value: "mlx9_0:1"}], resources: {limits: {rdma/hca: 1}}}]
  status: {phase: Running, containerStatuses: [{name: main, state: {running: {}}}]}
- metadata: {name: handler, namespace: ml, uid: "7"}
  spec: {nodeName: node-1, runtimeClassName: rdma, containers: [{name: main, resources: {limits: {rdma/hca: 1}}}]}
  status: {phase: Pending, containerStatuses: [{name: main, state: {waiting: {reason: ContainerCreating}}}]}
- metadata: {name: healthy, namespace: ml}
  spec:
    nodeName: node-1
    initContainers: [{name: init}]
    containers: [{name: main, resources: {limits: {rdma/hca: 1}}}]
  status:
    phase: Running
    initContainerStatuses: [{name: init, state: {terminated: {exitCode: 0, reason: Completed}}}]
    containerStatuses: [{name: main, state: {running: {}}}]
- metadata: {name: root, namespace: ml}
  spec:
    nodeName: node-1
    hostUsers: false
    volumes: [{name: ib, hostPath: {path: /dev/infiniband}}]
    containers:
    - {name: main, securityContext: {privileged: true}}
    - {name: side, volumeMounts: [{name: ib, mountPath: /dev/infiniband}]}
  status: {phase: Running, containerStatuses: [{name: main, state: {running: {}}}, {name: side, state: {running: {}}}]}
- metadata: {name: refused, namespace: default}
  spec: {nodeName: node-1, containers: [{name: main}]}
  status:
    phase: Pending
    containerStatuses:
    - {name: main, state: {waiting: {reason: CreateContainerError,
      message: "nri-rdma: pod default/refused, container main: the policy does not allow pods in namespace \"default\" to opt in by annotation"}}}
`

// authors is a server with these pods, their logs, and their events.
func authors(t *testing.T) *server {
	t.Helper()
	s := &server{says: map[string]says{}}
	if err := yaml.Unmarshal([]byte(podsInTrouble), &s.pods); err != nil {
		t.Fatal(err)
	}
	s.logs = map[string]string{
		"small main":          "starting\nCouldn't allocate MR\n",
		"previous small main": "\x1b[2Jibv_create_cq failed: Cannot allocate memory\n",
		"nothing main":        "No IB devices found\n",
		"named main": "[1700000000.000000] [node-1:17   :0] UCX  WARN  network device 'mlx9_0:1' is not available, please use one or more " +
			"of: 'eth0'(tcp), 'mlx5_0:1'(ib)\n",
		"healthy init": "",
		"healthy main": "NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [RO]\n",
		"root main":    "",
		"root side":    "NET/OFI No eligible providers were found\n",
	}
	of := corev1.ObjectReference{Kind: "Pod", Name: "handler", UID: "7"}
	s.events = []corev1.Event{
		{ObjectMeta: metav1.ObjectMeta{Name: "2", Namespace: "ml"}, InvolvedObject: of, Count: 9,
			LastTimestamp: metav1.Unix(200, 0), Message: `Failed to create pod sandbox: rpc error: code = Unknown desc = failed to get ` +
				`sandbox runtime: no runtime for "rdma" is configured`},
		{ObjectMeta: metav1.ObjectMeta{Name: "1", Namespace: "ml"}, InvolvedObject: of, LastTimestamp: metav1.Unix(100, 0),
			Message: "Successfully assigned ml/handler to node-1"},
		{ObjectMeta: metav1.ObjectMeta{Name: "3", Namespace: "ml"}, Message: "ibv_reg_mr failed: Bad address",
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "handler", UID: "6"}}, // of an earlier pod of that name
	}
	return s
}

// The answer about a pod has its state, what its spec tells, and what its logs and its events say. A namespace is given
// as to kubectl. The Role of the page suffices.
func TestWhyPod(t *testing.T) {
	s := authors(t)
	s.may = allowedBy(t, repository.Read(t, "docs/why.md"))
	s.tells(t, "why small -n ml", "why -n ml pod/small --previous", "why nothing -n ml", "why named -n ml", "why handler -n ml",
		"-n ml why healthy", "why root -n ml -c side", "why refused", "why small -n ml -o json")
	s.compare(t, "why")
}

// allowedBy returns whether the Role on a page allows a request.
func allowedBy(t *testing.T, page string) func(r *http.Request) bool {
	t.Helper()
	var role rbacv1.Role
	block := regexp.MustCompile("(?s)```yaml\n(apiVersion: rbac.*?)```").FindStringSubmatch(page)
	if block == nil || yaml.UnmarshalStrict([]byte(block[1]), &role) != nil || len(role.Rules) == 0 {
		t.Fatal("the page has no Role")
	}
	return func(r *http.Request) bool {
		path := strings.Split(strings.TrimPrefix(r.URL.Path, "/api/v1/namespaces/"), "/") // NAMESPACE, pods, NAME, log
		resource := path[1]
		verb := "list"
		if len(path) > 2 {
			resource = strings.Join(slices.Delete(path[1:], 1, 2), "/")
			verb = "get"
		}
		return r.Method == http.MethodGet && slices.ContainsFunc(role.Rules, func(rule rbacv1.PolicyRule) bool {
			return slices.Contains(rule.Resources, resource) && slices.Contains(rule.Verbs, verb)
		})
	}
}

// What cannot be read is named, and is no healthy pod.
func TestWhyPodCannotRead(t *testing.T) {
	s := authors(t)
	for _, c := range []struct {
		refused, call string
		status        int
		says          string
	}{
		{"", "why gone -n ml", 3, "in namespace ml: use -n for another namespace"},
		{"", "why healthy", 3, "not found in namespace default"},
		{"", "why healthy -n ml -c gone", 2, "the pod's containers are init, main"},
		{"", "why", 2, "specify exactly one source"},
		{"", "why healthy -f log", 2, "specify exactly one source"},
		{"/pods/healthy", "why healthy -n ml", 3, "get pods and pods/log, and to list events, in namespace ml"},
		{"/log", "why healthy -n ml", 3, "log of main: you may not: log"},
		{"/log", "why handler -n ml", 1, "log of main: you may not: log"},
		{"/events", "why healthy -n ml", 3, "the pod's events: cannot list events: you may not: events"},
		{"/events", "why small -n ml", 1, "the pod's events: cannot list events"},
	} {
		s.may = func(r *http.Request) bool { return c.refused == "" || !strings.HasSuffix(r.URL.Path, c.refused) }
		got := s.rdma(t, strings.Fields(c.call)...)
		if got.status != c.status || !strings.Contains(got.stdout+got.stderr, c.says) {
			t.Errorf("%s without %s: want %d and %q: %+v", c.call, c.refused, c.status, c.says, got)
		}
	}
}

// Of an endless log, the beginning is read, and the answer says so.
func TestWhyPodBoundsLogs(t *testing.T) {
	s := authors(t)
	s.logs["healthy main"] = strings.Repeat(strings.Repeat("x", 1<<10-1)+"\n", mostLog>>10) + "ibv_reg_mr failed: Bad address\n"
	got := s.rdma(t, "why", "healthy", "-n", "ml")
	if got.status != 0 || !strings.Contains(got.stdout, "log of main, first 16384 lines: no relevant RDMA lines") {
		t.Errorf("%+v", got)
	}
}

// A log and a message need no cluster.
func TestWhyAsksNobody(t *testing.T) {
	s := authors(t)
	s.may = func(*http.Request) bool { return false }
	s.stdin = "ibv_reg_mr failed: Bad address\n"
	log := filepath.Join(scratch.Dir(t), "log")
	scratch.File(t, log, s.stdin, 0o600)
	for _, args := range [][]string{{"-"}, {"-f", "-"}, {"-f", log}, {"ibv_reg_mr failed: Bad address"}, {"ibv_reg_mr", "failed:", "Bad address"}} {
		if got := s.rdma(t, append([]string{"why"}, args...)...); got.status != 1 || !strings.Contains(got.stdout, "what: ibv_reg_mr, EFAULT") {
			t.Errorf("why %q: %+v", args, got)
		}
	}
}
