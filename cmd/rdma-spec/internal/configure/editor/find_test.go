// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package editor

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// tree returns a folder with files.
func tree(t *testing.T, files map[string]string) (root string) {
	t.Helper()
	root = scratch.Folder(t)
	scratch.Files(t, root, files, 0o600)
	return root
}

func TestChoose(t *testing.T) {
	const (
		k3s     = "var/lib/rancher/k3s/agent/etc/containerd/config.toml"
		k3sBin  = "var/lib/rancher/k3s/data/current/bin/containerd"
		plain   = "etc/containerd/config.toml"
		program = "usr/bin/containerd"
		command = "/usr/bin/containerd\x00--config\x00/opt/x.toml\x00"
	)
	for name, test := range map[string]struct {
		files        map[string]string
		config, want string // the configuration and the program, or a part of the error
	}{
		"none":               {nil, "", "error: no containerd binary below "},
		"one without a file": {map[string]string{program: ""}, "", plain + " " + program},
		"one in /usr/local": {map[string]string{"usr/local/bin/containerd": "", plain: ""}, "",
			plain + " usr/local/bin/containerd"},
		"a file without a program": {map[string]string{plain: ""}, "",
			"error: no containerd binary below "},
		"K3s": {map[string]string{k3s: "", k3sBin: ""}, "", k3s + " " + k3sBin},
		"MicroK8s": {map[string]string{"snap/microk8s/current/bin/containerd": ""}, "",
			"var/snap/microk8s/current/args/containerd-template.toml snap/microk8s/current/bin/containerd"},
		"MicroK8s that runs": {map[string]string{"snap/microk8s/current/bin/containerd": "",
			"proc/7/cmdline": "containerd\x00--config\x00/var/snap/microk8s/current/args/containerd.toml\x00"}, "",
			"var/snap/microk8s/current/args/containerd-template.toml snap/microk8s/current/bin/containerd"},
		"two": {map[string]string{k3s: "", k3sBin: "", program: ""}, "",
			"error: the node has 2 containerds: containerd (--config /etc/containerd/config.toml), k3s (--config /" +
				k3s + "): name the one"},
		"two, and one is meant": {map[string]string{k3s: "", k3sBin: "", program: ""}, k3s, k3s + " " + k3sBin},
		"two, by the template": {map[string]string{k3s: "", k3sBin: "", program: ""},
			"var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.tmpl", k3s + " " + k3sBin},
		"one elsewhere, by its name": {map[string]string{program: ""}, "opt/x.toml", "opt/x.toml " + program},
		"one that runs with its file": {map[string]string{program: "", "proc/7/cmdline": strings.Replace(command,
			"/opt/x.toml", "/"+plain, 1)}, "", plain + " " + program},
		"one that runs with another": {map[string]string{program: "", "proc/7/cmdline": command,
			"proc/7/exe": "-> /usr/bin/containerd"}, "", "error: containerd (--config /opt/x.toml)"},
		"one that runs, and is meant": {map[string]string{program: "", "proc/7/cmdline": command,
			"proc/7/exe": "-> /opt/containerd", "opt/containerd": ""}, "opt/x.toml", "opt/x.toml opt/containerd"},
		"one that runs from elsewhere": {map[string]string{plain: "", "proc/7/cmdline": "containerd\x00--config\x00/" +
			plain + "\x00", "proc/7/exe": "-> /opt/bin/containerd", "opt/bin/containerd": ""}, "",
			plain + " opt/bin/containerd"},
		"one that runs beside another": {map[string]string{program: "", "proc/7/cmdline": "containerd\x00",
			"proc/7/exe": "-> /opt/bin/containerd", "opt/bin/containerd": ""}, "", plain + " opt/bin/containerd"},
		"one that was upgraded": {map[string]string{program: "", "proc/7/cmdline": "containerd\x00",
			"proc/7/exe": "-> /usr/bin/containerd (deleted)"}, "", plain + " " + program},
		"one of a container": {map[string]string{program: "", "proc/7/cmdline": command, "proc/7/root": "-> /proc"},
			"", plain + " " + program},
		"a shim and another that runs": {map[string]string{program: "",
			"proc/7/cmdline": "/usr/bin/containerd-shim-runc-v2\x00-c\x00/x\x00",
			"proc/8/cmdline": "/bin/sh\x00--config=/y\x00"}, "", plain + " " + program},
		"K3s elsewhere, which runs": {
			files: map[string]string{"data/k/agent/etc/containerd/config.toml": "", "proc/7/cgroup": "0::/system.slice/k3s.service\n",
				"proc/7/cmdline": "containerd\x00-c\x00/data/k/agent/etc/containerd/config.toml\x00", "data/k/data/current/bin/containerd": "",
				"usr/lib/systemd/system/k3s.service": ""},
			want: "data/k/agent/etc/containerd/config.toml data/k/data/current/bin/containerd",
		},
		"RKE2 elsewhere, by its configuration": {
			files: map[string]string{"etc/rancher/rke2/config.yaml": "data-dir: /data\n", "data/bin/containerd": ""},
			want:  "data/agent/etc/containerd/config.toml data/bin/containerd",
		},
	} {
		t.Run(name, func(t *testing.T) {
			for file, line := range maps.Clone(test.files) {
				if folder, isCommand := strings.CutSuffix(file, "/cmdline"); isCommand {
					program, _, _ := strings.Cut(line, "\x00")
					test.files[folder+"/comm"] = fmt.Sprintf("%.15s\n", filepath.Base(program))
				}
			}
			root := tree(t, test.files)
			config := ""
			if test.config != "" {
				config = filepath.Join(root, test.config)
			}
			d, err := containerd.Choose(containerd.Find(root), config, root)
			if wanted, isError := strings.CutPrefix(test.want, "error: "); isError {
				if err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), root, ""), wanted) {
					t.Errorf("error %v, want %s", err, wanted)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			program, _ := d.Program.(containerd.Binary)
			if got := strings.ReplaceAll(d.File()+" "+string(program), root+"/", ""); got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
		})
	}
}

