// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// ignoring is a node whose port mlx5_0 is down, and that has this file of what to ignore.
func ignoring(t *testing.T, file string) string {
	t.Helper()
	return hcatest.V100Node().Files().With(answers).With(hcatest.Files{
		port + "state": "1: DOWN\n", port + "phys_state": "2: Polling\n", port + "counters/link_downed": "2\n",
		"rdma-spec/answers/ignored.json": `{"answer": ` + file + `}`,
	}).Root(t)
}

// What an administrator ignores is listed as such in every format, and never alarms.
func TestDoctorIgnores(t *testing.T) {
	root := ignoring(t, `[{"check": "port-*", "object": "HCA mlx5_0 *", "why": "it is a spare"},
		{"check": "gpu-*", "object": "GPU 0000:*", "why": "elsewhere"}]`)
	for args, want := range map[string]outcome{
		"--only port-active": {0, "ignored port-active: HCA mlx5_0 port 1: It is DOWN (Polling), and it has lost its link 2 times (ignored: it is a spare).\n",
			"rdma-spec: 1 check: 1 ignored\n"},
		"-o npd --only hca": {0, "RDMA is well, 1 ignored: port-active\n", ""},
		"-o prometheus --only port-active": {0, `# HELP rdma_spec_doctor_finding An object that is wrong, unknown, or ignored.
# TYPE rdma_spec_doctor_finding gauge
rdma_spec_doctor_finding{check="port-active",object="HCA mlx5_0 port 1",status="ignored"} 1
# HELP rdma_spec_doctor_findings What a check of rdma-spec doctor finds, by status.
# TYPE rdma_spec_doctor_findings gauge
rdma_spec_doctor_findings{check="port-active",status="ignored"} 1
rdma_spec_doctor_findings{check="port-active",status="unknown"} 0
rdma_spec_doctor_findings{check="port-active",status="wrong"} 0
`, ""},
		"-o json --only port-active": {0, `{
  "apiVersion": "rdma-spec/v1alpha1",
  "kind": "Doctor",
  "findings": [
    {
      "check": "port-active",
      "status": "ignored",
      "object": "HCA mlx5_0 port 1",
      "text": "It is DOWN (Polling), and it has lost its link 2 times (ignored: it is a spare).",
      "why": "A port carries traffic only when it is ACTIVE.",
      "cure": "Check the cable and the switch's port, and see: mlxlink -d 0000:5e:00.0 -p 1",
      "class": "by hand",
      "docs": "https://rdma-spec.github.io/rdma-spec/latest/faults/port-active"
    }
  ]
}
`, ""},
	} {
		if diff := cmp.Diff(want, call("", append([]string{"doctor", "--root", root}, strings.Fields(args)...)...)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", args, diff)
		}
	}
	// One file serves a fleet: only --list names what matches nothing here.
	got := call("", "doctor", "--root", root, "--list")
	if got.Status != 0 || !strings.HasPrefix(got.Stdout, "CHECK ") || got.Stderr != "rdma-spec: /etc/rdma-spec/doctor.yaml: "+
		`this entry matches nothing on this node: - {check: "gpu-*", object: "GPU 0000:*", why: "elsewhere"}`+"\n" {
		t.Errorf("%+v", got)
	}
}

// The entry that a fault prints makes it ignored, whatever its object is called.
func TestDoctorPrintsTheEntry(t *testing.T) {
	root := hcatest.V100Node().Files().With(hcatest.Files{port + "state": "1: DOWN\n", port + "phys_state": "2: Polling\n", port + "counters/link_downed": "2\n"})
	const only = "port-active"
	before := call("", "doctor", "--root", root.Root(t), "--only", only)
	_, entry, found := strings.Cut(before.Stdout, "ignore: ")
	entry, _, _ = strings.Cut(entry, "\n")
	if before.Status != 1 || !found {
		t.Fatalf("%+v", before)
	}
	with := root.With(hcatest.Files{"etc/rdma-spec/doctor.yaml": "ignore:\n" + entry + "\n"})
	folder := with.Root(t)
	got := call("", "doctor", "--root", folder, "--only", only)
	if want := "ignored port-active: HCA mlx5_0 port 1: It is DOWN (Polling), and it has lost its link 2 times (ignored: say why).\n"; got.Status != 0 ||
		got.Stdout != want {
		t.Errorf("%+v, want %s", got, want)
	}
	// An archive has the entries as well.
	archive := filepath.Join(scratch.Folder(t), "node.tar.gz")
	if collected := call("", "collect", "--root", folder, "--to", archive); collected.Status != 0 {
		t.Fatalf("%+v", collected)
	}
	if there := call("", "doctor", "--root", archive, "--only", only); !cmp.Equal(got, there) {
		t.Errorf("in an archive: %s", cmp.Diff(got, there))
	}
}

// A file that is not right is an error, in every format: nobody is to believe that something is ignored, or is not.
func TestDoctorStrictIgnoreFile(t *testing.T) {
	for file, want := range map[string]string{
		"ignores: []":                                   `unknown field "ignores"`,
		"ignore: [{check: a}]":                          "ignore[0]: check and why must have a value",
		"ignore: [{object: a, why: b}]":                 "ignore[0]: check and why must have a value",
		"ignore: [{check: a, why: b, objects: c}]":      `unknown field "ignore[0].objects"`,
		"ignore: [{check: '[a', why: b}]":               `ignore[0]: check and object are globs: write \[ for a bracket`,
		"ignore: []\nignore: []":                        "already set",
		"ignore: []\n---\nignore: []":                   "something follows the end of the YAML document",
		"ignore:\n- {check: a, why: b, object: [a, b]}": "ignore.object is of the type array",
	} {
		root := hcatest.V100Node().Files().With(hcatest.Files{"etc/rdma-spec/doctor.yaml": file}).Root(t)
		got := call("", "doctor", "--root", root, "--only", "hca")
		if got.Status != 3 || got.Stdout != "" || !strings.HasPrefix(got.Stderr, "rdma-spec: /etc/rdma-spec/doctor.yaml: ") ||
			!strings.Contains(got.Stderr, want) || strings.Count(got.Stderr, "\n") != 1 {
			t.Errorf("%s: %+v, want %s", file, got, want)
		}
	}
	for _, file := range []string{"", "# nothing\n", "ignore: []\n"} {
		root := hcatest.V100Node().Files().With(hcatest.Files{"etc/rdma-spec/doctor.yaml": file}).Root(t)
		if got := call("", "doctor", "--root", root, "--only", "hca-answers"); got.Status != 0 {
			t.Errorf("%q: %+v", file, got)
		}
	}
}
