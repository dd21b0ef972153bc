// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package configure

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor/containers"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor/hardware"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor/runtimes"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// fakeContainerd is a containerd 2.4.2 without built-in defaults: the last file that sets disable decides.
const fakeContainerd = `#!/bin/sh
[ "$1" = --version ] && echo containerd fake v2.4.2 && exit
grep -q broken "$2" && echo "containerd: failed to load TOML" >&2 && exit 1
files="$2 $(sed -n "s/^imports = \[\(.*\)\]$/\1/p" "$2" | tr -d "\"',")"
echo "[plugins.'io.containerd.nri.v1.nri']"
cat $files 2>/dev/null | sed -n 's/^ *disable = /disable = /p' | tail -n 1
echo 'disable_connections = false'
echo "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]"
cat $files 2>/dev/null | sed -n 's/^ *base_runtime_spec = /base_runtime_spec = /p' | tail -n 1
echo 'runtime_type = "io.containerd.runc.v2"'
`

// configureNode returns a node with a containerd whose NRI is off, and its files.
func configureNode(t *testing.T) (root string, files map[string]string) {
	t.Helper()
	root = scratch.With(t, map[string]string{
		"etc/containerd/config.toml": "version = 3\n\n[plugins.'io.containerd.nri.v1.nri']\n  disable = " +
			"true # why\n",
		"usr/bin/containerd":                        fakeContainerd,
		"usr/lib/systemd/system/containerd.service": "[Service]\n",
		"nri-rdma": "\x7fELF\x00",
	}, 0o755)
	return root, nodeFiles(t, root)
}

// nodeFiles returns the files of a node but for the ledger.
func nodeFiles(t *testing.T, root string) map[string]string {
	t.Helper()
	all := scratch.Tree(t, root)
	maps.DeleteFunc(all, func(name, _ string) bool {
		return name == "var/" || name == "var/lib/" || strings.HasPrefix(name, "var/lib/rdma-spec/")
	})
	return all
}

// A configuration that cannot be read may name what a revert removes: nothing is reverted.
func TestConfigureRevert_unreadableConfiguration(t *testing.T) {
	root, _ := configureNode(t)
	done(t, root, "plugin --program ROOT/nri-rdma")
	const dir = "var/lib/rancher/k3s/agent/etc/containerd/config.toml"
	scratch.File(t, filepath.Join(root, dir, "file"), "", 0o600)
	refused(t, root, "--revert", 3, dir)
}

