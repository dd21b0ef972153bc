// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package configure

import (
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor/runtimes"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
)

// quickContainerd is fakeContainerd without other programs, for a test that calls it often.
const quickContainerd = `#!/bin/sh
[ "$1" = --version ] && echo containerd fake v2.4.2 && exit
load() {
	while IFS= read -r line; do case $line in
	*"disable = "*) disable=${line#*disable = } disable=${disable%% *} ;;
	*"base_runtime_spec = "*) base=$line ;;
	imports*) imports=${line#*=} ;;
	esac; done < "$1"
}
load "$2"
IFS="[]\"', "
for file in $imports; do [ -z "$file" ] || load "$file"; done
echo "[plugins.'io.containerd.nri.v1.nri']
disable = $disable
disable_connections = false
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
$base
runtime_type = 'io.containerd.runc.v2'"
`

// callInTurn calls the command, and waits where another one has the node.
func callInTurn(t *testing.T, root string, args ...string) outcome {
	t.Helper()
	for {
		got := call(append(args, "--root", root)...)
		if !strings.Contains(got.Stderr, "another rdma-spec configure is running (PID ") {
			return got
		}
		lock, err := os.Open(filepath.Join(root, "var/lib/rdma-spec/configure/lock"))
		if err == nil {
			err = errors.Join(syscall.Flock(int(lock.Fd()), syscall.LOCK_EX), lock.Close())
		}
		if err != nil {
			t.Error(err)
			return got
		}
	}
}

