// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package configure

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
	"github.com/rdma-spec/rdma-spec/test/testing/race"
	"github.com/rdma-spec/rdma-spec/test/testing/repository"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// Where one file alone misleads, a feature is in effect after the next start, or the command says what is in the way.
func TestConfigureOddNodes(t *testing.T) {
	if race.Detector {
		t.Skip("runs containerd again and again, and the race detector does not see it")
	}
	const (
		config  = "etc/containerd/config.toml"
		nriOff  = "[plugins.\"io.containerd.nri.v1.nri\"]\n  disable = true\n"
		unit    = "usr/lib/systemd/system/containerd.service"
		k3s     = "var/lib/rancher/k3s/agent/etc/containerd/"
		k0s     = "etc/k0s/"
		k0sMade = "# k0s_managed=true\nversion = 2\nimports = [\n\t\"/run/k0s/containerd-cri.toml\",\n]\n"
		runtime = "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes."
		runcV2  = runtime + "runc]\n  runtime_type = \"io.containerd.runc.v2\"\n"
	)
	for name, test := range map[string]struct {
		versions, args string
		files          map[string]string
		want           string // a file that is written, a part of the error, or "already"
	}{
		"a byte order mark that is refused": {"2.4.2", "handler rdma --like runc", map[string]string{config: "version = 3\nimports = ['x.toml']\n",
			"etc/containerd/x.toml": "\xef\xbb\xbfversion = 3\n"}, "error: x.toml begins with a byte order mark, which containerd 2.x refuses: remove the mark with sed"},
		"a pattern that takes the base spec": {"2.4.2", "handler rdma --like runc", map[string]string{config: "version = 3\nimports = [\"/etc/containerd/*\"]\n" + nriOff},
			`error: config.toml imports "/etc/containerd/*", which also matches the base spec /etc/containerd/rdma-spec-rdma.json`},
		"a pattern of an import that takes the base spec": {"1.7.35", "handler rdma --like runc", map[string]string{config: "version = 2\nimports = ['a.toml']\n",
			"etc/containerd/a.toml": "version = 2\nimports = ['rdma*']\n"}, `error: a.toml imports "/etc/containerd/rdma*", which also matches the base spec`},
		"a pattern that takes our directory": {"2.4.2", "nri", map[string]string{config: "version = 3\nimports = [\"/etc/containerd/*\"]\n" + nriOff},
			"etc/containerd/90-rdma-spec-nri.toml"},
		"imports of imports": {"2.4.2", "nri", map[string]string{config: "version = 3\nimports = [\"/etc/containerd/site.toml\"]\n",
			"etc/containerd/site.toml": "version = 3\nimports = [\"/etc/containerd/site.d/*.toml\"]\n", "etc/containerd/site.d/off.toml": "version = 3\n" + nriOff},
			"etc/containerd/rdma-spec.d/"},
		"a handler of an import of an import": {"1.7.35 2.4.2", "handler rdma --like gpu", map[string]string{config: "version = 2\nimports = [\"/etc/containerd/site.toml\"]\n",
			"etc/containerd/site.toml": "version = 2\nimports = [\"site.d/*.toml\"]\n", "etc/containerd/site.d/a.toml": "version = 2\n" + strings.Replace(runcV2, "runc]", "gpu]", 1)},
			"etc/containerd/"},
		"relative imports behind a link": {"2.4.2", "nri", map[string]string{config: "-> ../../opt/site/containerd.toml",
			"opt/site/containerd.toml": "version = 3\nimports = [\"conf.d/*.toml\"]\n", "etc/containerd/conf.d/50-off.toml": "version = 3\n" + nriOff},
			"etc/containerd/conf.d/"},
		"a unit that names another file": {"2.2.9 2.4.2", "nri", map[string]string{config: "version = 3\n" + nriOff, "etc/cri/config.toml": "version = 3\n" + nriOff,
			unit: "[Service]\nExecStart=/usr/bin/containerd --config /etc/cri/config.toml\n"}, "etc/cri/"},
		"a drop-in of a unit that names another file": {"1.7.35", "handler rdma --like runc", map[string]string{config: "", "etc/cri/config.toml": "version = 2\n" + runcV2,
			"run/systemd/system/containerd.service.d/x.conf": "[Service]\nExecStart=\nExecStart=/usr/bin/containerd -c=/etc/cri/config.toml\n"}, "etc/cri/rdma-spec-rdma.json"},
		"no version": {"2.2.9", "handler rdma --like runc", map[string]string{config: "[plugins.cri.containerd.runtimes.nvidia]\n  runtime_type = \"io.containerd.runc.v2\"\n"},
			"error: the file has no version, so containerd 2.2.9 ignores the file's CRI settings: first, run 'containerd --config "},
		"an older version than that of a drop-in": {"2.2.9", "handler rdma --like runc", map[string]string{config: "version = 2\nimports = ['x.toml']\n" + runcV2,
			"etc/containerd/x.toml": "version = 3\n[plugins.'io.containerd.cri.v1.images']\nmax_concurrent_downloads = 4\n"},
			"error: the file has version 2, /etc/containerd/x.toml has version 3, and containerd 2.2.9 ignores the CRI settings of the file with the older version"},
		"a handler by the name that CRI has in version 2": {"2.2.9", "handler rdma --like gpu", map[string]string{config: "version = 3\n" + strings.Replace(runcV2, "runc]", "gpu]", 1)},
			"error: the file has version 3, so containerd 2.2.9 ignores the file's io.containerd.grpc.v1.cri section: first, rename the section in "},
		"a handler by the name that CRI has in version 3": {"2.2.9 2.4.2", "handler rdma --like gpu", map[string]string{config: "version = 2\n" +
			"[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.gpu]\n  runtime_type = \"io.containerd.runc.v2\"\n"}, "etc/containerd/"},
		"an older drop-in that has another handler": {"2.2.9", "handler rdma --like runc", map[string]string{config: "version = 3\nimports = ['conf.d/*.toml']\n" +
			"[plugins.'io.containerd.cri.v1.runtime']\nenable_selinux = false\n", "etc/containerd/conf.d/x.toml": "version = 2\n" + strings.Replace(runcV2, "runc]", "gpu]", 1)}, "etc/containerd/conf.d/"},
		"no version, where that is migrated": {"2.4.2", "handler rdma --like nvidia", map[string]string{config: "[plugins.cri.containerd.runtimes.nvidia]\n  runtime_type = \"io.containerd.runc.v2\"\n"},
			"etc/containerd/"},
		"NRI off in disabled_plugins": {"1.7.35 2.4.2", "handler rdma --like runc", map[string]string{config: "version = 2\n" +
			"disabled_plugins = ['io.containerd.nri.v1.nri']\n" + runcV2}, "etc/containerd/"},
		"CRI's images off in disabled_plugins": {"2.4.2", "nri", map[string]string{config: "version = 3\n" +
			"disabled_plugins = ['io.containerd.cri.v1.images']\n" + nriOff}, "error: /etc/containerd/config.toml turns off the io.containerd.cri.v1.images plugin"},
		"a base spec of another handler that is missing": {"1.7.35 2.4.2", "nri", map[string]string{config: "version = 2\n" + nriOff + runtime +
			"theirs]\n  base_runtime_spec = '/etc/x.json'\n"}, "error: containerd cannot use the base spec /etc/x.json, and "},
		"a base spec of another handler that is no JSON": {"2.4.2", "handler rdma --like runc", map[string]string{config: "version = 2\n" + runtime +
			"theirs]\n  base_runtime_spec = '/etc/x.json'\n", "etc/x.json": "{]"}, "error: containerd cannot use the base spec /etc/x.json, and "},
		"a base spec of ours that is missing": {"2.4.2", "handler rdma --like runc", map[string]string{config: "version = 2\n" + runcV2 +
			strings.Replace(runcV2, "runc]", "rdma]", 1) + "  base_runtime_spec = '/etc/containerd/rdma-spec-rdma.json'\n"}, "etc/containerd/rdma-spec-rdma.json"},
		"a base spec of ours in place that is missing": {"2.4.2", "handler runc --in-place", map[string]string{config: "version = 2\n" + runcV2 +
			"  base_runtime_spec = '/etc/containerd/rdma-spec-runc.json'\n"}, "error: containerd cannot use the base spec /etc/containerd/rdma-spec-runc.json, and "},
		"a handler without a type": {"2.2.9", "handler rdma --like bare", map[string]string{config: "version = 2\n" + runtime + "bare]\n  runtime_root = '/x'\n"},
			`error: the handler "bare" has no runtime_type, so its pods do not start: set runtime_type in `},
		"a handler without a type, in place": {"2.2.9", "handler bare --in-place", map[string]string{config: "version = 2\n" + runtime +
			"bare]\n  runtime_root = '/x'\n"}, `error: the handler "bare" has no runtime_type`},
		"a unit that names a file in another directory": {"2.4.2", "nri", map[string]string{config: "version = 3\n" + nriOff,
			"opt/site/c.toml": "version = 3\n" + nriOff, unit: "[Service]\nExecStart=/usr/bin/containerd --config /opt/site/c.toml\n"}, "opt/site/"},
		"a base spec that another handler names": {"2.4.2", "handler rdma --like runc", map[string]string{config: "version = 2\n" + runcV2 +
			runtime + "theirs]\n  runtime_type = 'io.containerd.runc.v2'\n  base_runtime_spec = '/etc/containerd/rdma-spec-rdma.json'\n",
			"etc/containerd/rdma-spec-rdma.json": `{"ociVersion": "1.1.0", "linux": {}}`},
			"error: rdma-spec-rdma.json is also the base_runtime_spec of theirs, so the change would affect all containers of theirs: set " +
				"a different base_runtime_spec for theirs, or use --force"},
		"a base spec that another handler names, by force": {"2.4.2", "handler rdma --like runc --force", map[string]string{config: "version = 2\n" + runcV2 +
			runtime + "theirs]\n  runtime_type = 'io.containerd.runc.v2'\n  base_runtime_spec = '/etc/containerd/rdma-spec-rdma.json'\n",
			"etc/containerd/rdma-spec-rdma.json": `{"ociVersion": "1.1.0", "linux": {}}`}, "etc/containerd/rdma-spec-rdma.json"},
		"K3s, whose older template is not rendered yet": {"2.4.2", "handler rdma --like runc", map[string]string{
			k3s + "config.toml": "# File generated by k3s.\nversion = 3\nimports = [\"/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.d/*.toml\"]\n" +
				"[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\n  runtime_type = \"io.containerd.runc.v2\"\n",
			k3s + "config.toml.tmpl": "version = 2\n" + runcV2 + strings.Replace(runcV2, "runc]", "nvidia]", 1),
		}, k3s + "config.toml.tmpl"},
		"K3s, whose newer template imports nothing": {"2.4.2", "nri", map[string]string{
			k3s + "config.toml":         "version = 3\nimports = [\"/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.d/*.toml\"]\n",
			k3s + "config-v3.toml.tmpl": "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\n  enable_selinux = false\n[plugins.'io.containerd.nri.v1.nri']\n  disable = true\n",
		}, k3s + "config-v3.toml.tmpl"},
		"K3s, whose template is as rendered": {"2.4.2", "handler rdma --like runc", map[string]string{
			k3s + "config.toml": "version = 3\nimports = [\"/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.d/*.toml\"]\n" +
				"[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\n  runtime_type = \"io.containerd.runc.v2\"\n[debug]\n  level = 'info'\n",
			k3s + "config-v3.toml.tmpl": containerd.DefaultTemplate + "[debug]\n  level = 'info'\n",
		}, k3s + "config-v3.toml.d/"},
		"k0s, whose configuration people own": {"2.2.9", "nri", map[string]string{k0s + "containerd.toml": "version = 3\n" + nriOff},
			k0s + "rdma-spec.d/"},
		"k0s, whose configuration people own, with containerd 1.x": {"1.7.35", "nri", map[string]string{k0s + "containerd.toml": "version = 2\n" + nriOff},
			k0s + "containerd.toml"},
		"k0s with containerd 1.x": {"1.7.35", "nri", map[string]string{k0s + "containerd.toml": k0sMade}, k0s + "containerd.d/90-rdma-spec-nri.toml"},
		"k0s with containerd 1.x and a drop-in about CRI": {"1.7.35", "handler rdma --like nvidia", map[string]string{k0s + "containerd.toml": k0sMade,
			k0s + "containerd.d/nvidia.toml": "version = 2\n" + strings.Replace(runcV2, "runc]", "nvidia]", 1)}, k0s + "containerd.d/90-rdma-spec-handler-rdma.toml"},
		"k0s with containerd 1.x and a drop-in about NRI": {"1.7.35", "nri", map[string]string{k0s + "containerd.toml": k0sMade,
			k0s + "containerd.d/nri.toml": "version = 2\n" + nriOff + "  socket_path = '/x.sock'\n"}, k0s + "containerd.d/zz-rdma-spec-nri.toml"},
		"k0s whose drop-in about CRI turns NRI off": {"1.7.35", "nri", map[string]string{k0s + "containerd.toml": k0sMade,
			k0s + "containerd.d/a.toml": "version = 2\n" + nriOff + runcV2}, "error: cannot make the change: " +
			"/etc/k0s/containerd.d/90-rdma-spec-nri.toml: the effective configuration would differ from the intended configuration at " +
			"plugins.io.containerd.nri.v1.nri.disable"},
		"CRI-O beside a containerd without CRI": {"2.4.2", "nri", map[string]string{config: "disabled_plugins = [\"cri\"]\n",
			"etc/crio/crio.conf": "[crio.nri]\nenable_nri = false\n"}, "etc/crio/crio.conf.d/"},
		"CRI-O beside an empty containerd": {"2.4.2", "nri", map[string]string{config: "", "etc/crio/crio.conf": "[crio.nri]\nenable_nri = false\n"},
			"error: the node has CRI-O (--runtime crio) and containerd (--runtime containerd --config "},
	} {
		for version := range strings.FieldsSeq(test.versions) {
			t.Run(name+"/"+version, func(t *testing.T) {
				root := oddNode(t, repository.Containerd(t, version), test.files, unit)
				if part, isError := strings.CutPrefix(test.want, "error: "); isError {
					before, got := nodeFiles(t, root), configure(root, test.args) // which may print what people have to do
					if got.Status != 3 || !strings.Contains(strings.ReplaceAll(got.Stderr, root, ""), part) {
						t.Errorf("%+v, want %s", got, part)
					}
					unchanged(t, root, before, test.args)
					return
				}
				if got := configure(root, test.args); got.Status != 0 || !strings.Contains(got.Stdout, "wrote "+root+"/"+test.want) {
					t.Fatalf("%+v, want %s", got, test.want)
				}
				if strings.HasPrefix(test.want, "etc/crio") {
					return
				}
				effect(t, root, test.args)
				if named := test.files[unit]; named != "" && scratch.Read(t, filepath.Join(root, config)) != test.files[config] {
					t.Errorf("%s is changed, and containerd does not read it", config)
				}
				if again := done(t, root, test.args); !strings.Contains(again.Stdout, "nothing to change") {
					t.Errorf("again: %+v", again)
				}
			})
		}
	}
}

