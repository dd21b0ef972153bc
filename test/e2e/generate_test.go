// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// With the generated base spec, a runtime handler gives unlimited memlock and IPC_LOCK, but not the limit of 1024 files
// that a spec has if an administrator edits the output of `ctr oci spec`.
func TestGenerate(t *testing.T) {
	dir := scratch.Dir(t)
	generated := filepath.Join(dir, "rdma-spec.json")
	scratch.File(t, generated, string(rdmaSpec(t, "generate")), 0o644)
	handMade := filepath.Join(dir, "hand-made.json")
	scratch.File(t, handMade, handMadeSpec(t), 0o644)
	restart(t, containerd.Options{
		Version: *version, Runtime: *runtime, NoNRI: true,
		Handlers: map[string]string{"rdma": generated, "hand-made": handMade},
	})
	for _, test := range []struct {
		handler, memlock, files string
		ipcLock                 bool
	}{
		{"rdma", "unlimited", "1048576", true},
		{"hand-made", "unlimited", "1024", true},
		{"", kernelDefault, "1048576", false},
	} {
		t.Run("handler "+test.handler, func(t *testing.T) {
			id := runContainer(t, runPod(t, containerd.Pod{Handler: test.handler}), containerd.Container{})
			expectMemlock(t, id, test.memlock)
			if got := shell(t, id, "ulimit -Hn"); got != test.files {
				t.Errorf("a process may open %s files, want %s", got, test.files)
			}
			sets := capabilities(t, scratch.Read(t, fmt.Sprintf("/proc/%d/status", pid(t, id))))
			if strings.Contains(sets, "CapEff") != test.ipcLock {
				t.Errorf("IPC_LOCK is in %q, want it effective: %t", sets, test.ipcLock)
			}
		})
	}
}

// handMadeSpec makes a spec as administrators usually do: it adds the rlimit and the capability to the output of ctr.
func handMadeSpec(t *testing.T) string {
	t.Helper()
	parts := nodeParts(t)
	printed, err := exec.CommandContext(t.Context(), filepath.Join(parts.Containerd(ctrd.Version),
		"ctr"), "oci", "spec").Output()
	if err != nil {
		t.Fatal(err)
	}
	edited := strings.Replace(string(printed), `"rlimits": [`,
		`"rlimits": [{"type": "RLIMIT_MEMLOCK", "hard": 18446744073709551615, "soft": 18446744073709551615},`, 1)
	edited = strings.ReplaceAll(edited, `"CAP_CHOWN",`, `"CAP_CHOWN", "CAP_IPC_LOCK",`)
	if strings.Count(edited, "CAP_IPC_LOCK") < 3 || !strings.Contains(edited, "RLIMIT_MEMLOCK") {
		t.Fatalf("ctr's spec has another form than the recipe expects:\n%s", printed)
	}
	return edited
}

// restartWith restarts the shared containerd with changed options, and restores the usual options when the test ends.
func restartWith(t *testing.T, change func(o *containerd.Options)) {
	t.Helper()
	o := options()
	change(&o)
	restart(t, o)
}

// restart is like restartWith, with complete options.
func restart(t *testing.T, o containerd.Options) {
	t.Helper()
	replaceContainerd(t, o)
	t.Cleanup(func() { replaceContainerd(t, options()) })
}

// replaceContainerd stops the running containerd, and starts another one.
func replaceContainerd(t *testing.T, o containerd.Options) {
	t.Helper()
	ctrd.Stop()
	var err error
	if ctrd, err = containerd.Start(context.Background(), o); err != nil {
		t.Fatal(err)
	}
}

// TestDropIns: each version of containerd reads its drop-ins as intended. The main file turns NRI off in the versions
// that merge files, and its other settings stay in effect.
func TestDropIns(t *testing.T) {
	parts := nodeParts(t)
	const (
		v2 = "version = 2\nimports = ['%DIR%/*.toml']\n[plugins.'io.containerd.grpc.v1.cri']\n  sandbox_image = 'mine:1'\n"
		v3 = "version = 3\nimports = ['%DIR%/*.toml']\n[plugins.'io.containerd.cri.v1.images'.pinned_images]\n  sandbox = " +
			"'mine:1'\n"
		off = "[plugins.'io.containerd.nri.v1.nri']\n  disable = true\n"
	)
	nri, validator := []string{"nri-v3.toml"}, []string{"nri-v3.toml", "nri-validator-v3.toml"}
	for _, test := range []struct {
		version, main string
		dropIns       []string
		validator     bool
	}{
		{version: "1.7.35", main: v2, dropIns: []string{"nri-v2.toml"}},
		{version: "2.2.9", main: v3 + off, dropIns: validator, validator: true},
		{version: "2.3.7", main: v3 + off, dropIns: nri},
		{version: "2.3.7", main: v2, dropIns: validator, validator: true},
		{version: "2.4.2", main: v3 + off, dropIns: nri},
		{version: "2.4.2", main: v3 + off, dropIns: validator, validator: true},
	} {
		dir := scratch.Dir(t)
		main := filepath.Join(dir, "config.toml")
		scratch.File(t, main, strings.ReplaceAll(test.main, "%DIR%", dir+"/conf.d"), 0o644)
		for _, d := range test.dropIns {
			scratch.File(t, filepath.Join(dir, "conf.d", d), deployFile(t, "containerd/"+d), 0o644)
		}
		out, err := exec.Command(filepath.Join(parts.Containerd(test.version), "containerd"), "--config", main,
			"config", "dump").Output()
		if err != nil {
			t.Errorf("containerd %s, %v: %v", test.version, test.dropIns, err)
			continue
		}
		wants := []string{`mine:1`, `io\.containerd\.nri\.v1\.nri['"]\]\n\s+disable = false`}
		if test.validator {
			wants = append(wants, `default_validator\]\n\s+enable = true`, `required_plugins = \[\]`)
		}
		for _, want := range wants {
			if !regexp.MustCompile(want).Match(out) {
				t.Errorf("containerd %s, %v: nothing matches %s in what it reads", test.version, test.dropIns, want)
			}
		}
	}
}
