// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package configure

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// setContainerd replaces the node's containerd by a shell script that runs before the fake one.
func setContainerd(t *testing.T, root, before string) {
	t.Helper()
	text := strings.Replace(fakeContainerd, "#!/bin/sh\n", "#!/bin/sh\n"+strings.ReplaceAll(before, "ROOT", root)+"\n", 1)
	if err := os.WriteFile(filepath.Join(root, "usr/bin/containerd"), []byte(text),
		0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
}

// Another tool, such as nvidia-ctk, takes no lock. Whenever it changes the configuration, its change is there
// afterwards: configure starts from it, or changes nothing and names the file.
func TestConfigureKeepsWhatOthersChangeMeanwhile(t *testing.T) {
	const theirs = "# theirs"
	for _, what := range []string{"nri", "handler runc --in-place"} {
		refused := 0
		for nth := 1; ; nth++ {
			root, _ := configureNode(t)
			config := filepath.Join(root, "etc/containerd/config.toml")
			args := append(append([]string{"configure"}, strings.Fields(what)...), "--root", root)
			// The program changes the file when it is called for the nth time, after it has answered.
			setContainerd(t, root, fmt.Sprintf(`echo >> ROOT/calls
[ "$(wc -l < ROOT/calls)" = %d ] && trap 'echo "%s" >> ROOT/etc/containerd/config.toml' EXIT`, nth, theirs))
			before := nodeFiles(t, filepath.Join(root, "etc"))
			got := call(args...)
			calls, _ := os.ReadFile(filepath.Join(root, "calls"))
			if strings.Count(string(calls), "\n") < nth {
				break // it is not called so often
			}
			text, err := os.ReadFile(config)
			if err != nil || strings.Count(string(text), theirs) != 1 {
				t.Errorf("%s, changed at call %d: the change is lost, %v: %+v\n%s", what, nth, err, got, text)
			}
			if got.Status == 0 {
				continue
			}
			refused++
			if got.Status != 3 || got.Stdout != "" || strings.Count(got.Stderr, "\n") != 1 || !strings.Contains(got.Stderr,
				config+": it changed meanwhile: run the command again") {
				t.Errorf("%s, changed at call %d: %+v", what, nth, got)
			}
			want := maps.Clone(before)
			want["/containerd/config.toml"] += theirs + "\n"
			if diff := cmp.Diff(want, nodeFiles(t, filepath.Join(root, "etc"))); diff != "" {
				t.Errorf("%s, changed at call %d: files (-want +got):\n%s", what, nth, diff)
			}
			if got := call(args...); got.Status != 0 {
				t.Errorf("%s, changed at call %d: once more: %+v", what, nth, got)
			}
		}
		if refused == 0 {
			t.Errorf("%s was never refused", what)
		}
	}
}

// Of two configures at a time, the second one plans nothing: it would start from what the first one is about to
// replace.
func TestConfigurePlansUnderItsLock(t *testing.T) {
	root, _ := configureNode(t)
	asked, answer := filepath.Join(root, "asked"), filepath.Join(root, "answer")
	if err := errors.Join(syscall.Mkfifo(asked, 0o600), syscall.Mkfifo(answer, 0o600)); err != nil {
		t.Fatal(err)
	}
	setContainerd(t, root, `mkdir ROOT/once 2>/dev/null && echo > ROOT/asked && cat ROOT/answer`)
	first := make(chan outcome)
	go func() { first <- call("configure", "nri", "--root", root) }()
	if _, err := os.ReadFile(asked); err != nil { // the first one plans
		t.Fatal(err)
	}
	second := call("configure", "limits", "--root", root)
	if second.Status != 3 || !strings.Contains(second.Stderr,
		fmt.Sprintf("another rdma-spec configure is running (PID %d)", os.Getpid())) {
		t.Errorf("the second one: %+v", second)
	}
	dry := call("configure", "limits", "--dry-run", "--root", root)
	if dry.Status != 0 || !strings.Contains(dry.Stdout, "LimitMEMLOCK") {
		t.Errorf("--dry-run: %+v", dry)
	}
	if err := os.WriteFile(answer, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := <-first; got.Status != 0 {
		t.Errorf("the first one: %+v", got)
	}
}