// oddNode returns a node with a containerd and files, of which links begin with "-> ".
func oddNode(t *testing.T, program string, all map[string]string, unit string) (root string) {
	t.Helper()
	root = scratch.Dir(t)
	at := "usr/bin/containerd"
	for file := range all {
		switch {
		case strings.HasPrefix(file, "var/lib/rancher"):
			at, unit = "var/lib/rancher/k3s/data/current/bin/containerd", "usr/lib/systemd/system/k3s.service"
		case strings.HasPrefix(file, "etc/k0s"):
			at, unit = "var/lib/k0s/bin/containerd", "etc/systemd/system/k0sworker.service"
		}
	}
	scratch.File(t, filepath.Join(root, at), "#!/bin/sh\nexec "+program+" \"$@\"\n", 0o755)
	scratch.File(t, filepath.Join(root, unit), "[Service]\n", 0o600)
	scratch.Files(t, root, all, 0o600)
	return root
}

// effect reports an error where a feature is not in effect after the next start.
func effect(t *testing.T, root, args string) {
	t.Helper()
	d, err := containerd.Choose(containerd.Find(root), "", root)
	if err != nil {
		t.Fatal(err)
	}
	tree, err := d.Effective(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	off, _ := tomledit.Lookup(tree, "plugins", containerd.NRIPlugin, "disable")
	_, handlers := containerd.Handlers(tree)
	if nri := strings.HasPrefix(args, "nri"); nri && off != false || !nri && handlers["rdma"] == nil {
		t.Errorf("after configure %s, NRI's disable is %v, and the handlers are %v", args, off, slices.Sorted(maps.Keys(handlers)))
	}
}

// A file that has another name is replaced, and that is said: the other name keeps the former content.
func TestConfigureAFileWithTwoNames(t *testing.T) {
	root, _ := configureNode(t)
	config := filepath.Join(root, "etc/containerd/config.toml")
	other := filepath.Join(root, "etc/containerd/backup")
	if err := os.Link(config, other); err != nil {
		t.Fatal(err)
	}
	before := scratch.Read(t, other)
	for _, args := range []string{"nri --dry-run", "nri"} {
		if got := done(t, root, args); !strings.Contains(got.Stderr, config+
			" is one of 2 hard links to a file; the other links keep the previous content\n") {
			t.Errorf("%q: %+v", args, got)
		}
	}
	if after := scratch.Read(t, other); after != before || scratch.Read(t, config) == before {
		t.Errorf("the other name has %s", after)
	}
}

// readOnlyRoot is the node of a test in a mount namespace of its own, where the node's /etc cannot be written.
const readOnlyRoot = "CONFIGURE_READ_ONLY"

// A node whose /etc cannot be written says so, and what is meant for it.
func TestConfigureAnImmutableNode(t *testing.T) {
	if root := os.Getenv(readOnlyRoot); root != "" {
		got := configure(root, "nri")
		if got.Status != 3 || strings.Count(got.Stderr, "\n") != 1 || !strings.Contains(got.Stderr, "read-only file system: the node "+
			"is immutable: add the output of rdma-spec generate --for talos to the talos configuration") {
			t.Errorf("%+v", got)
		}
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("a mount needs root")
	}
	root, _ := configureNode(t)
	scratch.File(t, filepath.Join(root, "usr/lib/os-release"), "ID=talos\n", 0o600)
	before := nodeFiles(t, root)
	cmd := exec.Command("unshare", "--mount", "sh", "-ec", `mount --bind "$1" "$1"; mount -o remount,ro,bind "$1"; exec "$0" `+
		`-test.run "^TestConfigureAnImmutableNode$"`, os.Args[0], filepath.Join(root, "etc"))
	cmd.Env = append(os.Environ(), readOnlyRoot+"="+root)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	unchanged(t, root, before, "afterwards")
}