func TestConfigure(t *testing.T) {
	for name, test := range map[string]struct {
		args, wrote string
		stderr      string
	}{
		"nri": {"nri", "/etc/containerd/rdma-spec.d/90-rdma-spec-nri.toml /etc/containerd/config.toml",
			"next: systemctl restart containerd.service"},
		"limits": {"limits", "/etc/systemd/system/containerd.service.d/90-rdma-spec-memlock.conf",
			"next: systemctl daemon-reload"},
		"handler": {"handler runc --in-place",
			"/etc/containerd/rdma-spec-runc.json /etc/containerd/rdma-spec.d/90-rdma-spec-handler-runc.toml " +
				"/etc/containerd/config.toml", "next: systemctl restart"},
		"plugin": {"plugin --program ROOT/nri-rdma",
			"/etc/rdma-spec/config.yaml /usr/local/bin/nri-rdma /etc/systemd/system/nri-rdma.service",
			"next: systemctl restart nri-rdma"},
		"launched": {"plugin --launched --program ROOT/nri-rdma", "/etc/rdma-spec/config.yaml /opt/nri/plugins/90-rdma",
			"next: restart the container runtime"},
		"cdi": {"cdi --programs ROOT/programs", "/usr/local/bin/rdma-hook /usr/local/bin/rdma-spec " +
			"/etc/systemd/system/rdma-spec-cdi.service /etc/systemd/system/rdma-spec-cdi.timer " +
			"/etc/udev/rules.d/90-rdma-spec-cdi.rules",
			"next: systemctl enable --now rdma-spec-cdi.service rdma-spec-cdi.timer\n"},
		"all": {
			"--all --program ROOT/nri-rdma",
			"/etc/rdma-spec/config.yaml /usr/local/bin/nri-rdma /etc/systemd/system/nri-rdma.service " +
				"/etc/containerd/rdma-spec.d/90-rdma-spec-nri.toml /etc/containerd/config.toml",
			"next: systemctl restart nri-rdma",
		},
	} {
		t.Run(name, func(t *testing.T) {
			root, _ := configureNode(t)
			scratch.Files(t, root, map[string]string{"programs/rdma-spec": "\x7fELF", "programs/rdma-hook": "\x7fELF"}, 0o600)
			before := nodeFiles(t, root)
			if dry := done(t, root, test.args+" --dry-run"); dry.Stderr != "" || !strings.Contains(dry.Stdout, "+++ "+root) {
				t.Errorf("--dry-run: %+v", dry)
			}
			unchanged(t, root, before, "--dry-run")
			var want strings.Builder
			for _, path := range strings.Fields(test.wrote) {
				want.WriteString("wrote " + root + path + "\n")
			}
			if name == "all" {
				want.WriteString("doctor: 0 faults; run rdma-spec doctor after the steps above\n")
			}
			if got := done(t, root, test.args); got.Stdout != want.String() || !strings.Contains(got.Stderr, test.stderr) {
				t.Fatalf("%+v, want %s", got, want.String())
			}
			for path, text := range nodeFiles(t, root) {
				if strings.Contains(text, root) {
					t.Errorf("%s names the root, which the node does not have:\n%s", path, text)
				}
				if info, err := os.Stat(filepath.Join(root, path)); filepath.Dir(path) == "usr/local/bin" && info.Mode().Perm() != 0o755 {
					t.Errorf("the program %s: %v, %v", path, info, err)
				}
			}
			if got := done(t, root, test.args); !strings.Contains(got.Stdout, ": nothing to change\n") ||
				strings.Contains(got.Stdout, "wrote") {
				t.Errorf("a second run: %+v", got)
			}
			back, _, _ := strings.Cut(test.args, "--")
			if got := done(t, root, back+" --revert"); strings.Count(got.Stdout, "restored ")+
				strings.Count(got.Stdout, "removed ") != len(strings.Fields(test.wrote)) {
				t.Errorf("--revert: %+v", got)
			}
			unchanged(t, root, before, "--revert")
			if got := configure(root, back+" --revert"); got != (outcome{0, "nothing to revert\n", ""}) {
				t.Errorf("a second --revert: %+v", got)
			}
		})
	}
}

// The runtime is the one that is installed, and of two of them the one that --runtime names.
func TestConfigureCRIO(t *testing.T) {
	for _, test := range []struct {
		args       string
		containerd bool // is there too
		wrote      string
	}{
		{"nri", false, "/etc/crio/crio.conf.d/90-rdma-spec-nri.conf"},
		{"nri", true, "/etc/containerd/rdma-spec.d/90-rdma-spec-nri.toml /etc/containerd/config.toml"},
		{"--all --program ROOT/nri-rdma", false,
			"/etc/rdma-spec/config.yaml /usr/local/bin/nri-rdma /etc/systemd/system/nri-rdma.service " +
				"/etc/crio/crio.conf.d/90-rdma-spec-nri.conf"},
		{"--all --program ROOT/nri-rdma --runtime crio", true,
			"/etc/rdma-spec/config.yaml /usr/local/bin/nri-rdma /etc/systemd/system/nri-rdma.service " +
				"/etc/crio/crio.conf.d/90-rdma-spec-nri.conf"},
	} {
		root, _ := configureNode(t)
		if err := os.MkdirAll(filepath.Join(root, "etc/crio"), 0o755); err != nil {
			t.Fatal(err)
		}
		if !test.containerd {
			if err := errors.Join(os.RemoveAll(filepath.Join(root, "etc/containerd")),
				os.Remove(filepath.Join(root, "usr/bin/containerd"))); err != nil {
				t.Fatal(err)
			}
		}
		want := ""
		for _, path := range strings.Fields(test.wrote) {
			want += "wrote " + root + path + "\n"
		}
		got, unit := done(t, root, test.args), "crio.service"
		if !strings.Contains(test.wrote, "crio") {
			unit = "containerd.service"
		}
		if !strings.HasPrefix(got.Stdout, want) || !strings.Contains(got.Stderr, "next: systemctl restart "+unit+"\n") {
			t.Errorf("configure %s, containerd: %t: %+v, want %s", test.args, test.containerd, got, want)
		}
	}
}

