// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// Each refusal is one line, names the flag or the file, and leaves nothing on stdout and the old file as it was.
func TestGenerateRefuses(t *testing.T) {
	v100, broken := hcatest.V100(t), hcatest.Broken(t)
	for name, test := range map[string]struct {
		stdin  string
		args   []string
		status int
		want   string
	}{
		"a size that is none": {"", []string{"--memlock", "lots"}, 2,
			`memlock "lots" is not a size: write unlimited, or bytes such as 16Gi or 500M; see 'rdma-spec generate --help'`},
		"a platform unheard of": {"", []string{"--for", "podman"}, 2,
			`--for: unknown platform "podman": write one of containerd, docker, crio, nodeadm, talos, bottlerocket, systemd; see`},

		"from nothing": {"", []string{"--from", "-"}, 3, "--from -: empty: expected an OCI runtime spec, JSON"},
		"from a file not there": {"", []string{"--from", "/nonexistent/spec.json"}, 3,
			"--from /nonexistent/spec.json: no such file or directory"},
		"from a folder":      {"", []string{"--from", v100}, 3, "--from " + v100 + ": is a directory"},
		"from an empty name": {"", []string{"--from="}, 3, "--from : no such file or directory"},
		"from a warning and worse": {"{}", []string{"--from", "-", "--memlock", "1Gi", "--ipc-lock"}, 3,
			"--from -: not an OCI runtime spec"},

		"an HCA that is not there": {"", []string{"--root", v100, "--devices", "mlx5_7"}, 3,
			`--devices mlx5_7: this node has no HCA "mlx5_7"; see 'rdma-spec devices'`},
		"one that is, one that isn't": {"", []string{"--root", v100, "--devices", "mlx5_0,mlx5_7"}, 3,
			`--devices mlx5_0,mlx5_7: this node has no HCA "mlx5_7"`},
		"no HCA named": {"", []string{"--root", v100, "--devices="}, 2,
			`--devices is empty: write none, all, or names such as mlx5_0,mlx5_1`},
		"an empty name": {"", []string{"--root", v100, "--devices", "mlx5_0,"}, 3, `this node has no HCA ""`},
		"none and more": {"", []string{"--root", v100, "--devices", "none,mlx5_0"}, 3,
			`this node has no HCA "none"`},
		"all, where there is none": {"", []string{"--root", hcatest.NoRDMA(t), "--devices", "all"}, 3,
			"--devices all: no HCA of this node can be used; see 'rdma-spec devices'"},
		"an HCA without verbs": {"", []string{"--root", broken, "--devices", "no_verbs"}, 3,
			"--devices no_verbs: HCA no_verbs cannot be used: it has no verbs device: load the module ib_uverbs"},
		"a root that is not there": {"", []string{"--root", "/nonexistent", "--devices", "all"}, 3,
			`--devices all: root "/nonexistent": no such file or directory`},
		"IPC_LOCK for docker": {"", []string{"--for", "docker", "--ipc-lock"}, 2,
			"the configuration of docker cannot give CAP_IPC_LOCK: give it to a container with docker run --cap-add IPC_LOCK"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(scratch.Folder(t), "spec.json")
			if err := os.WriteFile(file, []byte("old"), 0o600); err != nil {
				t.Fatal(err)
			}
			for _, args := range [][]string{test.args, append(test.args, "--to", file)} {
				got := call(test.stdin, append([]string{"generate"}, args...)...)
				if got.Status != test.status || got.Stdout != "" {
					t.Errorf("exit status %d, want %d; stdout %q", got.Status, test.status, got.Stdout)
				}
				if !strings.HasPrefix(got.Stderr, "rdma-spec: ") || !strings.Contains(got.Stderr, test.want) ||
					strings.Count(got.Stderr, "\n") != 1 {
					t.Errorf("stderr %q, want one line: %s", got.Stderr, test.want)
				}
			}
			files(t, filepath.Dir(file), map[string]string{"spec.json": "old"})
		})
	}
}

// files compares all that is in a folder.
func files(t *testing.T, dir string, want map[string]string) {
	t.Helper()
	got := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		content, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		got[e.Name()] = string(content)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

func TestGenerateOutput(t *testing.T) {
	dir := scratch.Folder(t)
	file := filepath.Join(dir, "spec.json")
	if err := os.WriteFile(file, []byte("original"), 0o640); err != nil {
		t.Fatal(err)
	}
	unlimited, finite := runGenerate(t, "", ""), runGenerate(t, "", "", "--memlock", "1Gi")
	kept := func(backup string) string { return "rdma-spec: the former " + file + " is kept as " + backup + "\n" }

	if got := runGenerate(t, "", kept(file+".rdma-spec.bak"), "--to", file); got != "" {
		t.Errorf("stdout %q beside --to", got)
	}
	runGenerate(t, "", kept(file+".rdma-spec.bak.2"), "--to", file, "--memlock", "1Gi")
	runGenerate(t, "", "", "--to", file, "--memlock", "1Gi") // nothing to do
	runGenerate(t, "", "", "--to", file, "--memlock", "1Gi", "--from", file)
	files(t, dir, map[string]string{"spec.json": finite, "spec.json.rdma-spec.bak": "original",
		"spec.json.rdma-spec.bak.2": unlimited})
	if info, err := os.Stat(file); err != nil || info.Mode() != 0o640 {
		t.Errorf("mode %v, %v; want 0640", info.Mode(), err)
	}
}

// CRI-O reads every file of crio.conf.d, and the last one by name wins: a backup would.
func TestGenerateOutputOfADropIn(t *testing.T) {
	above := scratch.Folder(t)
	folder := filepath.Join(above, "crio.conf.d")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(folder, "90-rdma-spec.conf")
	first, second := runGenerate(t, "", "", "--for", "crio"), runGenerate(t, "", "", "--for", "crio", "--memlock", "1Gi")
	runGenerate(t, "", "", "--for", "crio", "--to", file)
	files(t, folder, map[string]string{"90-rdma-spec.conf": first})
	backup := filepath.Join(above, "crio.conf.d-90-rdma-spec.conf.rdma-spec.bak")
	runGenerate(t, "", "rdma-spec: the former "+file+" is kept as "+backup+"\n", "--for", "crio",
		"--memlock", "1Gi", "--to", file)
	files(t, folder, map[string]string{"90-rdma-spec.conf": second})
	if got, err := os.ReadFile(backup); err != nil || string(got) != first {
		t.Errorf("the backup: %v\n%s", err, got)
	}
}

func TestGenerateOutputThatCannotBeWritten(t *testing.T) {
	dir := scratch.Folder(t)
	if err := os.Symlink("nowhere", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for output, want := range map[string]string{
		dir:                                   ": it is not a regular file",
		filepath.Join(dir, "missing", "file"): ": no such file or directory",
		filepath.Join(dir, "link"):            ": it is a link to a file that does not exist",
		"/proc/rdma-spec.json":                "", // a folder in which not even root can make files
	} {
		got := call("", "generate", "--to", output)
		if got.Status != 3 || got.Stdout != "" || !strings.HasPrefix(got.Stderr, "rdma-spec: cannot write "+output+want) ||
			strings.Count(got.Stderr, "\n") != 1 {
			t.Errorf("--to %s: %+v; want %s", output, got, want)
		}
	}
}
