// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// generate runs the subcommand; it must succeed, and say no more than wanted.
func runGenerate(t *testing.T, stdin, stderr string, args ...string) string {
	t.Helper()
	got := call(stdin, append([]string{"generate"}, args...)...)
	if got.Status != 0 || got.Stderr != stderr {
		t.Fatalf("generate %v: exit status %d; stderr %q, want %q", args, got.Status, got.Stderr, stderr)
	}
	return got.Stdout
}

func parsedSpec(t *testing.T, text string) *specs.Spec {
	t.Helper()
	var s specs.Spec
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&s); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return &s
}

// capable counts the sets of a spec that have CAP_IPC_LOCK.
func capable(s *specs.Spec) (sets int) {
	c := s.Process.Capabilities
	for _, set := range [][]string{c.Bounding, c.Effective, c.Permitted, c.Inheritable, c.Ambient} {
		if slices.Contains(set, "CAP_IPC_LOCK") {
			sets++
		}
	}
	return sets
}

func TestGenerateGivesTheSameBytes(t *testing.T) {
	first := runGenerate(t, "", "", "--root", hcatest.EightHCA(t), "--devices", "all")
	for _, again := range []string{
		runGenerate(t, "", "", "--root", hcatest.EightHCA(t), "--devices", "all", "--for", "containerd", "--from", "default"),
		runGenerate(t, first, "", "--root", hcatest.EightHCA(t), "--devices", "all", "--from", "-"),
		runGenerate(t, first, "", "--from", "-"),
	} {
		if diff := cmp.Diff(first, again); diff != "" {
			t.Errorf("(-first +again):\n%s", diff)
		}
	}
}

// The spec has what a library would lose: fields that no type knows, large numbers, HTML characters, escapes.
func TestGenerateFromGolden(t *testing.T) {
	const from = "testdata/strange.json"
	text := runGenerate(t, "", "", "--from", from, "--root", hcatest.A100(t), "--devices", "mlx5_1,mlx5_0,mlx5_1")
	golden.Compare(t, filepath.Join("testdata", "strange.golden"), text)
	again := runGenerate(t, scratch.Read(t, from), "", "--from", "-", "--root", hcatest.A100(t),
		"--devices", "mlx5_1,mlx5_0,mlx5_1")
	if diff := cmp.Diff(text, again); diff != "" {
		t.Errorf("standard input gives something else than the file (-file +stdin):\n%s", diff)
	}
}

func TestGenerateMemlockAndIPCLock(t *testing.T) {
	for name, test := range map[string]struct {
		args    []string
		stderr  string
		memlock uint64
		sets    int
	}{
		"unlimited":                      {nil, "", math.MaxUint64, 3},
		"without IPC_LOCK":               {[]string{"--ipc-lock=false"}, "", math.MaxUint64, 0},
		"a finite one means no IPC_LOCK": {[]string{"--memlock", "16Gi"}, "", 16 << 30, 0},
		"unless asked for": {[]string{"--memlock", "16Gi", "--ipc-lock"},
			"rdma-spec: warning: CAP_IPC_LOCK voids the memlock of 16Gi for processes of root\n", 16 << 30, 3},
		"finite, without IPC_LOCK":        {[]string{"--memlock", "16Gi", "--ipc-lock=false"}, "", 16 << 30, 0},
		"a number that is unlimited":      {[]string{"--memlock", "18446744073709551615"}, "", math.MaxUint64, 3},
		"an existing lower one is raised": {[]string{"--memlock", "16Gi", "--from", "testdata/low.json"}, "", 16 << 30, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := parsedSpec(t, runGenerate(t, "", test.stderr, test.args...))
			want := []specs.POSIXRlimit{{Type: "RLIMIT_MEMLOCK", Hard: test.memlock, Soft: test.memlock}}
			if diff := cmp.Diff(want, s.Process.Rlimits); diff != "" {
				t.Errorf("rlimits (-want +got):\n%s", diff)
			}
			if got := capable(s); got != test.sets {
				t.Errorf("CAP_IPC_LOCK is in %d sets, want %d", got, test.sets)
			}
		})
	}
}

