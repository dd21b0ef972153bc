// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/cmd/internal/clitest"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/collect"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor/checks"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri/critest"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/nodetest"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/rdma/rdmatest"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
	"github.com/rdma-spec/rdma-spec/test/testing/repository"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

func TestMain(m *testing.M) {
	node.SecondLookAfter = 0
	os.Exit(m.Run())
}

// program has the commands that these tests call.
var program = clitest.New(node.OpenRoot, func() []*cobra.Command {
	return []*cobra.Command{doctor.Command(checks.All()), collect.Command(checks.All())}
})

const port = "sys/devices/pci0000:5e/0000:5e:00.0/infiniband/mlx5_0/ports/1/"

// isDown is what the port has that is down, and has lost its link.
var isDown = hcatest.Files{port + "state": "1: DOWN\n", port + "phys_state": "2: Polling\n",
	port + "counters/link_downed": "2\n"}

// answers are those of daemons that have nothing to do with RDMA.
var answers = hcatest.Files{
	node.AnswersDir + "/runtimes.json":   `{"answer": {"runtimes": []}}`,
	node.AnswersDir + "/listing.json":    `{"answer": {"containers": []}}`,
	node.AnswersDir + "/kernel-log.json": `{"answer": {"lines": []}}`,
	node.AnswersDir + "/cdi.json":        `{"answer": {"files": []}}`,
	node.AnswersDir + "/plugin.json":     `{"answer": {}}`,
	node.AnswersDir + "/kubelet.json":    `{"answer": {}}`,
	node.AnswersDir + "/configured.json": `{"answer": {}}`,
	node.AnswersDir + "/rdma-cni.json":   `{"answer": {}}`,
	node.AnswersDir + "/policy.json":     `{"error": "no policy is in force"}`,
}

// doctorNode has two HCAs, one of whose ports has this state.
func doctorNode(t *testing.T, state string) string {
	t.Helper()
	files := hcatest.V100Node().Files().With(answers)
	if state == "1: DOWN" {
		return files.With(isDown).Root(t)
	}
	return files.With(hcatest.Files{port + "state": state + "\n"}).Root(t)
}

// What the doctor prints in each format, and its exit status.
func TestDoctor(t *testing.T) {
	silent := hcatest.V100Node().Files().With(answers).With(hcatest.Files{
		node.AnswersDir + "/runtimes.json": `{"error": "no response to the query for runtimes within 10s"}`,
		node.AnswersDir + "/listing.json":  `{"error": "no response to the query for listing within 10s"}`,
		node.AnswersDir + "/kubelet.json":  `{"error": "no response to the query for kubelet within 10s"}`,
	})
	down := hcatest.V100Node().Files().With(answers).With(isDown)
	nodes := map[string]string{
		"HEALTHY": doctorNode(t, "4: ACTIVE"), "DOWN": down.Root(t), "UNREAD": doctorNode(t, "garbage"),
		"SILENT": silent.Root(t), "DOWN-AND-SILENT": silent.With(isDown).Root(t),
		"TWO": down.With(hcatest.Files{
			"sys/module/ib_core/parameters/netns_mode": "Y\n",
			node.AnswersDir + "/rdma-cni.json":         `{"answer": {"configured": "/etc/cni/net.d/10-net.conf"}}`,
		}).Root(t),
		"WITHOUT-PLUGIN": hcatest.V100Node().Files().With(answers).With(hcatest.Files{
			node.AnswersDir + "/plugin.json": `{"answer": {"unit": true}}`}).Root(t),
		"IGNORING": ignoring(t, `[{"check": "port-*", "object": "HCA mlx5_0 *", "reason": "it is a spare"}]`),
	}
	program.Compare(t, "doctor", nodes, `
		doctor --root HEALTHY --only port-active
		# a fault comes first
		doctor --root DOWN --only hca-answers,port-active
		# what is unknown is no fault, and is not known where nothing else is looked at
		doctor --root UNREAD --only port-active
		doctor --root UNREAD --only port-active,hca-answers
		doctor --root SILENT --only kubelet-allocatable,hca-answers
		doctor --root DOWN-AND-SILENT --only port-active,kubelet-allocatable
		# a check that is named alone shows what it was skipped for
		doctor --root WITHOUT-PLUGIN --only plugin-current
		doctor --root /nowhere

		doctor -o npd --root HEALTHY
		doctor -o npd --root DOWN
		doctor -o npd --root TWO
		doctor -o npd --root UNREAD --only port-active
		doctor -o npd --root SILENT
		doctor -o npd --root DOWN-AND-SILENT
		doctor -o npd --root /nowhere
		doctor -o prometheus --root DOWN --only port-active,hca-answers
		doctor -o json --root DOWN --only port-active

		# what an administrator ignores never alarms
		doctor --root IGNORING --only port-active
		doctor -o npd --root IGNORING --only hca
		doctor -o prometheus --root IGNORING --only port-active
		doctor -o json --root IGNORING --only port-active`)
}

