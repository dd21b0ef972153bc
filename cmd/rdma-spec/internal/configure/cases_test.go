// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package configure

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/goal"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
	"github.com/rdma-spec/rdma-spec/test/testing/expect"
	"github.com/rdma-spec/rdma-spec/test/testing/race"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// caseNode is a node with a containerd, and a test's steps on it.
type caseNode struct {
	*testing.T
	root, dir string
}

func (n caseNode) write(file, text string) {
	n.Helper()
	scratch.File(n.T, filepath.Join(n.root, file), text, 0o600)
}

func (n caseNode) use(version string) {
	n.Helper()
	scratch.File(n.T, filepath.Join(n.root, "usr/bin/containerd"), "#!/bin/sh\nexec "+remembered(n.T, n.dir, version)+" \"$@\"\n", 0o755)
}

// does calls configure, which has to succeed.
func (n caseNode) does(args string) {
	n.Helper()
	if got := n.call(args); got.Status != 0 {
		n.Errorf("configure %s: %+v", args, got)
	}
}

func (n caseNode) call(args string) outcome { return configure(n.root, args) }

// finds checks what goal.Read finds on the node that is not as configure made it.
func (n caseNode) finds(want ...string) {
	n.Helper()
	expect.Equal(n.T, "what is not as configured", want, unmet(n.T, n.root))
}