// The unit that is named runs the containerd; if none runs, only one that is installed alone can be named.
func TestConfigureNamesTheRunningUnit(t *testing.T) {
	const server, agent = "rke2-server.service", "rke2-agent.service"
	for name, test := range map[string]struct {
		installed     []string
		cgroup        string // of the containerd; "" where none runs
		nri, limitsOf string
	}{
		"an agent":                   {[]string{server, agent}, "/system.slice/" + agent, agent, agent},
		"a server":                   {[]string{server, agent}, "/system.slice/" + server, server, server},
		"an agent by itself":         {[]string{agent}, "/system.slice/" + agent, agent, agent},
		"an agent that does not run": {[]string{agent}, "", agent, agent},
		"which of two does not run":  {[]string{server, agent}, "", "", ""},
		"a user's session":           {[]string{server, agent}, "/user.slice/user-1000.slice/user@1000.service", "", ""},
		"a unit with another name": {[]string{server, "rke2-edge.service"}, "/system.slice/rke2-edge.service",
			"rke2-edge.service", "rke2-edge.service"},
	} {
		t.Run(name, func(t *testing.T) {
			root := scratch.Dir(t)
			const dir = "var/lib/rancher/rke2/"
			files := map[string]string{
				dir + "bin/containerd":                   fakeContainerd,
				dir + "agent/etc/containerd/config.toml": "version = 3\n",
			}
			for _, unit := range test.installed {
				files["usr/local/lib/systemd/system/"+unit] = "[Service]\n"
			}
			if test.cgroup != "" {
				files["proc/7/comm"], files["proc/7/cgroup"] = "containerd\n", "0::"+test.cgroup+"\n"
				files["proc/7/cmdline"] = "containerd\x00-c\x00/" + dir + "agent/etc/containerd/config.toml\x00"
			}
			scratch.Files(t, root, files, 0o755)
			next := "rdma-spec: next: systemctl restart " + test.nri + "\n"
			if test.nri == "" {
				next = "rdma-spec: next: restart the container runtime\n"
			}
			if got := configure(root, "nri"); got.Status != 0 || got.Stderr != next {
				t.Errorf("nri: %+v, want %s", got, next)
			}
			got := configure(root, "limits")
			switch {
			case test.limitsOf == "" && (got.Status != 3 || !strings.Contains(got.Stderr,
				"("+agent+", "+server+"): specify the unit of the runtime that the kubelet uses")):
				t.Errorf("limits: %+v", got)
			case test.limitsOf != "" && (got.Status != 0 || !strings.Contains(got.Stdout, "/"+test.limitsOf+".d/")):
				t.Errorf("limits: %+v, want %s", got, test.limitsOf)
			}
		})
	}
}

// k0s restarts its containerd by itself when a drop-in changes.
func TestConfigureLetsK0sRestart(t *testing.T) {
	const unit = "k0sworker.service"
	files := map[string]string{
		"var/lib/k0s/bin/containerd": fakeContainerd,
		"etc/k0s/containerd.toml":    "# k0s_managed=true\nversion = 3\nimports = [\"/etc/k0s/containerd.d/*.toml\"]\n",
		"etc/systemd/system/" + unit: "[Service]\n",
	}
	for running, want := range map[bool]string{true: itself, false: "systemctl restart " + unit} {
		if running {
			files["proc/7/comm"], files["proc/7/cgroup"] = "containerd\n", "0::/system.slice/"+unit+"\n"
			files["proc/7/cmdline"] = "containerd\x00--config=/etc/k0s/containerd.toml\x00"
		} else {
			maps.DeleteFunc(files, func(name, _ string) bool { return strings.HasPrefix(name, "proc/") })
		}
		root := scratch.With(t, files, 0o755)
		for _, args := range []string{"nri", "handler runc --in-place", "--revert"} {
			if args == "--revert" && !running {
				want = "systemctl restart " + unit
			}
			if got := configure(root, args); got.Status != 0 || got.Stderr != "rdma-spec: next: "+want+"\n" {
				t.Errorf("%s, k0s runs: %t: %+v, want %s", args, running, got, want)
			}
		}
	}
}

