// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/repository"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

const port = "sys/devices/pci0000:5e/0000:5e:00.0/infiniband/mlx5_0/ports/1/"

// answers are those of daemons that have nothing to do with RDMA.
var answers = hcatest.Files{
	node.AnswersFolder + "/runtimes.json":   `{"answer": {"runtimes": []}}`,
	node.AnswersFolder + "/listing.json":    `{"answer": {"containers": []}}`,
	node.AnswersFolder + "/kernel-log.json": `{"answer": {"lines": []}}`,
	node.AnswersFolder + "/cdi.json":        `{"answer": {"files": []}}`,
	node.AnswersFolder + "/plugin.json":     `{"answer": {}}`,
	node.AnswersFolder + "/kubelet.json":    `{"answer": {}}`,
	node.AnswersFolder + "/configured.json": `{"answer": {}}`,
	node.AnswersFolder + "/rdma-cni.json":   `{"answer": {}}`,
	node.AnswersFolder + "/policy.json":     `{"error": "no policy is in force"}`,
}

// doctorNode has two HCAs, one of whose ports has this state.
func doctorNode(t *testing.T, state string) string {
	t.Helper()
	files := hcatest.V100Node().Files().With(answers).With(hcatest.Files{port + "state": state + "\n"})
	if strings.HasPrefix(state, "1:") {
		files[port+"phys_state"], files[port+"counters/link_downed"] = "2: Polling\n", "2\n"
	}
	return files.Root(t)
}

const why = `    impact: A port carries traffic only when it is ACTIVE.
    fix (by hand): Check the cable and the switch's port, and see: mlxlink -d 0000:5e:00.0 -p 1
    see:    https://rdma-spec.github.io/rdma-spec/latest/faults/port-active
    ignore: - {check: "port-active", object: "HCA mlx5_0 port 1", why: "say why"}
`

