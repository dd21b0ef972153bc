// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/test/testing/repository"
)

// TestNotes: a release contains only the notes of its own version, and there is no release without them.
func TestNotes(t *testing.T) {
	for version, want := range map[string]bool{"v0.1.0": true, "v0.1": false, "v0.0.0": false} {
		cmd := exec.Command("make", "--silent", "notes", "VERSION="+version)
		cmd.Dir = repository.Path(t, ".")
		out, err := cmd.Output()
		if (err == nil) != want || want && !strings.Contains(string(out), "\n- `nri-rdma`") {
			t.Errorf("notes of %s: %v\n%s", version, err, out)
		}
	}
}

// TestReleaseIsLast: nothing is pushed before the checks for known vulnerabilities, the notes, and the tests on the
// node have passed.
func TestReleaseIsLast(t *testing.T) {
	var workflow struct {
		Jobs map[string]struct{ Needs any }
	}
	text := repository.Read(t, ".github/workflows/release.yaml")
	if err := yaml.Unmarshal([]byte(text), &workflow); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(workflow.Jobs["release"].Needs); got != "[vulnerabilities ready]" {
		t.Errorf("the release needs %s, want what checks it", got)
	}
	before, after, found := strings.Cut(text, "\n  release:\n")
	if !found || strings.Contains(before, " push ") || !strings.Contains(before, "make notes") ||
		!strings.Contains(before, "--workflow test.yaml") || strings.Count(after, "push-to-registry: true") != 2 {
		t.Errorf("something is pushed too early, or not attested:\n%s", text)
	}
}

// pinned matches an action that is pinned to a commit, so that its owner cannot replace the code, followed by the
// release.
var pinned = regexp.MustCompile(`^[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$`)

// TestWorkflows checks that the workflows are valid, have the least permissions by default, pin actions of other
// projects, and only make targets that exist.
func TestWorkflows(t *testing.T) {
	files, err := filepath.Glob(repository.Path(t, ".github/workflows/*.yaml"))
	if err != nil || len(files) != 4 {
		t.Fatalf("workflows %v, %v: want 4", files, err)
	}
	makefile := repository.Read(t, "Makefile")
	for _, file := range files {
		var workflow struct {
			Permissions map[string]string
			Jobs        map[string]struct {
				Uses  string // another workflow of this repository
				Steps []struct{ Run string }
			}
		}
		text := repository.Read(t, file)
		if err := yaml.Unmarshal([]byte(text), &workflow); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		for _, action := range regexp.MustCompile(`(?m)^ *(?:- )?uses: ([^.].*)$`).FindAllStringSubmatch(text, -1) {
			if !pinned.MatchString(action[1]) {
				t.Errorf("%s uses %s: want OWNER/NAME@COMMIT # vX.Y.Z", file, action[1])
			}
		}
		if workflow.Permissions["contents"] == "" || len(workflow.Jobs) == 0 {
			t.Errorf("%s says nothing of permissions, or has no jobs", file)
		}
		for name, job := range workflow.Jobs {
			if job.Uses != "" {
				if !slices.Contains(files, repository.Path(t, job.Uses)) {
					t.Errorf("%s: job %s uses %s, which does not exist", file, name, job.Uses)
				}
				continue
			}
			var commands strings.Builder
			for _, step := range job.Steps {
				commands.WriteString(step.Run + "\n")
			}
			for _, target := range regexp.MustCompile(`(?m)^ *make ([a-z0-9-]+)`).FindAllStringSubmatch(commands.String(), -1) {
				if !strings.Contains(makefile, "\n"+target[1]+":") {
					t.Errorf("%s: job %s makes %s, which the Makefile does not have", file, name, target[1])
				}
			}
			if !regexp.MustCompile(`(?m)^ *(make [a-z]|\.ci/run)`).MatchString(commands.String()) {
				t.Errorf("%s: job %s makes nothing", file, name)
			}
		}
	}
}