// A program that does not answer as containerd does is one line, and no plan.
func TestProgramsThatFail(t *testing.T) {
	for name, test := range map[string]struct{ script, want string }{
		"no version": {"echo hello", "prints no version"},
		"no dump": {"[ $1 = --version ] && echo containerd x v2.4.2 || { echo 'noise'; echo 'containerd: failed " +
			"to load TOML: line 3' >&2; exit 1; }", "config.toml: failed to load TOML: line 3: correct it first"},
		"no TOML":          {"[ $1 = --version ] && echo containerd x v2.4.2 || echo '<html>'", "not TOML"},
		"no configuration": {"[ $1 = --version ] && echo containerd x v2.4.2 || true", "empty configuration"},
		"no word": {"[ $1 = --version ] && echo containerd x v2.4.2",
			"config.toml: exit status 1: correct it first"},
		"a missing import": {`[ $1 = --version ] && echo containerd x v2.4.2 || echo '[plugins]'`,
			"config.toml imports /nowhere/x.toml, which does not exist, and containerd does not start without it: correct it " +
				"first"},
		"CRI off, by its newest name": {
			`[ $1 = --version ] && echo containerd x v2.4.2 || echo 'disabled_plugins = ["io.containerd.cri.v1.runtime"]'`,
			"turns the plugin io.containerd.cri.v1.runtime off",
		},
		"CRI off": {`[ $1 = --version ] && echo containerd x v2.4.2 || echo 'disabled_plugins = ["cri"]'`,
			"turns the plugin cri off in disabled_plugins"},
		"too old":               {"echo containerd x v1.7.6", "containerd 1.7.6 has no NRI that can set limits"},
		"a change is not taken": {`[ $1 = --version ] && echo containerd x v2.4.2 || printf "[plugins.'io.containerd.nri.v1.nri']\ndisable = true\n"`, "the change cannot be made: "},
		"a change loses a handler": {
			`[ $1 = --version ] && echo containerd x v2.4.2 && exit
grep -q 90-rdma-spec $2 || grep -q import- $2 || printf "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\n"
printf "[plugins.'io.containerd.nri.v1.nri']\ndisable = true\n"`, "the change cannot be made: ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			config := "version = 3\nimports = ['/nowhere/*.toml']\n"
			if name == "a missing import" {
				config = "version = 3\nimports = ['/nowhere/*.toml', '/nowhere/x.toml']\n"
			}
			root := tree(t, map[string]string{"etc/containerd/config.toml": config,
				"usr/bin/containerd": "#!/bin/sh\n" + test.script + "\n"})
			if err := os.Chmod(filepath.Join(root, "usr/bin/containerd"), 0o755); err != nil { //nolint:gosec // a program
				t.Fatal(err)
			}
			d, err := containerd.Choose(containerd.Find(root), "", root)
			if err != nil {
				t.Fatal(err)
			}
			plan, err := ofNRI(d, false).NRI(t.Context())
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") || len(plan) > 0 {
				t.Errorf("NRI: %v, %v; want %s", plan, err, test.want)
			}
		})
	}
}

// What a platform has rendered is never edited, wherever it is: its template is.
func TestGeneratedFiles(t *testing.T) {
	const text = "# File generated by k3s. DO NOT EDIT. Use config.toml.tmpl instead.\nversion = 2\n"
	root := tree(t, map[string]string{"usr/bin/containerd": "", "x/config.toml": text, "data/bin/containerd": "",
		"etc/rancher/rke2/config.yaml": "data-dir: /data\n", "data/agent/etc/containerd/config.toml": text})
	d, err := containerd.Choose(containerd.Find(root), filepath.Join(root, "x/config.toml"), root)
	if err != nil {
		t.Fatal(err)
	}
	d.Program = loader("2.4.2")
	if plan, err := ofNRI(d, false).NRI(t.Context()); err == nil || !strings.Contains(err.Error(), "config.toml is generated, and would") {
		t.Errorf("%v, %v", plan, err)
	}
	if d, err = containerd.Choose(containerd.Find(root), filepath.Join(root, "data/agent/etc/containerd/config.toml"), root); err != nil {
		t.Fatal(err)
	}
	d.Program = loader("2.4.2")
	plan, err := ofNRI(d, false).NRI(t.Context())
	if err != nil || len(plan.Changed()) != 1 || plan.Changed()[0].Path != filepath.Join(root, "data/agent/etc/containerd/config-v3.toml.tmpl") {
		t.Errorf("%v, %v", plan.Changed(), err)
	}
}