func TestDoctor(t *testing.T) {
	healthy, down, unread := doctorNode(t, "4: ACTIVE"), doctorNode(t, "1: DOWN"), doctorNode(t, "garbage")
	silent := hcatest.V100Node().Files().With(answers).With(hcatest.Files{
		node.AnswersFolder + "/runtimes.json": `{"error": "there is no answer about runtimes within 10s"}`,
		node.AnswersFolder + "/listing.json":  `{"error": "there is no answer about listing within 10s"}`,
		node.AnswersFolder + "/kubelet.json":  `{"error": "there is no answer about kubelet within 10s"}`,
	})
	wellButSilent, downAndSilent := silent.Root(t), silent.With(hcatest.Files{port + "state": "1: DOWN\n",
		port + "phys_state": "2: Polling\n", port + "counters/link_downed": "2\n"}).Root(t)
	two := hcatest.V100Node().Files().With(answers).With(hcatest.Files{
		port + "state": "1: DOWN\n", port + "phys_state": "2: Polling\n", port + "counters/link_downed": "2\n", "sys/module/ib_core/parameters/netns_mode": "Y\n",
		node.AnswersFolder + "/rdma-cni.json": `{"answer": {"configured": "/etc/cni/net.d/10-net.conf"}}`,
	}).Root(t)
	for _, c := range []struct {
		name, args string
		want       outcome
	}{
		{"healthy", "--root " + healthy + " --only port-active",
			outcome{0, "ok port-active: Each port that is in use, was, or should be, is ACTIVE.\n", "rdma-spec: 1 check: 1 ok\n"}},
		{"a fault first", "--root " + down + " --only hca-answers,port-active",
			outcome{1, "wrong port-active: HCA mlx5_0 port 1: It is DOWN (Polling), and it has lost its link 2 times.\n" + why +
				"ok hca-answers: Each HCA answers.\n", "rdma-spec: 1 wrong: port-active (1); 2 checks: 1 wrong, 1 ok\n"}},
		{"unknown is not known", "--root " + unread + " --only port-active",
			outcome{3, "unknown port-active: HCA mlx5_0 port 1: Its state cannot be read.\n",
				"rdma-spec: 1 check: 1 unknown\nrdma-spec: not looked at: hca: the results list why\n"}},
		{"unknown is not a fault", "--root " + unread + " --only port-active,hca-answers",
			outcome{0, "unknown port-active: HCA mlx5_0 port 1: Its state cannot be read.\n" +
				"ok hca-answers: Each HCA answers.\n", "rdma-spec: 2 checks: 1 unknown, 1 ok\n"}},
		{"no such check", "--only ports", outcome{2, "",
			"rdma-spec: --only: there is no check and no family \"ports\": rdma-spec doctor --list has them; see 'rdma-spec " +
				"doctor --help'\n"}},
		{"no such node", "--root /nowhere", outcome{3, "",
			"rdma-spec: root \"/nowhere\": no such file or directory: give the folder that holds the node's sys and dev\n"}},

		{"npd: healthy", "-o npd --root " + healthy, outcome{0, "RDMA is well\n", ""}},
		{"npd: one fault", "-o npd --root " + down, outcome{1,
			"port-active: HCA mlx5_0 port 1: It is DOWN (Polling), and it has lost its lin...\n", ""}},
		{"npd: two faults", "-o npd --root " + two, outcome{1, "2 faults: port-active, netns-mode\n", ""}},
		{"npd: unknown", "-o npd --root " + unread + " --only port-active",
			outcome{2, "not looked at: hca: the results list why\n", ""}},
		{"npd: daemons that do not answer", "-o npd --root " + wellButSilent,
			outcome{2, "not looked at: runtime, containers, kubelet: the results list why\n", ""}},
		{"npd: a fault beside them", "-o npd --root " + downAndSilent,
			outcome{1, "port-active: HCA mlx5_0 port 1: It is DOWN (Polling), and it has lost its lin...\n", ""}},
		{"daemons that do not answer", "--root " + wellButSilent + " --only kubelet-allocatable,hca-answers",
			outcome{3, "unknown kubelet-allocatable: The kubelet is unknown: there is no answer about kubelet within 10s.\n" +
				"ok hca-answers: Each HCA answers.\n",
				"rdma-spec: 2 checks: 1 unknown, 1 ok\nrdma-spec: not looked at: kubelet: the results list why\n"}},
		{"a fault beside them", "--root " + downAndSilent + " --only port-active,kubelet-allocatable",
			outcome{1, "wrong port-active: HCA mlx5_0 port 1: It is DOWN (Polling), and it has lost its link 2 times.\n" + why +
				"unknown kubelet-allocatable: The kubelet is unknown: there is no answer about kubelet within 10s.\n",
				"rdma-spec: 1 wrong: port-active (1); 2 checks: 1 wrong, 1 unknown\nrdma-spec: not looked at: kubelet: the results list why\n"}},
		{"npd: no such node", "-o npd --root /nowhere",
			outcome{2, "root \"/nowhere\": no such file or directory: give the folder that holds the no...\n", ""}},

		{"prometheus", "-o prometheus --root " + down + " --only port-active,hca-answers",
			outcome{1, `# HELP rdma_spec_doctor_finding An object that is wrong, unknown, or ignored.
# TYPE rdma_spec_doctor_finding gauge
rdma_spec_doctor_finding{check="port-active",object="HCA mlx5_0 port 1",status="wrong"} 1
# HELP rdma_spec_doctor_findings What a check of rdma-spec doctor finds, by status.
# TYPE rdma_spec_doctor_findings gauge
rdma_spec_doctor_findings{check="hca-answers",status="ignored"} 0
rdma_spec_doctor_findings{check="hca-answers",status="unknown"} 0
rdma_spec_doctor_findings{check="hca-answers",status="wrong"} 0
rdma_spec_doctor_findings{check="port-active",status="ignored"} 0
rdma_spec_doctor_findings{check="port-active",status="unknown"} 0
rdma_spec_doctor_findings{check="port-active",status="wrong"} 1
`, ""}},
		{"json", "-o json --root " + down + " --only port-active", outcome{1, `{
  "apiVersion": "rdma-spec/v1alpha1",
  "kind": "Doctor",
  "findings": [
    {
      "check": "port-active",
      "status": "wrong",
      "object": "HCA mlx5_0 port 1",
      "text": "It is DOWN (Polling), and it has lost its link 2 times.",
      "why": "A port carries traffic only when it is ACTIVE.",
      "cure": "Check the cable and the switch's port, and see: mlxlink -d 0000:5e:00.0 -p 1",
      "class": "by hand",
      "docs": "https://rdma-spec.github.io/rdma-spec/latest/faults/port-active",
      "ignore": "- {check: \"port-active\", object: \"HCA mlx5_0 port 1\", why: \"say why\"}"
    }
  ]
}
`, ""}},
	} {
		if diff := cmp.Diff(c.want, call("", append([]string{"doctor"}, strings.Fields(c.args)...)...)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

// A check that is named alone shows what it was skipped for.
// TestDoctorExplains checks that --explain prints the page that findings link to, and looks at no node.
func TestDoctorExplains(t *testing.T) {
	got := call("", "doctor", "--explain", "port-active", "--root", "/nowhere")
	if want := "[Faults](../faults.md)\n\n" + got.Stdout; got.Status != 0 ||
		got.Stderr != "" || want != repository.Read(t, "docs/faults/port-active.md") {
		t.Errorf("doctor --explain: %+v", got)
	}
	want := outcome{2, "", "rdma-spec: --explain: there is no check \"port\": rdma-spec doctor --list has them; see " +
		"'rdma-spec doctor --help'\n"}
	if diff := cmp.Diff(want, call("", "doctor", "--explain", "port")); diff != "" {
		t.Errorf("a check that does not exist (-want +got):\n%s", diff)
	}
}

func TestDoctorOnlySkipped(t *testing.T) {
	root := hcatest.V100Node().Files().With(answers).With(hcatest.Files{
		node.AnswersFolder + "/plugin.json": `{"answer": {"unit": true}}`,
	}).Root(t)
	got := call("", "doctor", "--root", root, "--only", "plugin-current")
	want := outcome{1, `wrong plugin-runs: nri-rdma is installed, and does not run.
    impact: RDMA containers start without their memlock.
    fix (safe to run now): systemctl restart nri-rdma
    see:    https://rdma-spec.github.io/rdma-spec/latest/faults/plugin-runs
    ignore: - {check: "plugin-runs", why: "say why"}
skipped plugin-current: It depends on plugin-runs.
`, "rdma-spec: 1 wrong: plugin-runs (1); 2 checks: 1 wrong, 1 skipped\n"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Metrics can be read, and a check has its series whatever it finds.
func TestDoctorMetrics(t *testing.T) {
	for _, state := range []string{"4: ACTIVE", "1: DOWN", "garbage"} {
		got := call("", "doctor", "-o", "prometheus", "--root", doctorNode(t, state))
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(strings.NewReader(got.Stdout))
		if err != nil {
			t.Fatal(err)
		}
		if n := len(families["rdma_spec_doctor_findings"].GetMetric()); n != 3*len(checks()) {
			t.Errorf("%s: %d series", state, n)
		}
		wrong := 0.0
		for _, m := range families["rdma_spec_doctor_findings"].GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetValue() == "wrong" {
					wrong += m.GetGauge().GetValue()
				}
			}
		}
		if want := map[string]float64{"1: DOWN": 1}[state]; wrong != want {
			t.Errorf("%s: %v wrong, want %v", state, wrong, want)
		}
	}
}

func TestDoctorLists(t *testing.T) {
	got := call("", "doctor", "--list")
	if n := strings.Count(got.Stdout, "\n"); got.Status != 0 || n != len(checks())+1 ||
		!strings.Contains(got.Stdout, "\nport-active ") {
		t.Errorf("%+v", got)
	}
	if words := completions(t, "doctor", "--only", "hca-answers,port-a"); !strings.Contains(words,
		"hca-answers,port-active\t") || strings.Contains(words, "hca-answers,hca-answers") {
		t.Errorf("%q", words)
	}
	for _, c := range checks() {
		if _, err := json.Marshal(doctor.Finding{Check: c.ID}); err != nil || strings.ContainsAny(c.ID, " ,_/") ||
			strings.ToLower(c.ID) != c.ID {
			t.Errorf("%q is not an identifier: %v", c.ID, err)
		}
	}
}

// --to replaces a file at once, also where something is wrong, and writes nothing where it cannot look.
func TestDoctorOutput(t *testing.T) {
	file := filepath.Join(scratch.Folder(t), "rdma-spec.prom")
	for _, tc := range []struct {
		root   string
		status int
		want   string
	}{
		{doctorNode(t, "1: DOWN"), 1, `rdma_spec_doctor_findings{check="port-active",status="wrong"} 1`},
		{doctorNode(t, "4: ACTIVE"), 0, `rdma_spec_doctor_findings{check="port-active",status="wrong"} 0`},
		{"/nonexistent", 3, `rdma_spec_doctor_findings{check="port-active",status="wrong"} 0`},
	} {
		got := call("", "doctor", "--root", tc.root, "-o", "prometheus", "--only", "port-active", "--to", file)
		if got.Status != tc.status || got.Stdout != "" || !strings.Contains(scratch.Read(t, file), tc.want) {
			t.Errorf("%+v, want exit status %d, and in the file %s:\n%s", got, tc.status, tc.want, scratch.Read(t, file))
		}
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("%v, %v, want mode 0644", info.Mode(), err)
	}
}

// --only takes a family for all of its checks.
func TestDoctorOnlyFamily(t *testing.T) {
	var ids []string
	for _, c := range checks() {
		if c.Family == "hca" {
			ids = append(ids, c.ID)
		}
	}
	root := doctorNode(t, "1: DOWN")
	family, checks := call("", "doctor", "--root", root, "--only", "hca"), call("", "doctor", "--root", root,
		"--only", strings.Join(ids, ","))
	if diff := cmp.Diff(checks, family); diff != "" || len(ids) < 5 {
		t.Errorf("%d checks, -checks +family:\n%s", len(ids), diff)
	}
}
