// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"slices"
	"strings"
	"testing"
)

func TestMain(m *testing.M) { Main(m) }

// Check finds mistakes, so it cannot accept every command line.
func TestCheckFindsMistakes(t *testing.T) {
	p := Build(t)
	for _, test := range []struct {
		line    string
		ours    bool
		problem string
	}{
		{line: "make demo"},
		{line: "cp bin/rdma-spec /usr/local/bin"},
		{line: "rdma-spec generate --memlock 64Gi > /etc/x.json", ours: true},
		{line: "sudo /usr/local/bin/nri-rdma --index 90", ours: true},
		{line: "rdma-spec version # which one", ours: true},
		{line: "kubectl exec my-pod -- /tmp/rdma-spec verify --lock 1Gi", ours: true},
		{line: "kubectl exec my-pod -- /tmp/rdma-spec verify --look 1Gi", ours: true,
			problem: "rdma-spec verify has no flag --look"},
		{line: "rdma-spec frobnicate", ours: true, problem: `rdma-spec has no command "frobnicate"`},
		{line: "rdma-spec generate --memlok 64Gi", ours: true, problem: "rdma-spec generate has no flag --memlok"},
		{line: "nri-rdma --index=90 --sokcet=x", ours: true, problem: "nri-rdma  has no flag --sokcet"},
	} {
		ours, problem := p.Check(test.line)
		if ours != test.ours || (problem == "") != (test.problem == "") || !strings.HasSuffix(problem, test.problem) {
			t.Errorf("Check(%q) = %v, %q; want %v, %q", test.line, ours, problem, test.ours, test.problem)
		}
	}
}

func TestContainerfile(t *testing.T) {
	programs, entrypoint := Containerfile(t, Read(t, "deploy/Containerfile"))
	if want := []string{"/usr/local/bin/nri-rdma", "/usr/local/bin/rdma-spec"}; !slices.Equal(programs, want) ||
		entrypoint != want[0] {
		t.Errorf("the image has %q, and starts %q", programs, entrypoint)
	}
}