// Of two configures beside each other, a hundred times, both are done: each change is there, and each is taken back.
func TestConfigureBesideAnother(t *testing.T) {
	root, _ := configureNode(t)
	program := filepath.Join(root, "usr/bin/containerd")
	if err := os.WriteFile(program, []byte(quickContainerd), 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	before := nodeFiles(t, root)
	both := func(first, second string) {
		var done sync.WaitGroup
		for _, what := range []string{first, second} {
			done.Go(func() {
				if got := callInTurn(t, root, append([]string{"configure"}, strings.Fields(what)...)...); got.Status != 0 {
					t.Errorf("%s: %+v", what, got)
				}
			})
		}
		done.Wait()
	}
	for pair := 0; pair < 100 && !t.Failed(); pair += 2 {
		both("nri", "handler runc --in-place")
		for _, file := range []string{"nri", "handler-runc"} {
			if _, err := os.Stat(filepath.Join(root, "etc/containerd/conf.d/90-rdma-spec-"+file+".toml")); err != nil {
				t.Errorf("pair %d: %v", pair, err)
			}
		}
		text, err := os.ReadFile(filepath.Join(root, "etc/containerd/config.toml"))
		if err != nil || strings.Count(string(text), "/etc/containerd/conf.d/90-rdma-spec-*.toml") != 1 {
			t.Errorf("pair %d: %v: %s", pair, err, text)
		}
		both("nri --revert", "handler runc --revert")
		if diff := cmp.Diff(before, nodeFiles(t, root)); diff != "" {
			t.Errorf("pair %d, --revert (-before +after):\n%s", pair, diff)
		}
	}
}

// nvidia-ctk takes no lock: it reads containerd's configuration and, later, writes it whole. What it has written over is
// named by the doctor, and the next configure restores it beside what nvidia-ctk wrote. A revert leaves that.
func TestConfigureAfterAnotherToolWroteOverIt(t *testing.T) {
	root, _ := configureNode(t)
	config := filepath.Join(root, "etc/containerd/config.toml")
	read, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	if got := call("configure", "nri", "--root", root); got.Status != 0 {
		t.Fatalf("%+v", got)
	}
	theirs := string(read) + "\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia]\n" +
		"  runtime_type = 'io.containerd.runc.v2'\n"
	if err := os.WriteFile(config, []byte(theirs), 0o755); err != nil { //nolint:gosec // as it was
		t.Fatal(err)
	}
	if found := overwritten(t, root); len(found) != 1 || !strings.Contains(found[0].Text,
		"no longer has what rdma-spec configure nri did on ") ||
		!strings.HasPrefix(found[0].Cure, "rdma-spec configure nri") {
		t.Errorf("the doctor finds %+v", found)
	}
	if got := call("configure", "nri", "--root", root); got.Status != 0 || got.Stdout != "wrote "+config+"\n" {
		t.Errorf("configured again: %+v", got)
	}
	text, err := os.ReadFile(config)
	if err != nil || !strings.Contains(string(text), "runtimes.nvidia]") ||
		!strings.Contains(string(text), "/etc/containerd/conf.d/90-rdma-spec-*.toml") {
		t.Errorf("%v: %s", err, text)
	}
	if found := overwritten(t, root); len(found) > 0 {
		t.Errorf("configured again, the doctor finds %+v", found)
	}
	if got := call("configure", "--revert", "--root", root); got.Status != 0 {
		t.Errorf("--revert: %+v", got)
	}
	if text, err = os.ReadFile(config); err != nil || string(text) != theirs {
		t.Errorf("--revert: %v: %s", err, text)
	}
	if entries, err := os.ReadDir(filepath.Join(root, "etc/containerd/conf.d")); err == nil {
		t.Errorf("--revert leaves %v", entries)
	}
}

// overwritten returns what the doctor says of what other tools have written over.
func overwritten(t *testing.T, root string) []doctor.Finding {
	t.Helper()
	found, _, err := doctor.Diagnose(t.Context(), node.Options{Root: root, Patience: node.Daemons}, runtimes.Checks(),
		[]string{"configuration-kept"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(found, func(f doctor.Finding) bool {
		return f.Check != "configuration-kept" || f.Status != doctor.Wrong
	})
}

// The nodes of platforms and packages are configured and reverted as a whole: what they own stays.
func TestConfigureTrees(t *testing.T) {
	const (
		service  = "/etc/rdma-spec/config.yaml /usr/local/bin/nri-rdma /etc/systemd/system/nri-rdma.service"
		config   = "version = 3\n\n[plugins.'io.containerd.nri.v1.nri']\n  disable = true\n"
		rke2     = "var/lib/rancher/rke2/"
		snap     = "var/snap/microk8s/current/args/"
		dropIn   = " /etc/containerd/conf.d/90-rdma-spec-nri.toml /etc/containerd/config.toml"
		standard = "etc/containerd/config.toml"
	)
	plain := map[string]string{"usr/bin/containerd": fakeContainerd, standard: config,
		"usr/lib/systemd/system/containerd.service": "[Service]\n"}
	with := func(more ...string) map[string]string {
		files := map[string]string{}
		for name, text := range plain {
			files[name] = text
		}
		for _, name := range more {
			files[name] = "[Service]\n"
		}
		return files
	}
	daemonSet := with()
	maps.Copy(daemonSet, aPlugin(true))
	for name, test := range map[string]struct {
		files  map[string]string
		wrote  string
		stderr string // a part
	}{
		"an RKE2 agent": {
			map[string]string{
				rke2 + "bin/containerd":                           fakeContainerd,
				rke2 + "agent/etc/containerd/config.toml":         "# File generated by rke2. DO NOT EDIT.\nversion = 3\n",
				"usr/local/lib/systemd/system/rke2-agent.service": "[Service]\n",
			},
			service + " /" + rke2 + "agent/etc/containerd/config-v3.toml.tmpl", "next: systemctl restart rke2-agent.service",
		},
		"MicroK8s": {
			map[string]string{
				"snap/microk8s/current/bin/containerd": fakeContainerd, snap + "containerd-template.toml": config,
				"etc/systemd/system/snap.microk8s.daemon-containerd.service": "[Service]\n",
				"proc/7/comm":    "containerd\n",
				"proc/7/cmdline": "containerd\x00--config\x00/" + snap + "containerd.toml\x00",
				"proc/7/cgroup":  "0::/system.slice/snap.microk8s.daemon-containerd.service\n",
			},
			service + " /" + snap + "conf.d/90-rdma-spec-nri.toml /" + snap + "containerd-template.toml",
			"next: systemctl restart snap.microk8s.daemon-containerd.service",
		},
		"a package's unit": {
			with("usr/lib/systemd/system/nri-rdma.service"), strings.TrimSpace(dropIn),
			"no plugin is installed: ROOT/usr/lib/systemd/system/nri-rdma.service, of a package, runs the plugin already, " +
				"and stays: systemctl enable --now nri-rdma",
		},
		"a DaemonSet": {daemonSet, strings.TrimSpace(dropIn),
			"no plugin is installed: a container, such as a DaemonSet's, runs the plugin (PID 7) already, and stays"},
	} {
		t.Run(name, func(t *testing.T) {
			root := aNode(t, test.files)
			plugin := filepath.Join(aNode(t, map[string]string{"nri-rdma": "\x7fELF"}), "nri-rdma")
			before := nodeFiles(t, root)
			snapped, _ := os.ReadFile(filepath.Join(root, snap+"containerd-template.toml")) // only MicroK8s has it
			got := call("configure", "--all", "--program", plugin, "--root", root)
			var wrote []string
			for line := range strings.Lines(got.Stdout) {
				if path, isOne := strings.CutPrefix(line, "wrote "+root); isOne {
					wrote = append(wrote, strings.TrimSpace(path))
				}
			}
			if diff := cmp.Diff(strings.Fields(test.wrote), wrote); diff != "" || got.Status != 0 ||
				!strings.Contains(got.Stderr, strings.ReplaceAll(test.stderr, "ROOT", root)) {
				t.Errorf("%+v (-want +got):\n%s", got, diff)
			}
			if got := call("configure", "--revert", "--root", root); got.Status != 0 {
				t.Errorf("--revert: %+v", got)
			}
			if diff := cmp.Diff(before, nodeFiles(t, root)); diff != "" {
				t.Errorf("--revert (-before +after):\n%s", diff)
			}
			if text, _ := os.ReadFile(filepath.Join(root, snap+"containerd-template.toml")); string(text) != string(snapped) {
				t.Errorf("--revert of the template:\n%s", text)
			}
			if _, err := os.Stat(filepath.Join(root, rke2+"agent/etc/containerd/config-v3.toml.tmpl")); err == nil {
				t.Error("--revert leaves a template")
			}
		})
	}
}

// In a template that configure has made, each feature is taken back by itself, and the lines of others stay.
func TestRevertOfATemplate(t *testing.T) {
	const folder = "var/lib/rancher/rke2/agent/etc/containerd/"
	root := aNode(t, map[string]string{
		"var/lib/rancher/rke2/bin/containerd": fakeContainerd,
		folder + "config.toml":                "# File generated by rke2. DO NOT EDIT.\nversion = 3\n",
	})
	template := filepath.Join(root, folder, "config-v3.toml.tmpl")
	if got := call("configure", "nri", "--root", root); got.Status != 0 {
		t.Fatalf("%+v", got)
	}
	const theirs = "\n[debug]\n  level = \"debug\"\n"
	text, err := os.ReadFile(template)
	if err = errors.Join(err, os.WriteFile(template, append(text, theirs...), 0o600)); err != nil {
		t.Fatal(err)
	}
	if got := call("configure", "nri", "--revert", "--root", root); got.Status != 0 {
		t.Errorf("--revert: %+v", got)
	}
	if text, err := os.ReadFile(template); err != nil || string(text) != "{{ template \"base\" . }}\n"+theirs {
		t.Errorf("--revert: %v: %s", err, text)
	}
}

// Where /usr cannot be written, nothing is changed, and the programs go where --prefix says.
func TestConfigureWithReadOnlyUsr(t *testing.T) {
	root, _ := configureNode(t)
	usr := filepath.Join(root, "usr")
	if out, err := exec.Command("chattr", "+i", usr).CombinedOutput(); err != nil {
		t.Skipf("chattr: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("chattr", "-i", usr).Run() }) // so that it can be removed
	before := nodeFiles(t, root)
	args := []string{"configure", "--all", "--program", filepath.Join(root, "nri-rdma"), "--root", root}
	got := call(args...)
	if got.Status != 3 || !strings.Contains(got.Stderr, "cannot make "+usr+"/local: operation not permitted") {
		t.Errorf("%+v", got)
	}
	if diff := cmp.Diff(before, nodeFiles(t, root)); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
	got = call(append(args, "--prefix", "/opt/rdma")...)
	if got.Status != 0 || !strings.Contains(got.Stdout, "wrote "+root+"/opt/rdma/bin/nri-rdma\n") {
		t.Errorf("with --prefix: %+v", got)
	}
	if got := call("configure", "--revert", "--root", root); got.Status != 0 {
		t.Errorf("--revert: %+v", got)
	}
	if diff := cmp.Diff(before, nodeFiles(t, root)); diff != "" {
		t.Errorf("--revert (-before +after):\n%s", diff)
	}
}
