// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/node/systemd"
	"github.com/rdma-spec/rdma-spec/test/testing/pages"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// TestConfigure sets nodes up with rdma-spec configure, and reverts that. systemd runs containerd, with configuration
// files like those from packages and platforms.
func TestConfigure(t *testing.T) {
	install := func(t *testing.T) {
		installDropIn(t, "nri-rdma", "ExecStart=\nExecStart=/usr/local/bin/nri-rdma --budget "+budget, pluginLog)
	}
	dirs := []string{"/etc/systemd/system", "/usr/local/lib/systemd/system"}
	if !systemd.Beside(t, install, dirs, "-containerd=", "-bin", *bin) {
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
			{"Pages", testPages},
			{"DaemonThatDoesNotComeBack", testPutBack},
			{"Configurations", configurations("2.4/crlf-imports", "2.4/version-1")},
			{"HandMadeSpec", testHandMadeSpec},
			{"NVIDIA", testNVIDIA},
		}},
	} { // the older version first, because a newer version's state stays
		t.Run(test.version, func(t *testing.T) {
			n := startBare(t, test.version, test.bare)
			for _, sub := range test.subtests {
				t.Run(sub.name, func(t *testing.T) { sub.run(t, n) })
			}
		})
	}
}

// After a node was set up, and the printed next steps were run, RDMA containers on the node can transfer. --revert
// restores the node's files.
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