func TestConfigureRefuses(t *testing.T) {
	for args, want := range map[string]struct {
		status int
		part   string
	}{
		"":                              {2, "specify a feature to configure, or use --all; see 'rdma-spec configure --help'"},
		"nri --runtime docker":          {2, "--runtime docker is not supported: use containerd or crio; see"},
		"nri --runtime crio":            {3, "CRI-O is not installed"},
		"nri --runtime crio --required": {2, "set nri_enable_default_validator = true in the [crio.nri.default_validator] section"},
		"--all --runtime docker":        {2, "run rdma-spec configure cdi; see"},
		"--all --runtime crio":          {3, "CRI-O is not installed"},
		"handler rdma":                  {2, "use either --like RUNTIME or --in-place"},
		"handler rdma --like nvidia":    {3, `has no handler "nvidia": its handlers are runc`},
		"handler Rdma --like runc":      {3, `"Rdma" is not a valid handler name`},
		"limits sshd":                   {3, "is not a unit of a supported container runtime"},
		"limits --restart":              {2, "--restart restarts daemons on this node"},
		"plugin --restart":              {2, "start the plugin with systemctl"},
		"plugin --program /nowhere":     {3, "/nowhere does not exist"},
		"cdi --programs ROOT":           {3, "/rdma-hook does not exist: put rdma-hook and rdma-spec in the same directory"},
		"cdi --prefix opt":              {2, `--prefix "opt" cannot be used in a systemd unit: specify an absolute path`},
		"cdi --restart":                 {2, "--restart applies only to container runtimes"},
		"--revert --restart":            {2, "--restart restarts daemons on this node"},
		"limits --revert --forget":      {2, "use either --revert or --forget"},
	} {
		root, _ := configureNode(t)
		refused(t, root, args, want.status, want.part)
	}
}

// --revert leaves a file of ours that others have changed, names it, and goes on; --forget ends that.
func TestConfigureRevertLeavesWhatOthersChanged(t *testing.T) {
	root, _ := configureNode(t)
	file := filepath.Join(root, "etc/systemd/system/containerd.service.d/90-rdma-spec-memlock.conf")
	done(t, root, "nri")
	done(t, root, "limits")
	scratch.File(t, file, scratch.Read(t, file)+"# theirs\n", 0o600)
	before := nodeFiles(t, root)
	got := configure(root, "limits --revert")
	if got.Status != 1 || got.Stdout != "" || !strings.Contains(got.Stderr, file+" has changed since") {
		t.Errorf("%+v", got)
	}
	unchanged(t, root, before, "afterwards")
	bare := configure(root, "--revert")
	if bare.Status != 1 || !strings.Contains(bare.Stdout, "restored "+root+"/etc/containerd/config.toml\nremoved "+root+
		"/etc/containerd/rdma-spec.d/90-rdma-spec-nri.toml\n") ||
		!strings.Contains(bare.Stderr, file+" has changed since") || strings.Contains(bare.Stdout, "removed "+file) {
		t.Errorf("all: %+v", bare)
	}
	if got := configure(root, "limits --forget"); got != (outcome{0, "forgot " + file + "\n", ""}) {
		t.Errorf("--forget: %+v", got)
	}
	if got := configure(root, "--forget"); got != (outcome{0, "nothing to forget\n", ""}) {
		t.Errorf("--forget afterwards: %+v", got)
	}
	refused(t, root, "--revert", 3, "rdma-spec configure wrote "+strings.TrimPrefix(file, root)+", but has no record of this change")
	if got := scratch.Read(t, file); !strings.Contains(got, "# theirs") {
		t.Errorf("the file: %s", got)
	}
}

// The plugin's configuration is there to be edited. Then it stays, and the plugin goes all the same.
func TestConfigureRevertLeavesTheEditedConfiguration(t *testing.T) {
	root, before := configureNode(t)
	done(t, root, "--all --program ROOT/nri-rdma")
	const config = "etc/rdma-spec/config.yaml"
	before["etc/rdma-spec/"], before[config] = "", "memlock: 16Gi\n"
	scratch.File(t, filepath.Join(root, config), before[config], 0o600)
	if got := done(t, root, "--revert"); strings.Contains(got.Stdout, config) {
		t.Errorf("--revert: %+v", got)
	}
	unchanged(t, root, before, "--revert")
}