// A finite memlock does not hold where the base spec gives more: neither limits nor capabilities are taken away.
func TestGenerateWarnsOfALimitThatDoesNotHold(t *testing.T) {
	const (
		unlimited = "rdma-spec: warning: --from -: RLIMIT_MEMLOCK is unlimited, which is not lowered, so the memlock of " +
			"16Gi does not hold: remove that rlimit\n"
		voids = "rdma-spec: warning: --from -: it has CAP_IPC_LOCK, which voids the memlock of 16Gi for processes of " +
			"root: remove the capability\n"
	)
	for name, test := range map[string]struct{ process, args, stderr string }{
		"unlimited": {`"rlimits":[{"type":"RLIMIT_MEMLOCK","hard":18446744073709551615,"soft":18446744073709551615}]`,
			"--memlock 16Gi", unlimited},
		"a hard one": {`"rlimits":[{"type":"RLIMIT_MEMLOCK","hard":18446744073709551615,"soft":8388608}]`,
			"--memlock 16Gi", unlimited},
		"the first of two": {`"rlimits":[{"type":"RLIMIT_MEMLOCK","hard":18446744073709551615,"soft":0},{"type":"RLIMIT_MEMLOCK","hard":0,"soft":0}]`, "--memlock 16Gi", unlimited},
		"64Gi": {`"rlimits":[{"type":"RLIMIT_MEMLOCK","hard":68719476736,"soft":68719476736}]`,
			"--memlock 16Gi", strings.Replace(unlimited, "unlimited", "64Gi", 1)},
		"the same": {`"rlimits":[{"type":"RLIMIT_MEMLOCK","hard":17179869184,"soft":17179869184}]`,
			"--memlock 16Gi", ""},
		"unlimited is asked for": {`"rlimits":[{"type":"RLIMIT_MEMLOCK","hard":8388608,"soft":8388608}],"capabilities":{"bounding":["CAP_IPC_LOCK"]}`, "", ""},
		"IPC_LOCK":               {`"capabilities":{"bounding":["CAP_IPC_LOCK"]}`, "--memlock 16Gi", voids},
		"IPC_LOCK, and not wanted": {`"capabilities":{"permitted":["CAP_IPC_LOCK"]}`,
			"--memlock 16Gi --ipc-lock=false", voids},
		"both, for nodeadm": {`"rlimits":[{"type":"RLIMIT_MEMLOCK","hard":18446744073709551615,"soft":18446744073709551615}],"capabilities":{"effective":["CAP_IPC_LOCK"]}`, "--memlock 16Gi --for nodeadm", voids + unlimited},
	} {
		t.Run(name, func(t *testing.T) {
			runGenerate(t, `{"ociVersion":"1.0.2","process":{`+test.process+`},"linux":{}}`, test.stderr,
				append(strings.Fields(test.args), "--from", "-")...)
		})
	}
}

// The recipe that many follow by hand caps every container at 1024 open files.
func TestGenerateWarnsOf1024Files(t *testing.T) {
	const text = `{"ociVersion":"1.0.2","process":{"rlimits":[{"type":"RLIMIT_NOFILE","hard":1024,"soft":1024}]},"linux":{}}`
	got := runGenerate(t, text,
		"rdma-spec: warning: --from -: RLIMIT_NOFILE is 1024, so no container can open more than 1024 files: remove that "+
			"rlimit unless you want this\n", "--from", "-")
	if !strings.Contains(got, "RLIMIT_NOFILE") {
		t.Error("the rlimit is gone: somebody may mean it")
	}
}

func TestGenerateDevices(t *testing.T) {
	const noRDMACM = "rdma-spec: warning: the node has no sound /dev/infiniband/rdma_cm, so connections by RDMA_CM will " +
		"fail: load the module rdma_ucm\n"
	leftOut := func(name, why string) string {
		return fmt.Sprintf("rdma-spec: warning: HCA %s is left out: %s\n", name, why)
	}
	for name, test := range map[string]struct {
		root, devices string
		want          []string
		stderr        string
	}{
		"none":                      {hcatest.V100(t), "none", nil, ""},
		"none, where there is none": {hcatest.NoRDMA(t), "none", nil, ""},
		"all": {hcatest.V100(t), "all", []string{"uverbs0 231:192", "uverbs1 231:193", "rdma_cm 10:58"},
			""},
		"all: those that are up": {hcatest.A100(t), "all", []string{"uverbs1 231:193", "uverbs2 231:194", "rdma_cm 10:58"},
			leftOut("mlx5_0", "it has no ACTIVE port: name it to include it")},
		"one that is down": {hcatest.A100(t), "mlx5_0", []string{"uverbs0 231:192", "rdma_cm 10:58"}, ""},
		"by name, in that order": {hcatest.EightHCA(t), "mlx5_10,mlx5_2", []string{"uverbs10 231:202",
			"uverbs2 231:194", "rdma_cm 10:58"}, ""},
		"a name twice": {hcatest.V100(t), "mlx5_1,mlx5_1", []string{"uverbs1 231:193", "rdma_cm 10:58"}, ""},
		"no rdma_cm":   {hcatest.NoRDMACM(t), "mlx5_0", []string{"uverbs0 231:192"}, noRDMACM},
		"rdma_cm that is a folder": {hcatest.V100Node().Files().With(hcatest.Files{"dev/infiniband/rdma_cm/": ""}).Root(t),
			"mlx5_0", []string{"uverbs0 231:192"},
			strings.Replace(noRDMACM, "load the module rdma_ucm", "/dev/infiniband/rdma_cm is a folder, not a character device",
				1)},
		"EFA, which has no RDMA_CM": {hcatest.EFA(t), "efa_0", []string{"uverbs0 231:192"}, ""},
		"Omni-Path": {hcatest.OmniPath(t), "hfi1_1", []string{"uverbs1 231:193",
			"hfi1_1 242:1", "rdma_cm 10:58"}, ""},
		"one works, others not": {hcatest.Broken(t), "mlx5_0", []string{"uverbs0 231:192", "rdma_cm 10:58"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := parsedSpec(t, runGenerate(t, "", test.stderr, "--root", test.root, "--devices", test.devices))
			var got []string
			for _, d := range s.Linux.Devices {
				got = append(got, fmt.Sprintf("%s %d:%d", filepath.Base(d.Path), d.Major, d.Minor))
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("devices (-want +got):\n%s", diff)
			}
			if first := s.Linux.Resources.Devices[0]; first.Allow || len(s.Linux.Resources.Devices) != 1+len(test.want) {
				t.Errorf("device rules %v: want the denial of all, and one for each device", s.Linux.Resources.Devices)
			}
		})
	}
	got := words("generate --devices all --root", hcatest.Broken(t))
	if got.Status != 0 || !strings.Contains(got.Stdout, `"/dev/infiniband/uverbs0"`) || !strings.Contains(got.Stderr,
		leftOut("no_verbs", "it has no verbs device: load the module ib_uverbs")) {
		t.Errorf("broken HCAs hide the one that works: %+v", got)
	}
}

