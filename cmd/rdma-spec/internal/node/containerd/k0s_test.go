// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
	"github.com/rdma-spec/rdma-spec/test/testing/race"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

const (
	k0sFile  = "etc/k0s/containerd.toml"
	k0sDrops = "etc/k0s/containerd.d/"
	k0sCRI   = "run/k0s/containerd-cri.toml"
	nriOff   = "version = 2\n[plugins.'io.containerd.nri.v1.nri']\n  disable = true\n"
	k0sMade  = "# k0s_managed=true\nversion = 2\nimports = [\n\t\"/run/k0s/containerd-cri.toml\",\n]\n"
	k0sMadeV = "# k0s_managed=true\nversion = 3\nimports = [\"/etc/k0s/containerd.d/gone.toml\", \"/run/k0s/containerd-cri.toml\"]\n"
	imageV2  = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\n  sandbox_image = \"k0s/pause\"\n"
	imageV3  = "version = 3\n[plugins.'io.containerd.cri.v1.images'.pinned_images]\n  sandbox = \"k0s/pause\"\n"
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
		"drop-ins about CRI": {"1.7.35", map[string]string{k0sFile: k0sMade, k0sCRI: imageV2 + runcV2,
			k0sDrops + "rdma.toml": rdmaV2 + "privileged_without_host_devices = true\n", k0sDrops + "nri.toml": strings.ReplaceAll(nriOff, "true", "false"),
			k0sDrops + "more.toml": rdmaV2,
		}, next{files: "/" + k0sFile + " /" + k0sDrops + "nri.toml /" + k0sCRI, handlers: "rdma runc"}},
		"drop-ins about CRI, before a start since the boot": {"1.7.35", map[string]string{k0sFile: k0sMade, k0sDrops + "rdma.toml": rdmaV2},
			next{files: "/" + k0sFile + " /" + k0sCRI, handlers: "rdma runc", nriOff: true}},
		"a drop-in about CRI, before the first start": {"1.7.35", map[string]string{k0sDrops + "rdma.toml": rdmaV2},
			next{files: "/" + k0sFile + " /" + k0sCRI, handlers: "rdma runc", nriOff: true}},
		"a drop-in about CRI that is gone": {"1.7.35", map[string]string{k0sFile: k0sMade, k0sCRI: imageV2 + runcV2 + rdmaV2[len("version = 2\n"):]},
			next{files: "/" + k0sFile + " /" + k0sCRI, handlers: "runc", nriOff: true}},
		"drop-ins about CRI with containerd 2.x": {"2.2.9", map[string]string{k0sFile: k0sMadeV,
			k0sCRI: imageV3, k0sDrops + "rdma.toml": rdmaV3}, next{files: "/" + k0sFile + " /" + k0sCRI, handlers: "rdma runc"}},
		"a drop-in about CRI that is gone with containerd 2.x": {"2.2.9", map[string]string{k0sFile: k0sMadeV,
			k0sCRI: imageV3 + rdmaV3[len("version = 3\n"):], k0sDrops + "a.toml": nriOff},
			next{files: "/" + k0sFile + " /" + k0sDrops + "a.toml /" + k0sCRI, handlers: "runc", nriOff: true}},
		"a drop-in that is also about CRI counts last": {"1.7.35", map[string]string{k0sFile: k0sMade, k0sDrops + "a.toml": nriOff + runcV2,
			k0sDrops + "z.toml": strings.ReplaceAll(nriOff, "true", "false")},
			next{files: "/" + k0sFile + " /" + k0sDrops + "z.toml /" + k0sCRI, handlers: "runc", nriOff: true}},
		"a drop-in that is also about CRI takes values away": {"1.7.35", map[string]string{k0sFile: k0sMade, k0sDrops + "a.toml": nriOff + runcV2,
			k0sDrops + "z.toml": nriOff + "  socket_path = '/x.sock'\n"}, next{files: "/" + k0sFile + " /" + k0sDrops + "z.toml /" + k0sCRI,
			handlers: "runc", nriOff: true, ignored: "/" + k0sDrops + "z.toml: socket_path"}},
		"a drop-in that is not TOML": {"1.7.35", map[string]string{k0sFile: k0sMade, k0sDrops + "a.toml": "[x]\n[x]\n"},
			next{err: "so k0s does not start containerd"}},
	} {
		for version := range strings.FieldsSeq(test.versions) {
			t.Run(name+"/"+version, func(t *testing.T) {
				t.Parallel()
				if installed[version] == "" {
					t.Skip("no such containerd: `make e2e` builds it for the node")
				}
				root := scratch.Dir(t, "var/lib/k0s/bin")
				scratch.Files(t, root, test.files, 0o600)
				if err := os.Link(installed[version], filepath.Join(root, "var/lib/k0s/bin/containerd")); err != nil {
					t.Fatal(err)
				}
				got, tree := answer(t, root)
				if strings.HasSuffix(got.err, test.want.err) {
					got.err = test.want.err
				}
				d := containerd.Find(root)[0]
				all, _ := d.Files(t.Context(), nil) // as the answer says
				for _, i := range d.Ignored(t.Context(), all, tree) {
					if want := "write the whole section to one file in " + d.DropIns; i.Fix != want {
						t.Errorf("fix %q, want %q", i.Fix, want)
					}
				}
				runtime, _ := tomledit.Lookup(tree, "plugins", "io.containerd.grpc.v1.cri", "sandbox_image")
				image, _ := tomledit.Lookup(tree, "plugins", "io.containerd.cri.v1.images", "pinned_images", "sandbox")
				if kept := runtime == "k0s/pause" || image == "k0s/pause"; kept != (test.files[k0sCRI] != "") {
					t.Errorf("the image of sandboxes is %v, %v", runtime, image)
				}
				if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(next{})); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		}
	}
}
