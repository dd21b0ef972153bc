// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/node/systemd"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// TestConfigure sets nodes up with rdma-spec configure, and undoes that. A systemd runs the containerd, with the
// configuration files that packages and platforms have.
func TestConfigure(t *testing.T) {
	install := func(t *testing.T) {
		installDropIn(t, "nri-rdma", "ExecStart=\nExecStart=/usr/local/bin/nri-rdma --budget "+budget, pluginLog)
	}
	folders := []string{"/etc/systemd/system", "/usr/local/lib/systemd/system"}
	if !systemd.Beside(t, install, folders, "-containerd=", "-bin", *bin) {
		return
	}
	type subtest struct {
		name string
		run  func(*testing.T, *bareNode)
	}
	for _, test := range []struct {
		version, bare string
		subtests      []subtest
	}{
		{version: "1.7.35", bare: "1.7/debian", subtests: []subtest{
			{"All", testAll(configureAll)},
			{"Ansible", testAll(followPlaybook)},
			{"Configurations", configurations("1.7/imports", "1.7/quoting", "1.7/version-1")},
		}},
		{version: "2.4.2", bare: "2.4/nri-off", subtests: []subtest{
			{"Readme", testAll(followReadme)},
			{"DaemonThatDoesNotComeBack", testPutBack},
			{"Configurations", configurations("2.4/crlf-imports", "2.4/version-1")},
			{"HandMadeSpec", testHandMadeSpec},
			{"NVIDIA", testNVIDIA},
		}},
	} { // the older first, since a newer one's state stays
		t.Run(test.version, func(t *testing.T) {
			n := startBare(t, test.version, test.bare)
			for _, sub := range test.subtests {
				t.Run(sub.name, func(t *testing.T) { sub.run(t, n) })
			}
		})
	}
}

// What sets a node up, and what that prints as next, make a bare node one whose RDMA containers transfer. --revert
// gives the node its files again.
func testAll(setUp func(*testing.T) (next string)) func(*testing.T, *bareNode) {
	return func(t *testing.T, n *bareNode) {
		before := nodeFiles(t)
		expectMemlock(t, n.kept, kernelDefault)

		registered := strings.Count(readLog(pluginLog), "msg=registered")
		doNext(t, setUp(t))
		awaitRegisteredService(t, registered+1)
		awaitCRI(t)
		pair := runPod(t, containerd.Pod{})
		server := runContainer(t, pair, containerd.Container{Name: "server", Devices: containerd.Verbs(0)})
		client := runContainer(t, pair, containerd.Container{Name: "client", Devices: containerd.Verbs(0), User: 1000})
		expectTransfer(t, server, client)

		systemd.Manage(t, "disable", "--now", "nri-rdma")
		succeed(t, "configure", "--revert", "--restart")
		expectFiles(t, before, nodeFiles(t))
		awaitCRI(t)
		n.expectKept(t)
		if connection, err := net.Dial("unix", containerd.NRISocket); err == nil {
			_ = connection.Close() // nothing was sent
			t.Error("NRI still serves")
		}
	}
}

// doNext runs the commands that setting the node up printed as next.
func doNext(t *testing.T, next string) {
	t.Helper()
	for line := range strings.Lines(next) {
		if strings.HasPrefix(line, "rdma-spec: there is no answer yet about ") { // the node has much else to do
			continue
		}
		command, isNext := strings.CutPrefix(strings.TrimSpace(line), "rdma-spec: next: ")
		if !isNext {
			t.Fatalf("what sets the node up says %s", next)
		}
		onNode(t, command)
	}
}

// configureAll sets the node up with one command.
func configureAll(t *testing.T) (next string) {
	t.Helper()
	_, stderr, status := call(t, "configure", "--all", "--restart")
	if status != 0 {
		t.Fatalf("rdma-spec configure --all --restart: exit status %d: %s", status, stderr)
	}
	return stderr
}

// followReadme sets the node up as README.md says for one node. What is to be built has been built.
func followReadme(t *testing.T) (next string) {
	t.Helper()
	_, section, _ := strings.Cut(deployFile(t, "../README.md"), "\n## Install it on one node\n")
	_, commands, _ := strings.Cut(section, "\n```sh node\nmake build\n")
	commands, _, found := strings.Cut(commands, "```\n")
	if !found {
		t.Fatal("README.md does not say how to install it on one node")
	}
	var said bytes.Buffer
	follow := exec.CommandContext(t.Context(), "sh", "-ec", commands)
	follow.Stderr = &said
	if err := follow.Run(); err != nil {
		t.Fatalf("README.md: %v: %s%s", err, commands, said.Bytes())
	}
	if err := os.Remove("/usr/local/bin/rdma-spec"); err != nil { // the only file that --revert leaves
		t.Error(err)
	}
	return said.String()
}

