// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/test/testing/race"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

const (
	k0sFile  = "etc/k0s/containerd.toml"
	k0sDrops = "etc/k0s/containerd.d/"
	nriOff   = "version = 2\n[plugins.'io.containerd.nri.v1.nri']\n  disable = true\n"
)

// k0s writes its configuration anew at each start, unless people own it.
func TestK0s(t *testing.T) {
	if race.Detector {
		t.Skip("runs containerd again and again, and the race detector does not see it")
	}
	installed := programs(t)
	for name, test := range map[string]struct {
		versions string
		files    map[string]string
		want     next
	}{
		"people own the configuration": {"1.7.35 2.2.9", map[string]string{
			k0sFile: "version = 2\n# k0s_managed=true\n[plugins.'io.containerd.nri.v1.nri']\n  disable = false\n", k0sDrops + "a.toml": nriOff,
		}, next{files: "/" + k0sFile, handlers: "runc"}},
		"an empty line before the mark": {"2.2.9", map[string]string{
			k0sFile: "\n# k0s_managed=true\nversion = 2\n", k0sDrops + "a.toml": nriOff,
		}, next{files: "/" + k0sFile + " /" + k0sDrops + "a.toml", handlers: "runc", nriOff: true}},
		"before its first start": {"2.2.9", map[string]string{k0sDrops + "a.toml": nriOff},
			next{files: "/" + k0sFile + " /" + k0sDrops + "a.toml", handlers: "runc", nriOff: true}},
	} {
		for version := range strings.FieldsSeq(test.versions) {
			t.Run(name+"/"+version, func(t *testing.T) {
				t.Parallel()
				if installed[version] == "" {
					t.Skip("no such containerd: `make e2e` builds it for the node")
				}
				root := scratch.Folder(t, "var/lib/k0s/bin")
				scratch.Files(t, root, test.files, 0o600)
				if err := os.Link(installed[version], filepath.Join(root, "var/lib/k0s/bin/containerd")); err != nil {
					t.Fatal(err)
				}
				got, _ := answer(t, root)
				if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(next{})); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		}
	}
}