// unmet lists the features that goal.Read finds to be in a state other than kept, such as "nri: lost", and the keys that
// side effects change, sorted.
func unmet(t *testing.T, root string) (found []string) {
	t.Helper()
	all, err := goal.Read(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all.Features {
		if f.State != goal.Kept {
			found = append(found, fmt.Sprintf("%s: %s", f.Feature, f.State))
		}
	}
	for _, e := range all.SideEffects {
		found = append(found, "side effects: "+strings.Join(e.Differs, ", "))
	}
	slices.Sort(found)
	return found
}

// effective returns the effective configuration, as containerd prints it on the node itself.
func (n caseNode) effective() (map[string]any, error) {
	n.Helper()
	return containerd.Find(n.root)[0].Effective(n.Context(), nil)
}

// has checks a value of the effective configuration; nil for none. A path begins below the plugins.
func (n caseNode) has(want any, path ...string) {
	n.Helper()
	tree, err := n.effective()
	if err != nil {
		n.Errorf("containerd does not start: %v", err)
		return
	}
	plugin, _ := containerd.Handlers(tree)
	if path[0] == "cri" {
		path = append([]string{plugin}, path[1:]...)
	}
	if got, _ := tomledit.Lookup(tree, append([]string{"plugins"}, path...)...); got != want {
		n.Errorf("%q is %v, want %v", path, got, want)
	}
}

func (n caseNode) text(file string) string {
	text, _ := os.ReadFile(filepath.Join(n.root, file)) // it may not exist
	return string(text)
}

const (
	cri2    = `[plugins."io.containerd.grpc.v1.cri"`
	runc2   = cri2 + `.containerd.runtimes.runc]` + "\n  runtime_type = \"io.containerd.runc.v2\"\n"
	cgroup2 = "  " + cri2 + ".containerd.runtimes.runc.options]\n    SystemdCgroup = true\n"
	runc3   = "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\n  runtime_type = 'io.containerd.runc.v2'\n"
	nriOff3 = "[plugins.'io.containerd.nri.v1.nri']\n  disable = true\n"
	config  = "etc/containerd/config.toml"
	conf    = "etc/containerd/conf.d/"

	ownDir = "etc/containerd/rdma-spec.d/"
)

// What happens to nodes, by upgrades, by other tools, and by people.
func TestConfigure_afterNodeChanges(t *testing.T) {
	if race.Detector {
		t.Skip("runs containerd, and the race detector does not see it")
	}
	dir := scratch.Dir(t)
	node := func(t *testing.T, version string, files ...string) caseNode {
		t.Helper()
		n := caseNode{t, scratch.Dir(t), dir}
		n.write("usr/lib/systemd/system/containerd.service", "[Service]\nExecStart=/usr/bin/containerd\n")
		for i := 0; i < len(files); i += 2 {
			n.write(files[i], files[i+1])
		}
		n.use(version)
		return n
	}
	runtimes := func(name string, key ...string) []string {
		return append([]string{"cri", "containerd", "runtimes", name}, key...)
	}
	disable := []string{containerd.NRIPlugin, "disable"}
	for name, test := range map[string]func(t *testing.T){
		"another tool replaces the imports": func(t *testing.T) {
			const imports = "imports = [\"/etc/containerd/conf.d/*.toml\"]\n"
			n := node(t, "2.4.2", config, "version = 3\n"+imports+runc3+nriOff3, conf+"x.toml", "version = 3\n")
			n.does("handler rdma --like runc")
			n.does("nri")
			n.finds()
			n.write(config, strings.ReplaceAll(n.text(config), "conf.d", "config.d"))
			n.finds("handler rdma: lost", "nri: lost")
			n.does("handler rdma --like runc")
			n.does("nri")
			n.finds()
			n.has(false, disable...)
		},
		"NRI is asked for again, and its file is imported no longer": func(t *testing.T) {
			n := node(t, "2.2.9", config, "version = 2\n"+runc2)
			n.does("nri --required")
			n.write(config, "version = 2\n"+runc2)
			n.does("nri")
			n.does("handler runc --in-place")
			n.finds()
			n.has(false, containerd.NRIPlugin, "default_validator", "enable")
			n.has("/etc/containerd/rdma-spec-runc.json", runtimes("runc", containerd.BaseSpecKey)...)
		},
		"somebody removes the imports": func(t *testing.T) {
			n := node(t, "2.2.9", config, "version = 2\n"+runc2)
			n.does("handler rdma --like runc")
			n.write(config, "version = 2\n"+runc2)
			n.finds("handler rdma: lost")
			n.does("--revert")
			n.finds()
			if n.text(config) != "version = 2\n"+runc2 || containerd.Exists(filepath.Join(n.root, ownDir)) {
				n.Errorf("reverted: %v", nodeFiles(t, n.root))
			}
		},
		"containerd is rolled back": func(t *testing.T) {
			n := node(t, "2.2.9", config, "version = 2\n"+cri2+"]\n  sandbox_image = 'reg.example/pause:3.9'\n"+runc2+cgroup2)
			n.does("handler rdma --like runc")
			n.finds()
			n.use("1.7.35")
			const cri = "plugins.io.containerd.grpc.v1.cri."
			n.finds("side effects: " + cri + "containerd.runtimes.runc.options.SystemdCgroup, " +
				cri + "containerd.runtimes.runc.runtime_type, " + cri + "sandbox_image")
			n.does("handler rdma --like runc")
			n.finds()
			n.has("reg.example/pause:3.9", "cri", "sandbox_image")
			n.has("/etc/containerd/rdma-spec-rdma.json", runtimes("rdma", containerd.BaseSpecKey)...)
			n.use("2.4.2")
			n.does("handler rdma --like runc")
			n.finds()
		},
		"containerd is rolled back, and NRI has a socket of its own": func(t *testing.T) {
			n := node(t, "2.4.2", config, "version = 2\n[plugins.'io.containerd.nri.v1.nri']\n  disable = true\n  socket_path = '/x.sock'\n")
			n.does("nri")
			n.has("/x.sock", containerd.NRIPlugin, "socket_path")
			n.use("1.7.35")
			n.finds("side effects: plugins.io.containerd.nri.v1.nri.socket_path")
			n.does("nri")
			n.finds()
			n.has("/x.sock", containerd.NRIPlugin, "socket_path")
			n.has(false, disable...)
		},
		"the record is lost": func(t *testing.T) {
			n := node(t, "2.4.2", config, "version = 3\n"+nriOff3)
			n.does("nri")
			if err := os.RemoveAll(filepath.Join(n.root, "var/lib/rdma-spec")); err != nil {
				t.Fatal(err)
			}
			refused(t, n.root, "--revert", 3, ownDir+"90-rdma-spec-nri.toml, but has no record of this change")
		},
		"the record is lost, and the file is imported no longer": func(t *testing.T) {
			n := node(t, "2.2.9", config, "version = 2\n"+runc2)
			n.does("handler rdma --like runc")
			n.does("limits")
			n.write(config, "version = 2\n")
			if err := os.RemoveAll(filepath.Join(n.root, "var/lib/rdma-spec")); err != nil {
				t.Fatal(err)
			}
			refused(t, n.root, "--revert", 3, ownDir+"90-rdma-spec-handler-rdma.toml")
		},
		"containerd is upgraded": func(t *testing.T) {
			for _, version := range []string{"2.2.9", "2.4.2"} {
				n := node(t, "1.7.35", config, "version = 2\n"+runc2+cgroup2)
				n.does("handler rdma --like runc")
				n.use(version)
				n.does("handler rdma --like runc")
				n.finds()
				n.has("podsandbox", runtimes("rdma", "sandboxer")...)
				n.does("--revert")
				n.has(nil, runtimes("rdma")...)
				if n.text(config) != "version = 2\n"+runc2+cgroup2 {
					n.Errorf("reverted: %s", n.text(config))
				}
			}
		},
		"the model of a handler changes": func(t *testing.T) {
			for _, version := range []string{"1.7.35", "2.4.2"} {
				n := node(t, version, config, "version = 2\n"+runc2+strings.Replace(cgroup2, "true", "false", 1))
				n.does("handler rdma --like runc")
				n.write(config, strings.Replace(n.text(config), "SystemdCgroup = false", "SystemdCgroup = true", 1))
				n.finds("handler rdma: stale")
				n.does("handler rdma --like runc")
				n.finds()
				n.has(true, runtimes("rdma", "options", "SystemdCgroup")...)
			}
		},
		"the file is written again without us": func(t *testing.T) {
			n := node(t, "1.7.35", config, "version = 2\n"+runc2)
			n.does("nri")
			n.does("handler rdma --like runc")
			theirs := "version = 2\n" + runc2 + "\n[debug]\n  level = \"info\"\n"
			n.write(config, theirs)
			n.finds("handler rdma: lost", "nri: lost")
			n.does("--revert")
			if n.text(config) != theirs || n.text("etc/containerd/rdma-spec-rdma.json") != "" {
				n.Errorf("reverted: %s", n.text(config))
			}
		},
		"the file is written again by a TOML library": func(t *testing.T) {
			const imports = "imports = ['/etc/containerd/rdma-spec.d/*.toml']\n"
			for _, layout := range []string{
				imports + "version = 2\n\n[plugins]\n\n" + cri2 + ".containerd.runtimes]\n\n" + cri2 + `.containerd.runtimes.rdma]
          base_runtime_spec = "/etc/containerd/rdma-spec-rdma.json"
          runtime_type = "io.containerd.runc.v2"

` + cri2 + ".containerd.runtimes.runc]\n          runtime_type = \"io.containerd.runc.v2\"\n",
				imports + "version = 2\n[plugins]\n[plugins.'io.containerd.grpc.v1.cri'.containerd]\n" +
					"runtimes = { runc = { runtime_type = 'io.containerd.runc.v2' }, rdma = { runtime_type = 'io.containerd.runc.v2', " +
					"base_runtime_spec = '/etc/containerd/rdma-spec-rdma.json', snapshotter = 'theirs' } }\n",
				imports + "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes]\nrunc.runtime_type = 'io.containerd.runc.v2'\n" +
					"rdma.runtime_type = 'io.containerd.runc.v2'\nrdma.base_runtime_spec = '/etc/containerd/rdma-spec-rdma.json'\n",
			} {
				n := node(t, "1.7.35", config, "version = 2\n"+runc2)
				n.does("nri")
				n.does("handler rdma --like runc")
				n.write(config, layout)
				if !strings.Contains(layout, "theirs") {
					n.finds()
				}
				n.does("--revert")
				n.has(true, disable...)
				n.has(nil, runtimes("rdma")...)
				n.has("io.containerd.runc.v2", runtimes("runc", "runtime_type")...)
				if left := n.text(config) + n.text("etc/containerd/rdma-spec-rdma.json"); strings.Contains(left, "rdma") {
					n.Errorf("reverted: %s", left)
				}
			}
		},
		"a toolkit writes the last drop-in at each start": func(t *testing.T) {
			const toolkit = conf + "99-nvidia.toml"
			n := node(t, "1.7.35", config, "version = 2\nimports = ['/etc/containerd/conf.d/*.toml']\n",
				conf+"50-nri.toml", "version = 2\n[plugins.'io.containerd.nri.v1.nri']\n  disable = true\n",
				toolkit, "version = 2\n"+runc2)
			before := n.text(toolkit)
			n.does("nri")
			n.has(false, disable...)
			if n.text(toolkit) != before {
				n.Errorf("NRI is in the toolkit's file: %s", n.text(toolkit))
			}
			n.does("--revert")
			n.has(true, disable...)
		},
		"a unit without a limit": func(t *testing.T) {
			const override = "etc/systemd/system/containerd.service.d/zz.conf"
			n := node(t, "2.4.2", override, "[Service]\nLimitMEMLOCK=infinity:infinity\n")
			if got := n.call("limits"); got != (outcome{0, "limits: nothing to change\n", ""}) {
				n.Errorf("%+v", got)
			}
			n.finds()
			n.write(override, "[Service]\nLimitMEMLOCK=64K:infinity\n")
			n.finds("limits: lost")
		},
	} {
		t.Run(name, test)
	}
}