// A service that is enabled is disabled first: systemd has a link to its unit. It does not keep the other features.
func TestConfigureRevertGoesOn(t *testing.T) {
	root, _ := configureNode(t)
	done(t, root, "--all --program ROOT/nri-rdma")
	scratch.Files(t, root, map[string]string{"etc/systemd/system/multi-user.target.wants/nri-rdma.service": "-> /x"}, 0o600)
	got := configure(root, "--revert")
	if got.Status != 3 || !strings.Contains(got.Stdout, "restored "+root+"/etc/containerd/config.toml\n") ||
		!strings.HasPrefix(got.Stderr, "rdma-spec: nri-rdma.service is enabled: run systemctl disable --now nri-rdma.service first\n") {
		t.Errorf("%+v", got)
	}
	for _, file := range []string{"usr/local/bin/nri-rdma", "etc/systemd/system/nri-rdma.service"} {
		if _, err := os.Stat(filepath.Join(root, file)); err != nil {
			t.Error(err)
		}
	}
}

// For programs there is one key that says whether something changes, also with --dry-run.
func TestConfigureJSON(t *testing.T) {
	root, _ := configureNode(t)
	for _, test := range []struct {
		args    string
		changed bool
	}{
		{"limits --dry-run", true}, {"limits", true}, {"limits", false}, {"limits --dry-run", false},
		{"--all --program ROOT/nri-rdma --dry-run", true}, {"--all --program ROOT/nri-rdma", true},
		{"--all --program ROOT/nri-rdma", false}, {"handler runc --in-place --dry-run", true},
		{"limits --revert --dry-run", true}, {"--revert", true}, {"--revert", false}, {"--forget", false},
	} {
		got := configure(root, test.args+" -o json")
		var r Result
		if err := json.Unmarshal([]byte(got.Stdout), &r); err != nil || got.Status != 0 || got.Stderr != "" ||
			r.Changed != test.changed || r.Changed != (len(r.Files) > 0) || r.APIVersion == "" {
			t.Errorf("%s: %v, %+v", test.args, err, got)
		}
	}
}

