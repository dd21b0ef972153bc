// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package cdi_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/cmd/internal/clitest"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/cdi"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// program has the commands that these tests call.
var program = clitest.New(node.OpenRoot, func() []*cobra.Command {
	return []*cobra.Command{cdi.Command()}
})

// hookRoot makes a node that has the hook's program.
func hookRoot(t *testing.T, files hcatest.Files) string {
	t.Helper()
	root := files.With(hcatest.Files{"usr/local/bin/rdma-hook": "#!"}).Root(t)
	if err := os.Chmod(filepath.Join(root, "usr/local/bin/rdma-hook"), 0o755); err != nil {
		t.Fatal(err)
	}
	return root
}

func TestCDIGenerate(t *testing.T) {
	root := hookRoot(t, hcatest.V100Node().Files())
	for args, want := range map[string]struct {
		status         int
		stdout, stderr string // what they contain; "" for nothing
	}{
		"":                            {0, "  name: mlx5_1\n", ""},
		"--devices mlx5_1":            {0, "# Made with: rdma-spec cdi generate --devices mlx5_1 --memlock unlimited", ""},
		"--memlock 16Gi --required":   {0, "- 16Gi\n    - --required\n", ""},
		"--memlock none":              {0, "--memlock none\n", ""},
		"--management":                {0, "path: /dev/infiniband/umad0\n", ""},
		"--hook /none --memlock none": {0, "--memlock none\n", ""},
		"--hook /none": {0, "path: /none\n",
			"warning: the hook /none does not exist, so containers would not start"},
		"--devices mlx5_1,mlx5_7": {1, "  name: mlx5_1\n",
			`warning: this node has no HCA "mlx5_7": to list the HCAs, run 'rdma-spec devices'`},
		"--devices mlx5_7":           {1, "", "warning: no HCA on this node can be used"},
		"--devices mlx5_1,":          {2, "", "--devices contains an empty name"},
		"--memlock much":             {2, "", `memlock "much" is not a size`},
		"--hook rdma-hook":           {2, "", `--hook "rdma-hook": specify an absolute path`},
		"--to /tmp/rdma-spec-x.json": {2, "", "the name of a YAML CDI file"},
		"mlx5_0":                     {2, "", "unknown command"},
		"--root /none":               {3, "", "no such file or directory"},
	} {
		if !strings.Contains(args, "--root") {
			args += " --root " + root
		}
		got := program.Words("cdi generate " + args)
		if got.Status != want.status || !strings.Contains(got.Stdout, want.stdout) ||
			(want.stdout == "") != (got.Stdout == "") ||
			!strings.Contains(got.Stderr, want.stderr) || (want.stderr == "") != (got.Stderr == "") {
			t.Errorf("cdi generate %s: %+v\nwant %+v", args, got, want)
		}
	}
}

// The file follows the node: an HCA that goes is out of it, and without any there is no file.
func TestCDIFileFollowsTheNode(t *testing.T) {
	two := hcatest.V100Node()
	one := hcatest.V100Node()
	one.HCAs = one.HCAs[:1]
	none := hcatest.Node{}
	file := filepath.Join(scratch.Dir(t), "rdma.yaml")
	for _, step := range []struct {
		node    hcatest.Node
		status  int
		devices string
		stderr  string
	}{
		{two, 0, "mlx5_0 mlx5_1", ""},
		{one, 0, "mlx5_0", ""},
		{none, 1, "", "rdma-spec: warning: no HCA on this node can be used: to see the reasons, run 'rdma-spec devices'\nrdma-spec: warning: " +
			file + " was removed\n"},
		{none, 1, "", "rdma-spec: warning: no HCA on this node can be used: to see the reasons, run 'rdma-spec devices'\n"},
		{two, 0, "mlx5_0 mlx5_1", ""},
	} {
		got := program.Call("", "cdi", "generate", "--to", file, "--root", hookRoot(t, step.node.Files()))
		text, err := os.ReadFile(file)
		var devices []string
		for line := range strings.Lines(string(text)) {
			if name, found := strings.CutPrefix(strings.TrimSpace(line), "name: mlx"); found {
				devices = append(devices, "mlx"+name)
			}
		}
		if got.Status != step.status || got.Stdout != "" || strings.Join(devices, " ") != step.devices ||
			(err != nil) != (step.devices == "") || got.Stderr != step.stderr {
			t.Errorf("%d HCAs: %+v, %v\n%s", len(step.node.HCAs), got, err, text)
		}
	}
}

func TestCDIList(t *testing.T) {
	names := map[string]string{"NODE": hookRoot(t, hcatest.V100Node().Files().With(hcatest.Files{"run/": "", "var/run": hcatest.Link("../run")}))}
	program.Compare(t, "list", names, `
		cdi list --root NODE
		cdi generate --to NODE/var/run/cdi/rdma.yaml --devices mlx5_1 --root NODE
		cdi list --root NODE`)
	if err := os.Remove(filepath.Join(names["NODE"], "usr/local/bin/rdma-hook")); err != nil {
		t.Fatal(err)
	}
	program.Compare(t, "without-hook", names, `
		cdi list --root NODE
		cdi list -o json --root NODE`)
}
