// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectl_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/test/testing/repository"
)

// fakeKubectl answers as kubectl does for a cluster in a folder: nodes.json, pods.json, and for each pod a file with
// what rdma-spec prints there, its exit status, and a line for standard error. It keeps in calls what it was called
// with, and in log when an exec begins and ends.
const fakeKubectl = `#!/bin/sh
cluster=${0%/*}/cluster
echo "$*" >>"$cluster/calls"
case "$*" in
*"get pods"*) exec cat "$cluster/pods.json" ;;
*"get nodes"*) exec cat "$cluster/nodes.json" ;;
esac
while [ "$1" != exec ]; do shift; done
pod=$cluster/$2
echo begins >>"$cluster/log"
[ -e "$pod.hangs" ] && exec sleep 60
[ -e "$cluster/slow" ] && sleep 0.2
[ -e "$pod.err" ] && cat "$pod.err" >&2
if [ -e "$pod.json" ]; then cat "$pod.json"; else cat "$cluster/all.json"; fi
status=0
[ -e "$pod.status" ] && read -r status <"$pod.status"
echo ends >>"$cluster/log"
exit "$status"
`

// fleet is a cluster of a fake kubectl.
type fleet struct{ folder string }

func newFleet(t *testing.T, nodes int) fleet {
	t.Helper()
	f := fleet{t.TempDir()}
	if err := os.Mkdir(filepath.Join(f.folder, "cluster"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(f.folder, "kubectl"), []byte(fakeKubectl), 0o755); err != nil {
		t.Fatal(err)
	}
	type object map[string]any
	items := []object{}
	for i := range nodes {
		items = append(items, pod(fmt.Sprintf("n%04d", i), fmt.Sprintf("p%04d", i), "True"))
	}
	f.pods(t, items)
	return f
}

func pod(node, name, ready string) map[string]any {
	return map[string]any{
		"metadata": map[string]any{"name": name},
		"spec":     map[string]any{"nodeName": node},
		"status":   map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": ready}}},
	}
}

func (f fleet) pods(t *testing.T, items any) {
	t.Helper()
	text, err := json.Marshal(map[string]any{"items": items})
	if err != nil {
		t.Fatal(err)
	}
	f.set(t, "pods.json", string(text))
}

func (f fleet) set(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(f.folder, "cluster", name), []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// rdma calls kubectl rdma.
func (f fleet) rdma(t *testing.T, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	script, err := filepath.Abs("kubectl-rdma")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), script, args...)
	cmd.Env = append(os.Environ(), "PATH="+f.folder+":"+os.Getenv("PATH"), "TMPDIR="+f.folder)
	var out, notes bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &notes
	var ended *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &ended) {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Join(f.folder, "tmp.*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	return out.String(), notes.String(), cmd.ProcessState.ExitCode()
}

const (
	wellStatus = `{"apiVersion": "rdma-spec/v1alpha1", "containers": [{"namespace": "ml", "pod": "ok", "container": "main", "state": "ok",
		"memlock": {"soft": "unlimited", "hard": "unlimited"}, "ipcLock": true, "problems": []}]}`
	lowStatus = `{"apiVersion": "rdma-spec/v1alpha1", "containers": [{"namespace": "ml", "pod": "train-0", "container": "main", "state": "below",
		"memlock": {"soft": "8Mi", "hard": "unlimited"}, "problems": ["memlock is 8Mi\u001b[2J, the policy gives unlimited: rdma-spec repair --root /host ml/train-0", "and more"], "notes": ["a note"]},
		{"namespace": "ml", "pod": "ok", "container": "main", "state": "ok", "memlock": null, "ipcLock": false, "problems": []}]}`
	wrongDoctor = `{"apiVersion": "rdma-spec/v1alpha1", "findings": [
		{"check": "port-active", "status": "wrong", "object": "HCA mlx5_0 port 1", "text": "It is DOWN.", "cure": "ip link set ib0 up", "class": "paste"},
		{"check": "port-rate", "status": "ignored", "object": "HCA mlx5_1 port 1", "text": "It is slow (ignored: it is for storage).", "cure": "replace it", "class": "by hand"},
		{"check": "memlock", "status": "ok", "text": "All is well."}, {"check": "acs", "status": "unknown", "text": "It cannot be told."},
		{"check": "cgroup-rdma", "status": "unknown", "text": "/sys/fs/cgroup cannot be seen from here: run the doctor on the node itself."}]}`
)

func TestKubectlStatus(t *testing.T) {
	f := newFleet(t, 5)
	f.set(t, "all.json", wellStatus)
	f.set(t, "p0001.json", lowStatus)
	f.set(t, "p0001.status", "1")
	f.set(t, "p0001.err", "command terminated with exit code 1\n")
	f.set(t, "p0002.hangs", "")
	f.set(t, "p0003.json", "half an {")
	f.set(t, "p0003.err", "Error from server: error dialing backend\x1b[2J\n")
	f.set(t, "p0003.status", "1")
	f.set(t, "p0004.json", "")
	stdout, stderr, status := f.rdma(t, "status", "--timeout=2")
	const want = `NODE   POD         CONTAINER  MEMLOCK        IPC_LOCK  STATE  WHY
n0001  ml/train-0  main       8Mi/unlimited  -         below  memlock is 8Mi [2J, the policy gives unlimited: rdma-spec repair ml/train-0; and more; a note
`
	if diff := cmp.Diff(want, stdout); diff != "" || status != 3 {
		t.Errorf("exit status %d, -want +got:\n%s", status, diff)
	}
	const notes = `kubectl-rdma: node n0002 does not answer: no answer within 2 s: for a slow node, increase --timeout
kubectl-rdma: node n0003 does not answer: Error from server: error dialing backend [2J
kubectl-rdma: node n0004 does not answer: kubectl exec ended with 0
kubectl-rdma: 2 of 5 nodes answer
`
	if diff := cmp.Diff(notes, stderr); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	for _, name := range []string{"p0002.hangs", "p0003.json", "p0003.err", "p0003.status", "p0004.json"} {
		if err := os.Remove(filepath.Join(f.folder, "cluster", name)); err != nil {
			t.Fatal(err)
		}
	}
	if stdout, _, status := f.rdma(t, "status", "--all"); status != 1 || strings.Count(stdout, "\n") != 7 ||
		!strings.Contains(stdout, "n0004  ml/ok       main       unlimited      yes       ok     -\n") {
		t.Errorf("exit status %d:\n%s", status, stdout)
	}
	f.set(t, "p0001.json", wellStatus)
	f.set(t, "p0001.status", "0")
	if stdout, stderr, status := f.rdma(t, "status"); status != 0 || strings.Count(stdout, "\n") != 1 ||
		stderr != "kubectl-rdma: 5 of 5 nodes answer\n" {
		t.Errorf("exit status %d:\n%s%s", status, stdout, stderr)
	}
}

func TestKubectlDoctor(t *testing.T) {
	f := newFleet(t, 0)
	f.pods(t, []any{pod("a", "old", "False"), pod("a", "new", "True"), pod("b", "alone", "False"),
		map[string]any{"metadata": map[string]any{"name": "unscheduled"}}})
	f.set(t, "nodes.json", `{"items": [{"metadata": {"name": "a"}}]}`)
	f.set(t, "all.json", wrongDoctor)
	f.set(t, "new.status", "1")
	stdout, stderr, status := f.rdma(t, "doctor", "-l", "rdma=true", "--context", "prod", "-n", "other")
	const want = `NODE  CHECK        STATUS   OBJECT             TEXT                                      CURE
a     port-active  wrong    HCA mlx5_0 port 1  It is DOWN.                               paste: ip link set ib0 up
a     port-rate    ignored  HCA mlx5_1 port 1  It is slow (ignored: it is for storage).  by hand: replace it
a     acs          unknown  -                  It cannot be told.                        -
`
	if diff := cmp.Diff(want, stdout); diff != "" || status != 1 || stderr != "kubectl-rdma: 1 of 1 nodes answer\n" {
		t.Errorf("exit status %d, %s-want +got:\n%s", status, stderr, diff)
	}
	calls := repository.Read(t, filepath.Join(f.folder, "cluster", "calls"))
	if diff := cmp.Diff(`--context prod -n other get pods -l app.kubernetes.io/name=nri-rdma -o json
--context prod get nodes -l rdma=true -o json
--context prod -n other exec new -c nri-rdma -- rdma-spec doctor --root /host -o json
`, calls); diff != "" {
		t.Errorf("calls, -want +got:\n%s", diff)
	}
	stdout, _, status = f.rdma(t, "doctor", "-o", "json")
	var result struct {
		APIVersion string
		Nodes      []struct {
			Node   string
			Status int
			Result struct{ Findings []any }
		}
	}
	if err := json.Unmarshal([]byte(stdout), &result); err != nil || status != 1 ||
		result.APIVersion != "rdma-spec/v1alpha1" || len(result.Nodes) != 2 ||
		result.Nodes[0].Status != 1 || len(result.Nodes[1].Result.Findings) != 5 {
		t.Errorf("exit status %d, %v: %+v", status, err, result)
	}
}

// A node that did not answer comes first, then a problem on any node, then a node that could not look at everything.
func TestKubectlMissed(t *testing.T) {
	f := newFleet(t, 2)
	f.set(t, "all.json", `{"apiVersion": "rdma-spec/v1alpha1", "findings": []}`)
	f.set(t, "p0000.json", `{"apiVersion": "rdma-spec/v1alpha1", "findings": [], "missed": ["containers", "kubelet"]}`)
	f.set(t, "p0000.status", "3")
	f.set(t, "p0000.err", "rdma-spec: not looked at: containers, kubelet: the results list why\ncommand terminated with exit code 3\n")
	for _, test := range []struct {
		second string
		want   int
	}{{"0", 3}, {"1", 1}, {"124", 3}} {
		f.set(t, "p0001.status", test.second)
		_, stderr, status := f.rdma(t, "doctor")
		if status != test.want ||
			!strings.Contains(stderr, "kubectl-rdma: node n0000 was not looked at for containers, kubelet\n") {
			t.Errorf("exit status %d, want %d: %s", status, test.want, stderr)
		}
	}
}

func TestKubectlWrongCalls(t *testing.T) {
	f := newFleet(t, 1)
	for args, want := range map[string]string{
		"":                         "name a command, status or doctor",
		"statsu":                   "unknown argument statsu",
		"status doctor":            "one command at a time",
		"status -o yaml":           "--output must be one of table, json",
		"status --parallel 0":      "whole numbers above 0",
		"status --timeout":         "--timeout needs a value",
		"status --timeout=ten":     "whole numbers above 0",
		"doctor --only port-state": "unknown argument --only",
	} {
		stdout, stderr, status := f.rdma(t, strings.Fields(args)...)
		if stdout != "" || status != 2 || !strings.Contains(stderr, want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: exit status %d, %s%s", args, status, stdout, stderr)
		}
	}
	if stdout, _, status := f.rdma(t, "--help"); status != 0 || !strings.HasPrefix(stdout,
		"Usage: kubectl rdma status|doctor") {
		t.Errorf("--help: exit status %d, %s", status, stdout)
	}
	f.pods(t, []any{})
	if _, stderr, status := f.rdma(t, "status"); status != 3 ||
		stderr != "kubectl-rdma: no pod of the DaemonSet nri-rdma runs in namespace rdma-spec\n" {
		t.Errorf("exit status %d, %s", status, stderr)
	}
	f.set(t, "pods.json", "not JSON")
	if _, stderr, status := f.rdma(t, "status"); status != 3 || !strings.HasSuffix(stderr,
		"kubectl-rdma: cannot read the list of pods\n") {
		t.Errorf("exit status %d, %s", status, stderr)
	}
}

// A thousand nodes are asked within a minute, 32 at a time. One after the other, their delays alone would take three.
func TestKubectlThousandNodes(t *testing.T) {
	const nodes, parallel, most = 1000, 32, time.Minute
	f := newFleet(t, nodes)
	f.set(t, "all.json", lowStatus)
	f.set(t, "slow", "")
	began := time.Now()
	stdout, stderr, status := f.rdma(t, "status")
	took := time.Since(began)
	t.Logf("%d nodes took %s", nodes, took.Round(time.Second/10))
	if status != 0 || strings.Count(stdout, "\n") != nodes+1 || stderr != "kubectl-rdma: 1000 of 1000 nodes answer\n" {
		t.Errorf("exit status %d, %d lines, %s", status, strings.Count(stdout, "\n"), stderr)
	}
	if took > most {
		t.Errorf("it took %s, want %s at most", took, most)
	}
	atOnce, highest := 0, 0
	for line := range strings.Lines(repository.Read(t, filepath.Join(f.folder, "cluster", "log"))) {
		if atOnce++; line == "ends\n" {
			atOnce -= 2
		}
		highest = max(highest, atOnce)
	}
	if highest > parallel {
		t.Errorf("%d nodes were asked at once, want %d at most", highest, parallel)
	}
}

// What the script calls is in the DaemonSet: its label, its container, and its root.
func TestKubectlFitsTheDaemonSet(t *testing.T) {
	script := repository.Read(t, "deploy/kubectl/kubectl-rdma")
	var found bool
	for _, document := range strings.Split(repository.Read(t, "deploy/kustomize/base/daemonset.yaml"), "\n---\n") {
		var d appsv1.DaemonSet
		if err := yaml.Unmarshal([]byte(document), &d); err != nil || d.Kind != "DaemonSet" {
			continue
		}
		found = true
		ctr := d.Spec.Template.Spec.Containers[0]
		for _, want := range []string{
			"-l app.kubernetes.io/name=" + d.Spec.Template.Labels["app.kubernetes.io/name"], "-c " + ctr.Name, "namespace=" +
				d.Namespace + " ", "--root /host",
		} {
			if !strings.Contains(script, want) {
				t.Errorf("the script does not have %q", want)
			}
		}
		if !strings.Contains(strings.Join(ctr.Args, " "), "--root=/host") {
			t.Errorf("the DaemonSet's root is not /host: %q", ctr.Args)
		}
	}
	if !found || !strings.Contains(repository.Read(t, "deploy/Containerfile"), "COPY nri-rdma rdma-spec /usr/local/bin/") {
		t.Error("there is no DaemonSet, or rdma-spec is not in its image")
	}
}