// TestDoctorExplains checks that --explain prints the page that findings link to, and looks at no node.
func TestDoctorExplains(t *testing.T) {
	got := program.Call("", "doctor", "--explain", "port-active", "--root", "/nowhere")
	if want := "[Faults](../faults.md)\n\n" + got.Stdout; got.Status != 0 ||
		got.Stderr != "" || want != repository.Read(t, "docs/faults/port-active.md") {
		t.Errorf("doctor --explain: %+v", got)
	}
}

// Metrics can be read, and a check has its series whatever it finds.
func TestDoctorMetrics(t *testing.T) {
	for _, state := range []string{"4: ACTIVE", "1: DOWN", "garbage"} {
		got := program.Words("doctor -o prometheus --root", doctorNode(t, state))
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(strings.NewReader(got.Stdout))
		if n := len(families["rdma_spec_doctor_findings"].GetMetric()); n != 3*len(checks.All()) || err != nil {
			t.Errorf("%s: %d series, %v", state, n, err)
		}
	}
}

func TestDoctorLists(t *testing.T) {
	got := program.Words("doctor --list")
	if n := strings.Count(got.Stdout, "\n"); got.Status != 0 || n != len(checks.All())+1 ||
		!strings.Contains(got.Stdout, "\nport-active ") {
		t.Errorf("%+v", got)
	}
	if words := program.Completions("doctor", "--only", "hca-answers,port-a"); !strings.Contains(words,
		"hca-answers,port-active\t") || strings.Contains(words, "hca-answers,hca-answers") {
		t.Errorf("%q", words)
	}
}

// --to replaces a file at once, also where something is wrong, and writes nothing where it cannot look.
func TestDoctorOutput(t *testing.T) {
	file := filepath.Join(scratch.Dir(t), "rdma-spec.prom")
	for _, tc := range []struct {
		root   string
		status int
		want   string
	}{
		{doctorNode(t, "1: DOWN"), 1, `rdma_spec_doctor_findings{check="port-active",status="wrong"} 1`},
		{doctorNode(t, "4: ACTIVE"), 0, `rdma_spec_doctor_findings{check="port-active",status="wrong"} 0`},
		{"/nonexistent", 3, `rdma_spec_doctor_findings{check="port-active",status="wrong"} 0`},
	} {
		got := program.Call("", "doctor", "--root", tc.root, "-o", "prometheus", "--only", "port-active", "--to", file)
		if got.Status != tc.status || got.Stdout != "" || !strings.Contains(scratch.Read(t, file), tc.want) {
			t.Errorf("%+v, want exit status %d, and in the file %s:\n%s", got, tc.status, tc.want, scratch.Read(t, file))
		}
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("%v, %v, want mode 0644", info.Mode(), err)
	}
}

// The doctor finds in containers what status does, and what their processes see beside it.
func TestDoctorOfContainers(t *testing.T) {
	files, containers := nodetest.Mixed()
	user := nodetest.Holder(18, 1, "user")
	user.Spec.Process.Capabilities.Bounding = append(user.Spec.Process.Capabilities.Bounding, "CAP_IPC_LOCK")
	nodetest.AddProcess(files, 18, "8388608 8388608", nodetest.Plain)
	files["proc/18/status"] += "Uid:\t1000\t1000\t1000\t1000\n"
	mounted := nodetest.Other(19, "mounted")
	nodetest.AddProcess(files, 19, "8388608 8388608", nodetest.Plain)
	files["proc/19/mountinfo"] = "31 30 0:5 /infiniband /dev/infiniband ro - devtmpfs udev rw\n"
	names := map[string]string{"CONFIG": clitest.File(t, nodetest.MixedConfig), "NODE": files.Root(t),
		"SOCKET": critest.Serve(t, critest.Options{}, append(containers, user, mounted)...).Socket,
		"CHECKS": "container-ipc-lock,container-memlock,container-refused,container-hca,container-hostpath"}
	program.Compare(t, "doctor-containers", names, `
		doctor --only CHECKS --config CONFIG --root NODE --runtime-endpoint SOCKET
		doctor --only CHECKS --root NODE --runtime-endpoint SOCKET`)
}

// ignoring is a node whose port mlx5_0 is down, and that has this file of what to ignore.
func ignoring(t *testing.T, file string) string {
	t.Helper()
	return hcatest.V100Node().Files().With(answers).With(isDown).With(hcatest.Files{
		node.AnswersDir + "/ignored.json": `{"answer": ` + file + `}`}).Root(t)
}

// One file of what to ignore serves a fleet: only --list names what matches nothing here.
func TestDoctorListsWhatMatchesNothing(t *testing.T) {
	root := ignoring(t, `[{"check": "gpu-*", "object": "GPU 0000:*", "reason": "elsewhere"}]`)
	got := program.Call("", "doctor", "--root", root, "--list")
	if got.Status != 0 || !strings.HasPrefix(got.Stdout, "CHECK ") || got.Stderr != "rdma-spec: this entry in "+
		`/etc/rdma-spec/doctor.yaml matches no finding on this node: - {check: "gpu-*", object: "GPU 0000:*", reason: "elsewhere"}`+"\n" {
		t.Errorf("%+v", got)
	}
}

