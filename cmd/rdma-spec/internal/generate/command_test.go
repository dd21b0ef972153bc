// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package generate_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/cmd/internal/clitest"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/generate"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/nodetest"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// program has the commands that these tests call.
var program = clitest.New(node.OpenRoot, func() []*cobra.Command {
	return []*cobra.Command{generate.Command()}
})

// generate runs the subcommand; it must succeed, and say no more than wanted.
func runGenerate(t *testing.T, stdin, stderr string, args ...string) string {
	t.Helper()
	got := program.Call(stdin, append([]string{"generate"}, args...)...)
	if got.Status != 0 || got.Stderr != stderr {
		t.Fatalf("generate %v: exit status %d; stderr %q, want %q", args, got.Status, got.Stderr, stderr)
	}
	return got.Stdout
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

// What flags add to a spec. A finite memlock does not hold where the base spec gives more, which is said: neither
// limits nor capabilities are taken away.
func TestGenerate(t *testing.T) {
	from := func(process string) string { return `{"ociVersion":"1.0.2","process":{` + process + `},"linux":{}}` }
	memlock := func(hard, soft string) string {
		return `{"type":"RLIMIT_MEMLOCK","hard":` + hard + `,"soft":` + soft + `}`
	}
	const unlimited = "18446744073709551615"
	program.Compare(t, "generate", map[string]string{
		"UNLIMITED":   from(`"rlimits":[` + memlock(unlimited, unlimited) + `]`),
		"HARD":        from(`"rlimits":[` + memlock(unlimited, "8388608") + `]`),
		"TWICE":       from(`"rlimits":[` + memlock(unlimited, "0") + "," + memlock("0", "0") + `]`),
		"64GI":        from(`"rlimits":[` + memlock("68719476736", "68719476736") + `]`),
		"16GI":        from(`"rlimits":[` + memlock("17179869184", "17179869184") + `]`),
		"BOUNDED":     from(`"capabilities":{"bounding":["CAP_IPC_LOCK"]}`),
		"PERMITTED":   from(`"capabilities":{"permitted":["CAP_IPC_LOCK"]}`),
		"LOW-BOUNDED": from(`"rlimits":[` + memlock("8388608", "8388608") + `],"capabilities":{"bounding":["CAP_IPC_LOCK"]}`),
		"BOTH":        from(`"rlimits":[` + memlock(unlimited, unlimited) + `],"capabilities":{"effective":["CAP_IPC_LOCK"]}`),
		"1024-FILES":  from(`"rlimits":[{"type":"RLIMIT_NOFILE","hard":1024,"soft":1024}]`),
	}, `
		generate
		generate --ipc-lock=false
		# a finite one means no IPC_LOCK, unless asked for
		generate --memlock 16Gi
		generate --memlock 16Gi --ipc-lock
		generate --memlock 16Gi --ipc-lock=false
		generate --memlock 18446744073709551615
		generate --memlock 16Gi --from testdata/low.json

		generate --from - --memlock 16Gi <<< UNLIMITED
		generate --from - --memlock 16Gi <<< HARD
		generate --from - --memlock 16Gi <<< TWICE
		generate --from - --memlock 16Gi <<< 64GI
		generate --from - --memlock 16Gi <<< 16GI
		generate --from - --memlock 16Gi <<< BOUNDED
		generate --from - --memlock 16Gi --ipc-lock=false <<< PERMITTED
		generate --from - <<< LOW-BOUNDED
		generate --from - --memlock 16Gi --for nodeadm <<< BOTH
		# the recipe that many follow by hand caps every container at 1024 open files, and somebody may mean it
		generate --from - <<< 1024-FILES

		# each platform's text is golden in spec/platform: here is which flags reach it
		generate --for docker
		generate --for nodeadm --from testdata/unlimited.json
		generate --for systemd --ipc-lock=false`, nodetest.SpecGist)
}

func TestGenerateDevices(t *testing.T) {
	program.Compare(t, "generate-devices", map[string]string{
		"V100": hcatest.V100(t), "A100": hcatest.A100(t), "EIGHT": hcatest.EightHCA(t), "NO-RDMA": hcatest.NoRDMA(t),
		"NO-CM": hcatest.NoRDMACM(t), "EFA": hcatest.EFA(t), "OMNI-PATH": hcatest.OmniPath(t), "BROKEN": hcatest.Broken(t),
		"FOLDER-CM": hcatest.V100Node().Files().With(hcatest.Files{"dev/infiniband/rdma_cm/": ""}).Root(t),
	}, `
		generate --devices none --root V100
		generate --devices none --root NO-RDMA
		generate --devices all --root V100
		# all: those that are up
		generate --devices all --root A100
		generate --devices mlx5_0 --root A100
		# by name, in that order, and once
		generate --devices mlx5_10,mlx5_2 --root EIGHT
		generate --devices mlx5_1,mlx5_1 --root V100
		generate --devices mlx5_0 --root NO-CM
		generate --devices mlx5_0 --root FOLDER-CM
		# EFA has no RDMA_CM
		generate --devices efa_0 --root EFA
		generate --devices hfi1_1 --root OMNI-PATH
		# broken HCAs do not hide the one that works
		generate --devices mlx5_0 --root BROKEN
		generate --devices all --root BROKEN`, nodetest.SpecGist)
}

// Each refusal is one line, names the flag or the file, and leaves nothing on stdout and the old file as it was.
func TestGenerateRefuses(t *testing.T) {
	file := filepath.Join(scratch.Dir(t), "spec.json")
	scratch.File(t, file, "old", 0o600)
	program.Compare(t, "generate-refuses", map[string]string{"FILE": file, "V100": hcatest.V100(t), "BROKEN": hcatest.Broken(t),
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
	dir := scratch.Dir(t)
	file := filepath.Join(dir, "spec.json")
	scratch.File(t, file, "original", 0o640)
	unlimited, finite := runGenerate(t, "", ""), runGenerate(t, "", "", "--memlock", "1Gi")
	kept := func(backup string) string {
		return "rdma-spec: the previous content of " + file + " is now in " + backup + "\n"
	}

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
	if got := program.Call("", "generate", "--to", dir); got.Status != 3 || got.Stdout != "" || got.Stderr !=
		"rdma-spec: cannot write "+dir+": not a regular file\n" {
		t.Errorf("to a directory: %+v", got)
	}
}