// doNext runs the commands that were printed as next steps after the node was set up.
func doNext(t *testing.T, next string) {
	t.Helper()
	for line := range strings.Lines(next) {
		if strings.HasPrefix(line, "rdma-spec: no response yet to the queries for ") { // the node is busy
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

// clone returns a shell in a clone of the repository on the node. In the clone, make writes programs that were already
// built.
func clone(t *testing.T) pages.Shell {
	t.Helper()
	dir := scratch.Dir(t, "tools")
	scratch.File(t, filepath.Join(dir, "tools/make"), `#!/bin/sh -e
for target; do
  case $target in build) to=bin ;; amd64 | arm64) to=bin/$target ;; *) exit 2 ;; esac
  mkdir -p $to
  cp `+filepath.Join(*bin, "nri-rdma")+" "+filepath.Join(*bin, "rdma-spec")+" "+filepath.Join(*bin, "rdma-hook")+` $to
done
`, 0o755)
	if err := os.Symlink(deployPath("."), filepath.Join(dir, "deploy")); err != nil {
		t.Fatal(err)
	}
	// Ansible's nodes are this node. The pages leave the inventory to the reader.
	scratch.File(t, filepath.Join(dir, "inventory"), "node-1\nnode-2\n", 0o644)
	return pages.Shell{
		Dir: dir,
		Environment: append(os.Environ(), "ANSIBLE_TRANSPORT=local",
			"PATH="+filepath.Join(dir, "tools")+":"+os.Getenv("PATH")),
	}
}

// mayFind matches commands whose exit status 1 means that they found something.
var mayFind = regexp.MustCompile(`^rdma-spec (doctor|status|repair)\b`)

// follow runs a block of a page, and returns its output.
func follow(t *testing.T, shell pages.Shell, block pages.Block) string {
	t.Helper()
	said, failed, err := shell.Run(t.Context(), block)
	t.Logf("%s:\n%s%s", block, block.Content, said)
	failed = slices.DeleteFunc(failed, func(f pages.Failure) bool {
		return f.Status == 1 && mayFind.MatchString(f.Command)
	})
	if len(failed) > 0 || err != nil {
		t.Fatalf("%s: %+v, %v", block, failed, err)
	}
	return said
}

// nextSaid returns the next steps in a block's output.
func nextSaid(said string) (next string) {
	for line := range strings.Lines(said) {
		if strings.HasPrefix(line, "rdma-spec: ") {
			next += line
		}
	}
	return next
}

// followReadme sets the node up as README.md describes for one node.
func followReadme(t *testing.T) (next string) {
	t.Helper()
	shell, said := clone(t), ""
	for _, block := range pages.Marked(t, deployPath(".."), "TestConfigure/2.4.2/Readme") {
		said += follow(t, shell, block)
	}
	if err := os.Remove("/usr/local/bin/rdma-spec"); err != nil { // the only file that --revert leaves
		t.Error(err)
	}
	return nextSaid(said)
}

// testPages runs the blocks of the pages for a node that was set up as README.md describes, each block on such a node.
func testPages(t *testing.T, _ *bareNode) {
	before := nodeFiles(t)
	shell := clone(t)
	isInstalled := func() bool { return exec.Command("systemctl", "is-enabled", "--quiet", "nri-rdma").Run() == nil }
	for _, block := range pages.Marked(t, deployPath(".."), "TestConfigure/2.4.2/Pages") {
		t.Run(block.String(), func(t *testing.T) {
			if !isInstalled() {
				registered := strings.Count(readLog(pluginLog), "msg=registered")
				follow(t, shell, pages.Block{File: "README.md", Content: "make build\n" +
					"bin/rdma-spec configure --all --restart\ninstall -m 755 bin/rdma-spec /usr/local/bin/\n" +
					"systemctl daemon-reload\nsystemctl enable --now nri-rdma\n"})
				awaitRegisteredService(t, registered+1)
			}
			follow(t, shell, block)
		})
	}
	if isInstalled() {
		onNode(t, "systemctl disable --now nri-rdma")
		succeed(t, "configure", "--revert", "--restart")
	}
	onNode(t, "rm /usr/local/bin/rdma-spec")
	expectFiles(t, before, nodeFiles(t))
	awaitCRI(t)
}

// followPlaybook sets the node up with the playbooks on the pages. They list the HCAs, turn NRI on, add the plugin, and
// print what they change. A second run would change nothing.
func followPlaybook(t *testing.T) (next string) {
	t.Helper()
	task := regexp.MustCompile(`(?m)^TASK \[Turn NRI on, and install the plugin's service\] .*\n(\w+): \[(node-\d)\]`)
	shell, said := clone(t), ""
	all := pages.Marked(t, deployPath(".."), "TestConfigure/1.7.35/Ansible")
	for _, block := range append(all, pages.Block{File: "a dry run",
		Content: "ansible-playbook -i inventory -e programs=$PWD/bin --check deploy/ansible/nri-rdma.yaml\n"}) {
		said += follow(t, shell, block)
	}
	if !strings.Contains(said, "rxe0 port 1: Ethernet, ACTIVE, ") {
		t.Error("no playbook lists the HCAs")
	}
	var got []string
	for _, found := range task.FindAllStringSubmatch(said, -1) {
		got = append(got, found[2]+" "+found[1])
	}
	want := []string{"node-1 changed", "node-2 ok", "node-1 changed", "node-2 ok", "node-1 ok", "node-2 ok"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what the task says of the nodes (-want +got):\n%s", diff)
	}
	if err := os.Remove("/usr/local/bin/rdma-spec"); err != nil { // a link to the program that lists the HCAs
		t.Error(err)
	}
	return "" // the playbook has already run the next steps
}

// A plugin without an index causes no problem while NRI is off. If NRI is on, such a plugin prevents CRI from starting,
// and no check of the configuration shows that. configure then restores all files, and the daemon serves as before.
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
		": the files were restored, and containerd.service is running as before\n") {
		t.Errorf("rdma-spec configure nri --restart: exit status %d, %s%s", status, stdout, stderr)
	}
	expectFiles(t, before, nodeFiles(t))
	awaitCRI(t)
	n.expectKept(t)
	runPod(t, containerd.Pod{})
}

// If an administrator edits the output of ctr and lets a handler use it, containers have a limit of 1024 files.
// configure fixes that.
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
	fixed := runContainer(t, pod, containerd.Container{Name: "fixed"})
	if got := shell(t, fixed, "ulimit -Hn"); got != strconv.Itoa(filesOfUnit) {
		t.Errorf("a process may open %s files, want %d, as the unit says", got, filesOfUnit)
	}
	expectMemlock(t, fixed, "unlimited")
	n.expectKept(t)
	succeed(t, "configure", "--revert")
	expectFiles(t, before, filesIn(t, "/etc/containerd"))
}

// corpus returns the directory of configuration files in the tests of package containerd.
func corpus(name string) string {
	return filepath.Join(*bin, "../cmd/rdma-spec/internal/configure/editor/testdata", name)
}

// configurations turns NRI on in several files of the corpus. With each one, the daemon must run a pod.
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