// The entry that a fault prints makes it ignored, whatever its object is called.
func TestDoctorPrintsTheEntry(t *testing.T) {
	root := hcatest.V100Node().Files().With(isDown)
	before := program.Words("doctor --only port-active --root", root.Root(t))
	_, entry, found := strings.Cut(before.Stdout, "ignore: ")
	entry, _, _ = strings.Cut(entry, "\n")
	if before.Status != 1 || !found {
		t.Fatalf("%+v", before)
	}
	with := root.With(hcatest.Files{"etc/rdma-spec/doctor.yaml": "ignore:\n" + entry + "\n"})
	dir := with.Root(t)
	got := program.Words("doctor --only port-active --root", dir)
	if got.Status != 0 || !strings.HasPrefix(got.Stdout, "ignored port-active: HCA mlx5_0 port 1: ") ||
		!strings.HasSuffix(got.Stdout, " (ignored: give the reason).\n") {
		t.Errorf("%+v", got)
	}
	// An archive has the entries as well.
	if there := program.Words("doctor --only port-active --root", program.Collect(t, dir)); !cmp.Equal(got, there) {
		t.Errorf("in an archive: %s", cmp.Diff(got, there))
	}
}

// A file that is not right is an error, in every format: nobody is to believe that something is ignored, or is not.
func TestDoctorStrictIgnoreFile(t *testing.T) {
	for file, want := range map[string]string{
		"ignores: []":                                      `unknown field "ignores"`,
		"ignore: [{check: a}]":                             `ignore[0]: "check" and "reason" are required`,
		"ignore: [{object: a, reason: b}]":                 `ignore[0]: "check" and "reason" are required`,
		"ignore: [{check: a, reason: b, objects: c}]":      `unknown field "ignore[0].objects"`,
		"ignore: [{check: '[a', reason: b}]":               `ignore[0]: "check" or "object" is not a valid glob: to match a bracket, write \[`,
		"ignore: []\nignore: []":                           "already set",
		"ignore: []\n---\nignore: []":                      "there is text after the end of the YAML document",
		"ignore:\n- {check: a, reason: b, object: [a, b]}": "ignore.object has the type array",
	} {
		root := hcatest.V100Node().Files().With(hcatest.Files{"etc/rdma-spec/doctor.yaml": file}).Root(t)
		got := program.Call("", "doctor", "--root", root, "--only", "hca")
		if got.Status != 3 || got.Stdout != "" || !strings.HasPrefix(got.Stderr, "rdma-spec: /etc/rdma-spec/doctor.yaml: ") ||
			!strings.Contains(got.Stderr, want) || strings.Count(got.Stderr, "\n") != 1 {
			t.Errorf("%s: %+v, want %s", file, got, want)
		}
	}
	for _, file := range []string{"", "# nothing\n", "ignore: []\n"} {
		root := hcatest.V100Node().Files().With(hcatest.Files{"etc/rdma-spec/doctor.yaml": file}).Root(t)
		if got := program.Call("", "doctor", "--root", root, "--only", "hca-answers"); got.Status != 0 {
			t.Errorf("%q: %+v", file, got)
		}
	}
}

// The metrics are of RDMA containers that hold an HCA. What is unknown has no series, and there are 500 at most.
func TestDoctorUse(t *testing.T) {
	files, containers, kernel := nodetest.Using()
	for n := 100; n < 600; n++ {
		containers = append(containers, nodetest.Holder(n, 0, fmt.Sprintf("pod-%d", n), nodetest.Memlock(65536)))
	}
	node := nodetest.By(t, nodetest.MixedConfig, nodetest.Serve(t, files.Root(t), containers...))
	rdmatest.Serve(t, kernel...)
	series := regexp.MustCompile(`(?m)^rdma_spec_container_.*$`)
	all := program.Words("doctor -o prometheus", node...).Stdout
	var got []string
	for _, line := range series.FindAllString(all, -1) {
		if !strings.Contains(line, `pod="pod-`) {
			got = append(got, line)
		}
	}
	golden.Compare(t, filepath.Join("testdata", "use.prom"), strings.Join(got, "\n")+"\n")
	if n := strings.Count(all, "\nrdma_spec_container_memlock_limit_bytes{"); n != 500 {
		t.Errorf("there are %d series of limits, want 500", n)
	}
	if strings.Contains(all, `rdma_spec_container_registered_bytes{container="main",namespace="ml",pod="pod-`) {
		t.Errorf("what is unknown has series:\n%s", all)
	}
	if some := program.Words("doctor -o prometheus --only port-active", node...).Stdout; series.MatchString(some) {
		t.Errorf("--only:\n%s", some)
	}
}