// followPlaybook sets the node up with the playbook for many nodes: it says what it changes, and a second run changes
// nothing, nor would a third.
func followPlaybook(t *testing.T) (next string) {
	t.Helper()
	playbook := deployPath("ansible/nri-rdma.yaml")
	task := regexp.MustCompile(`(?m)^TASK \[Turn NRI on, and install the plugin's service\] .*\n(\w+): \[localhost\]`)
	for _, play := range []struct {
		args []string
		want []string // what the task says of the node in each run
	}{{[]string{playbook, playbook}, []string{"changed", "ok"}}, {[]string{"--check", playbook}, []string{"ok"}}} {
		args := append([]string{"-i", "localhost,", "-c", "local", "-e", "programs=" + *bin}, play.args...)
		out, err := exec.CommandContext(t.Context(), "ansible-playbook", args...).CombinedOutput()
		t.Logf("ansible-playbook %s: %v\n%s", strings.Join(args, " "), err, out)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, said := range task.FindAllSubmatch(out, -1) {
			got = append(got, string(said[1]))
		}
		if diff := cmp.Diff(play.want, got); diff != "" {
			t.Errorf("%q: what the task says (-want +got):\n%s", play.args, diff)
		}
	}
	return "" // the playbook has done what is next
}

// A plugin that has no index does no harm as long as NRI is off; with NRI on, CRI does not start because of it, and no
// check of the configuration shows that. configure restores all files, and the daemon serves as before.
func testPutBack(t *testing.T, n *bareNode) {
	const harmful = "/opt/nri/plugins/logger"
	scratch.File(t, harmful, "#!/bin/sh\n", 0o755)
	t.Cleanup(func() {
		if err := os.Remove(harmful); err != nil {
			t.Error(err)
		}
	})
	before := nodeFiles(t)
	stdout, stderr, status := call(t, "configure", "nri", "--restart")
	if status != 3 || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.HasSuffix(stderr,
		": the files are restored, and containerd.service runs as before\n") {
		t.Errorf("rdma-spec configure nri --restart: exit status %d, %s%s", status, stdout, stderr)
	}
	expectFiles(t, before, nodeFiles(t))
	awaitCRI(t)
	n.expectKept(t)
	runPod(t, containerd.Pod{})
}

// Who follows the usual recipe by hand, edit what ctr prints and let the handler use it, has containers with 1024
// files. configure cures it.
func testHandMadeSpec(t *testing.T, n *bareNode) {
	n.configure(t, "2.4/default")
	const spec, config = "/etc/containerd/cri-base.json", "/etc/containerd/config.toml"
	scratch.File(t, spec, handMadeSpec(t), 0o644)
	text := readLog(config)
	edited := strings.Replace(text, "base_runtime_spec = ''", "base_runtime_spec = '"+spec+"'", 1)
	if edited == text {
		t.Fatalf("the default configuration has no base_runtime_spec:\n%s", text)
	}
	scratch.File(t, config, edited, 0o644)
	systemd.Manage(t, "restart", "containerd")
	awaitCRI(t)
	before := filesIn(t, "/etc/containerd")
	pod := runPod(t, containerd.Pod{})
	capped := runContainer(t, pod, containerd.Container{Name: "capped"})
	if got := shell(t, capped, "ulimit -Hn"); got != "1024" {
		t.Errorf("with the recipe, a process may open %s files, and we say that it is 1024", got)
	}
	succeed(t, "configure", "handler", "runc", "--in-place", "--restart")
	awaitCRI(t)
	cured := runContainer(t, pod, containerd.Container{Name: "cured"})
	if got := shell(t, cured, "ulimit -Hn"); got != strconv.Itoa(filesOfUnit) {
		t.Errorf("a process may open %s files, want %d, as the unit says", got, filesOfUnit)
	}
	expectMemlock(t, cured, "unlimited")
	n.expectKept(t)
	succeed(t, "configure", "--revert")
	expectFiles(t, before, filesIn(t, "/etc/containerd"))
}

// corpus is the folder of configuration files that the tests of package containerd have.
func corpus(name string) string {
	return filepath.Join(*bin, "../cmd/rdma-spec/internal/configure/editor/testdata", name)
}

// configurations turns NRI on in files of the corpus, one after another, and lets the daemon run a pod with each.
func configurations(names ...string) func(*testing.T, *bareNode) {
	return func(t *testing.T, n *bareNode) {
		plugin := startAnyhow(t, filepath.Join(*bin, "nri-rdma")+" --budget "+budget)
		for i, name := range names {
			t.Run(filepath.Base(name), func(t *testing.T) {
				n.configure(t, name)
				before := filesIn(t, "/etc/containerd")
				succeed(t, "configure", "nri", "--restart")
				awaitRegistrations(t, plugin, i+1)
				awaitCRI(t)
				id := runContainer(t, runPod(t, containerd.Pod{}), containerd.Container{Devices: containerd.Verbs(0)})
				expectMemlock(t, id, "unlimited")
				n.expectKept(t)
				succeed(t, "configure", "nri", "--revert")
				expectFiles(t, before, filesIn(t, "/etc/containerd"))
			})
		}
	}
}
