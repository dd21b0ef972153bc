// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package status_test

import (
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/cmd/internal/clitest"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri/critest"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/nodetest"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/rdma/rdmatest"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
)

// TestStatusUse has a table for what status says of who uses RDMA. An archive has the same.
func TestStatusUse(t *testing.T) {
	files, containers, kernel := nodetest.Using()
	root := files.Root(t)
	rdmatest.Serve(t, kernel...)
	node := nodetest.By(t, nodetest.MixedConfig, nodetest.Serve(t, root, containers...))
	archive := program.Collect(t, root, node...)
	masked := func(text string) string {
		text = regexp.MustCompile(`"started": ".*"`).ReplaceAllString(text, `"started": "…"`)
		return strings.NewReplacer(node[1], "CONFIG", root, "ROOT", node[5], "SOCKET").Replace(text)
	}
	var all strings.Builder
	for _, args := range []string{"", "--outside", "--queue-pairs ml/busy ml/both", "--outside -o json",
		"-o json ml/idle ml/busy ml/devx"} {
		got := program.Words("status "+args, node...)
		fmt.Fprintf(&all, "$ rdma-spec status %s\n%s--- stderr, %d\n%s\n", args, masked(got.Stdout), got.Status,
			masked(got.Stderr))
		if !strings.HasPrefix(args, "--queue-pairs") {
			here := program.Words("status "+args, "--root", archive)
			if diff := cmp.Diff(masked(got.Stdout), masked(here.Stdout)); diff != "" {
				t.Errorf("status %s (-there +here):\n%s", args, diff)
			}
		}
	}
	golden.Compare(t, filepath.Join("testdata", "use.txt"), all.String())
}

// What the kernel does not tell is unknown, and never none: of ml/idle, which holds mlx5_0 and has done nothing, and of
// who uses RDMA outside.
func TestStatusUseUnknown(t *testing.T) {
	files, containers, kernel := nodetest.Using()
	runtime := critest.Serve(t, critest.Options{}, containers...)
	file, says := clitest.File(t, nodetest.MixedConfig), golden.Cases{}
	for name, change := range map[string]func(files hcatest.Files, kernel []rdmatest.HCA) []rdmatest.HCA{
		"known": func(_ hcatest.Files, k []rdmatest.HCA) []rdmatest.HCA { return k },
		"an old kernel": func(_ hcatest.Files, k []rdmatest.HCA) []rdmatest.HCA {
			return []rdmatest.HCA{{Name: "mlx5_0", Old: true}, k[1]}
		},
		"a thread that has ended": func(_ hcatest.Files, k []rdmatest.HCA) []rdmatest.HCA {
			return []rdmatest.HCA{{Name: "mlx5_0", Contexts: []rdmatest.Context{{}}}, k[1]}
		},
		"another network namespace": func(_ hcatest.Files, k []rdmatest.HCA) []rdmatest.HCA { return k[1:] },
		"exclusive": func(files hcatest.Files, k []rdmatest.HCA) []rdmatest.HCA {
			files["sys/module/ib_core/parameters/netns_mode"] = "N\n"
			return k
		},
		"exclusive, in the node's network": func(files hcatest.Files, k []rdmatest.HCA) []rdmatest.HCA {
			files["sys/module/ib_core/parameters/netns_mode"] = "N\n"
			files["proc/1/ns/net"] = hcatest.Link("net:[2]")
			return k
		},
		"another PID namespace": func(files hcatest.Files, k []rdmatest.HCA) []rdmatest.HCA {
			files[nodetest.SelfStatus] = "NSpid:\t4000\t7\n"
			return k
		},
	} {
		changed := maps.Clone(files)
		rdmatest.Serve(t, change(changed, kernel)...)
		root := changed.Root(t)
		node := []string{"--config", file, "--root", root, "--runtime-endpoint", runtime.Socket}
		got := program.Words("status ml/idle", node...)
		names := strings.NewReplacer(file, "CONFIG", root, "ROOT", runtime.Socket, "SOCKET")
		says.Add(t, name, names.Replace(got.Stdout+got.Stderr)+
			fmt.Sprintf("exit status %d, --outside %d\n", got.Status, program.Words("status --outside", node...).Status))
	}
	says.Compare(t, "testdata/use-unknown.txt")
}

// Where no RDMA container holds an HCA of which the kernel does not list the users, nobody says that all is well.
func TestStatus_outsideOnOldKernel(t *testing.T) {
	files, containers, _ := nodetest.Using()
	privileged := slices.DeleteFunc(containers, func(c critest.Container) bool { return c.Pod != "privileged" })
	names := map[string]string{"NODE": files.Root(t), "CONFIG": clitest.File(t, nodetest.MixedConfig),
		"SOCKET": critest.Serve(t, critest.Options{}, privileged...).Socket}
	rdmatest.Serve(t, rdmatest.HCA{Name: "mlx5_0", Old: true})
	program.Compare(t, "old-kernel", names, `
		status --config CONFIG --root NODE --runtime-endpoint SOCKET
		status --outside --config CONFIG --root NODE --runtime-endpoint SOCKET`)
}