// Each platform's text is golden in spec/platform; here is which flags reach it.
func TestGenerateFor(t *testing.T) {
	const dockerNote = "rdma-spec: merge this into /etc/docker/daemon.json and restart docker: it affects every " +
		"container that is run without a memlock of its own\n"
	for name, test := range map[string]struct {
		args         []string
		stderr       string
		wants, lacks string
	}{
		"containerd":                {[]string{"containerd"}, "", `"ociVersion": "1.0.2"`, "#"},
		"docker, IPC_LOCK left out": {[]string{"docker"}, dockerNote, `"Hard": -1`, "IPC_LOCK"},
		"nodeadm, from": {[]string{"nodeadm", "--from", "testdata/unlimited.json"}, "",
			"hard: 9223372036854775807", "18446744073709551615"},
		"systemd, IPC_LOCK not asked for": {[]string{"systemd", "--ipc-lock=false"}, "", "LimitMEMLOCK=infinity", "IPC_LOCK"},
	} {
		t.Run(name, func(t *testing.T) {
			got := runGenerate(t, "", test.stderr, append([]string{"--for"}, test.args...)...)
			if !strings.Contains(got, test.wants) || strings.Contains(got, test.lacks) {
				t.Errorf("want %s and no %s in:\n%s", test.wants, test.lacks, got)
			}
		})
	}
}

// Each refusal is one line, names the flag or the file, and leaves nothing on stdout and the old file as it was.
func TestGenerateRefuses(t *testing.T) {
	file := filepath.Join(scratch.Folder(t), "spec.json")
	scratch.File(t, file, "old", 0o600)
	compareCalls(t, "generate-refuses", map[string]string{"FILE": file, "V100": hcatest.V100(t), "BROKEN": hcatest.Broken(t),
		"NO-RDMA": hcatest.NoRDMA(t)}, `
		generate --from -
		generate --from - --to FILE
		generate --from /nonexistent/spec.json
		generate --from V100
		generate --from=
		generate --from - --memlock 1Gi --ipc-lock <<< {}
		generate --from - --to FILE <<< {}

		generate --root V100 --devices mlx5_7
		generate --root V100 --devices mlx5_0,mlx5_7
		generate --root V100 --devices mlx5_0,mlx5_7 --to FILE
		generate --root V100 --devices mlx5_0,
		generate --root V100 --devices none,mlx5_0
		generate --root NO-RDMA --devices all
		generate --root BROKEN --devices no_verbs
		generate --root /nonexistent --devices all
		generate --root /nonexistent --devices all --to FILE`)
	if diff := cmp.Diff(map[string]string{"spec.json": "old"}, scratch.Tree(t, filepath.Dir(file))); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

func TestGenerateOutput(t *testing.T) {
	dir := scratch.Folder(t)
	file := filepath.Join(dir, "spec.json")
	scratch.File(t, file, "original", 0o640)
	unlimited, finite := runGenerate(t, "", ""), runGenerate(t, "", "", "--memlock", "1Gi")
	kept := func(backup string) string { return "rdma-spec: the former " + file + " is kept as " + backup + "\n" }

	if got := runGenerate(t, "", kept(file+".rdma-spec.bak"), "--to", file); got != "" {
		t.Errorf("stdout %q beside --to", got)
	}
	runGenerate(t, "", kept(file+".rdma-spec.bak.2"), "--to", file, "--memlock", "1Gi")
	runGenerate(t, "", "", "--to", file, "--memlock", "1Gi") // nothing to do
	runGenerate(t, "", "", "--to", file, "--memlock", "1Gi", "--from", file)
	if diff := cmp.Diff(map[string]string{"spec.json": finite, "spec.json.rdma-spec.bak": "original",
		"spec.json.rdma-spec.bak.2": unlimited}, scratch.Tree(t, dir)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if info, err := os.Stat(file); err != nil || info.Mode() != 0o640 {
		t.Errorf("mode %v, %v; want 0640", info.Mode(), err)
	}
	if got := call("", "generate", "--to", dir); got.Status != 3 || got.Stdout != "" || got.Stderr !=
		"rdma-spec: cannot write "+dir+": it is not a regular file\n" {
		t.Errorf("to a folder: %+v", got)
	}
}