// Absolute links of a node are those of its root. Nothing outside of it is read or written.
func TestConfigureBelowLinks(t *testing.T) {
	outside := scratch.Dir(t)
	root, _ := configureNode(t)
	for link, to := range map[string]string{"etc/containerd": "containerd", "usr/local": "local", "etc/systemd": "systemd",
		"var": "var", "opt": "opt", "etc/rdma-spec": "rdma-spec"} {
		at, inside := filepath.Join(root, link), filepath.Join(root, outside, to)
		if err := errors.Join(os.MkdirAll(filepath.Join(outside, to), 0o755), os.MkdirAll(filepath.Dir(inside), 0o755)); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(at, inside); err != nil {
			if err := os.Mkdir(inside, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink(filepath.Join(outside, to), at); err != nil {
			t.Fatal(err)
		}
	}
	inside := filepath.Join(root, outside)
	before, untouched := nodeFiles(t, inside), nodeFiles(t, outside)
	for _, args := range []string{"--all --program ROOT/nri-rdma", "limits", "handler runc --in-place"} {
		done(t, root, args)
		if got := done(t, root, args); !strings.Contains(got.Stdout, "nothing to change") {
			t.Errorf("%q again: %+v", args, got)
		}
	}
	for _, file := range []string{"containerd/rdma-spec.d/90-rdma-spec-nri.toml", "containerd/rdma-spec-runc.json", "local/bin/nri-rdma",
		"systemd/system/nri-rdma.service", "rdma-spec/config.yaml", "var/lib/rdma-spec/configure/changes.json"} {
		if _, err := os.Stat(filepath.Join(inside, file)); err != nil {
			t.Error(err)
		}
	}
	unchanged(t, outside, untouched, "outside of the root")
	done(t, root, "--revert")
	unchanged(t, inside, before, "--revert")
}

// A root that is not there, or no directory, is an error, and none is made.
func TestConfigureRoot(t *testing.T) {
	dir := scratch.Dir(t)
	scratch.File(t, filepath.Join(dir, "file"), "", 0o600)
	for _, name := range []string{"missing", "file"} {
		for _, flag := range []string{"--dry-run", "--revert", "--forget"} {
			if got := configure(filepath.Join(dir, name), "limits "+flag); got.Status != 3 ||
				!strings.Contains(got.Stderr, name+" is not a directory") {
				t.Errorf("%s %s: %+v", name, flag, got)
			}
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "missing")); err == nil {
		t.Error("the root was made")
	}
}

// What stops a change is one line, and nothing is changed.
func TestConfigureFails(t *testing.T) {
	for file, test := range map[string]struct{ text, want string }{ // "" for a file that is removed
		"var":                        {"no directory", "cannot create " /* …/var/lib/rdma-spec/configure: not a directory */},
		"etc/containerd/config.toml": {"broken = true\n", "config.toml (failed to load TOML): correct the error first"},
		"usr/bin/containerd":         {"", "no containerd binary under "},
	} {
		t.Run(file, func(t *testing.T) {
			root, _ := configureNode(t)
			if scratch.File(t, filepath.Join(root, file), test.text, 0o600); test.text == "" {
				if err := os.Remove(filepath.Join(root, file)); err != nil {
					t.Fatal(err)
				}
			}
			refused(t, root, "nri", 3, test.want)
		})
	}
}

// outcome is what a call gives.
type outcome struct {
	Status         int
	Stdout, Stderr string
}

// callOn calls the command, as a part of the program, on the node below a root.
func callOn(node string, args ...string) outcome {
	root := &cobra.Command{Use: "rdma-spec"}
	root.AddGroup(&cobra.Group{ID: cli.GroupConfiguration})
	o := &Options{node: node, checks: slices.Concat(hardware.Checks(), runtimes.Checks(), containers.Checks(),
		runtimes.KubeletChecks())}
	o.Restarts = o.nodeRestart
	root.AddCommand(o.command())
	var stdout, stderr bytes.Buffer
	status := cli.Run(root, func() error { return nil }, args, nil, &stdout, &stderr)
	return outcome{status, stdout.String(), stderr.String()}
}

// configure calls the command on the node below a root, with the words of a line, in which ROOT stands for the root.
func configure(root, line string) outcome {
	return callOn("/", append(strings.Fields("configure "+strings.ReplaceAll(line, "ROOT", root)), "--root", root)...)
}

// done is a call of configure that has to succeed.
func done(t *testing.T, root, line string) outcome {
	t.Helper()
	got := configure(root, line)
	if got.Status != 0 {
		t.Fatalf("configure %s: %+v", line, got)
	}
	return got
}

// refused is a call of configure that has to exit with a status, print one line with a part, and change nothing. In the
// line, the root is left out.
func refused(t *testing.T, root, line string, status int, part string) {
	t.Helper()
	before := nodeFiles(t, root)
	got := configure(root, line)
	if got.Status != status || got.Stdout != "" || strings.Count(got.Stderr, "\n") != 1 ||
		!strings.Contains(strings.ReplaceAll(got.Stderr, root, ""), part) {
		t.Errorf("configure %s: %+v, want %d and %s", line, got, status, part)
	}
	unchanged(t, root, before, line)
}

// unchanged checks that a node has the files of before.
func unchanged(t *testing.T, root string, before map[string]string, after string) {
	t.Helper()
	if diff := cmp.Diff(before, nodeFiles(t, root)); diff != "" {
		t.Errorf("%s: files (-before +after):\n%s", after, diff)
	}
}

// Where no kubelet has run, NRI and the plugin are of no use to Docker and Podman, so --all names what is.
func TestConfigureAll_withoutKubernetes(t *testing.T) {
	for dir, names := range map[string]bool{"etc/docker": true, "var/lib/kubelet": false} {
		root := scratch.Dir(t)
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
		cmd := Command(nil)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs([]string{"--all", "--dry-run", "--root", root})
		if err := cmd.Execute(); err == nil || strings.Contains(err.Error(), "rdma-spec configure cdi") != names {
			t.Errorf("with %s: %v, want that it names configure cdi: %t", dir, err, names)
		}
	}
	root, _ := configureNode(t)
	scratch.File(t, filepath.Join(root, "usr/bin/docker"), "", 0o755)
	got := done(t, root, "--all --program ROOT/nri-rdma --dry-run")
	if !strings.Contains(got.Stderr, "to add HCAs to their containers on a node without Kubernetes, run rdma-spec configure cdi") {
		t.Errorf("with Docker beside containerd: %+v", got)
	}
}
