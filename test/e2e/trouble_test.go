// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/plugin/policy/inforce"
	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/node/daemon"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// setSysctl sets a kernel parameter until the test ends.
func setSysctl(t *testing.T, name, value string) {
	t.Helper()
	file := filepath.Join("/proc/sys", name)
	before := scratch.Read(t, file)
	scratch.File(t, file, value, 0o644)
	t.Cleanup(func() { scratch.File(t, file, before, 0o644) })
}

// nobody runs a command as a user who owns no files.
const nobody = "setpriv --reuid 65534 --regid 65534 --clear-groups"

// openDir returns a directory that every user can read, which is removed when the test ends.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/run", "trouble")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // the node ends with the tests
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// programs copies the programs to a directory from which every user can run them.
func programs(t *testing.T) string {
	t.Helper()
	dir := openDir(t)
	onNode(t, fmt.Sprintf("cp %s/nri-rdma %s/rdma-spec %s", *bin, *bin, dir))
	return dir
}

// expectLines runs a command that must fail with this exit status, no standard output, and this many lines on standard
// error. The last line must contain want.
func expectLines(t *testing.T, status, lines int, command, want string) {
	t.Helper()
	cmd := exec.CommandContext(within(t, patience), "sh", "-c", "exec "+command)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	var exit *exec.ExitError
	if err := cmd.Run(); !errors.As(err, &exit) || exit.ExitCode() != status {
		t.Errorf("%s: %v, want exit status %d", command, err, status)
	}
	if !regexp.MustCompile(want+"\n$").Match(stderr.Bytes()) || bytes.Count(stderr.Bytes(),
		[]byte("\n")) != lines || stdout.Len() > 0 {
		t.Errorf("%s: stdout %q, stderr %q, want %d lines, and the last: %s", command, stdout.String(),
			stderr.String(), lines, want)
	}
	t.Logf("%s", stderr.String())
}

// If a spec cannot be written, a one-line error contains the reason and what to do, and nothing changes.
func TestGenerateWhereNothingCanBeWritten(t *testing.T) {
	tools := programs(t)
	const room, noRoot = "no space left on device: free up space on the file system, and retry", "permission denied: run as root"
	for _, test := range []struct {
		name, options, prepare, as, file, why string
	}{
		{"full, a new file", "size=8k", "cat /dev/zero >fill 2>/dev/null || true", "", "new.json", room},
		{"full, an old file, which its backup shares", "size=8k",
			"cat /dev/zero >fill 2>/dev/null || true", "", "old.json", room},
		{"no inode left", "nr_inodes=3", "touch fill", "", "new.json", room},
		{"read-only, a new file", "size=1m", "mount -o remount,ro .", "", "new.json",
			"read-only file system: choose a writable path"},
		{"read-only, an old file", "size=1m", "mount -o remount,ro .", "", "old.json",
			"read-only file system: choose a writable path"},
		{"no permission, a new file", "mode=755", "true", nobody, "new.json", noRoot},
		{"no permission, an old file", "mode=755", "true", nobody, "old.json", noRoot},
		{"no permission to look", "mode=700", "true", nobody, "old.json", noRoot},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := openDir(t)
			onNode(t, fmt.Sprintf("mount -t tmpfs -o %s trouble %s", test.options, dir))
			t.Cleanup(func() { onNodeAfter(t, "umount "+dir) })
			onNode(t, fmt.Sprintf("cd %s && echo old >old.json && chmod 644 old.json && %s", dir, test.prepare))
			before := filesIn(t, dir)
			file := filepath.Join(dir, test.file)
			expectLines(t, 3, 1, fmt.Sprintf("%s %s/rdma-spec generate --to %s", test.as, tools, file),
				"^rdma-spec: cannot write "+file+": "+test.why)
			expectFiles(t, before, filesIn(t, dir))
		})
	}
}

// Without permission to connect to the runtime, the error is one line.
func TestStatusAndRepairWithoutRights(t *testing.T) {
	dir := programs(t)
	scratch.File(t, dir+"/config.yaml", "{}", 0o644)
	for _, command := range []string{"status", "repair"} {
		expectLines(t, 3, 1, fmt.Sprintf("%s %s/rdma-spec %s --config %[2]s/config.yaml", nobody, dir, command),
			"^rdma-spec: cannot connect to the runtime at "+containerd.Socket+": permission denied: run as root")
	}
}

// startAnyhow runs a shell command that executes nri-rdma, and does not wait until it is registered.
func startAnyhow(t *testing.T, command string) *daemon.Process {
	t.Helper()
	return start(t, "sh", "-c", "exec "+command)
}

// A plugin without permission to connect to the runtime logs that once, retries, and is registered when it has
// permission.
func TestPluginThatMayNotConnect(t *testing.T) {
	dir := filepath.Dir(containerd.NRISocket)
	t.Cleanup(func() { onNodeAfter(t, fmt.Sprintf("chmod 700 %s; chmod 600 %s", dir, containerd.NRISocket)) })
	onNode(t, fmt.Sprintf("chmod 755 %s; chmod 600 %s", dir, containerd.NRISocket))
	plugin := startAnyhow(t, fmt.Sprintf("%s %s/nri-rdma --socket %s", nobody, programs(t), containerd.NRISocket))
	awaitLog(t, plugin, "no permission to connect to the NRI socket: run the plugin as root")
	pod := runPod(t, containerd.Pod{}) // meanwhile, the plugin retries
	expectMemlock(t, runContainer(t, pod, containerd.Container{Name: "before", Devices: containerd.Verbs(0)}),
		kernelDefault)
	onNode(t, "chmod 666 "+containerd.NRISocket)
	awaitLog(t, plugin, "msg=registered")
	expectMemlock(t, runContainer(t, pod, containerd.Container{Name: "after", Devices: containerd.Verbs(0)}), "unlimited")
	if n := strings.Count(plugin.Log(), "no permission to connect"); n != 1 {
		t.Errorf("it logged %d times that it may not connect, want once", n)
	}
}

// The plugin does not need to write files: it can run with a read-only root and read-only mounts. It logs once that
// rdma-spec cannot read the policy in force.
func TestPluginOnAReadOnlyRoot(t *testing.T) {
	const readOnly = "for at in / /run /var/lib /dev /dev/shm; do mount -o remount,bind,ro $at || exit 3; done; ! touch " +
		"/run/x 2>/dev/null || exit 4; "
	plugin := startAnyhow(t, fmt.Sprintf("unshare --mount sh -c '%s exec %s/nri-rdma --socket %s --budget %s'", readOnly,
		*bin, containerd.NRISocket, budget))
	awaitLog(t, plugin, "msg=registered")
	id := runContainer(t, runPod(t, containerd.Pod{}), containerd.Container{Devices: containerd.Verbs(0)})
	expectMemlock(t, id, "unlimited")
	expectCapabilities(t, id, everySet)
	if log := plugin.Log(); strings.Contains(log, "level=error") || strings.Count(log, "level=warning") != 1 ||
		!regexp.MustCompile(`level=warning .*`+filepath.Dir(inforce.File)+`\b.*: read-only file system`).MatchString(log) {
		t.Errorf("it complains:\n%s", log)
	}
}

// If the plugin cannot watch files, because the node has no inotify instance left, it polls for the runtime's socket
// and for changes of the configuration.
func TestPluginThatCannotWatch(t *testing.T) {
	setSysctl(t, "fs/inotify/max_user_instances", "0")
	dir := openDir(t)
	config, late := filepath.Join(dir, "config.yaml"), filepath.Join(dir, "run", "nri", "nri.sock")
	scratch.File(t, config, "ipcLock: false\n", 0o644)
	plugin := startAnyhow(t, fmt.Sprintf("%s/nri-rdma --config %s --socket %s", *bin, config, late))
	awaitLog(t, plugin, "no NRI socket: waiting for the runtime")
	onNode(t, fmt.Sprintf("mkdir -p %s && ln -s %s %s", filepath.Dir(late), containerd.NRISocket, late))
	awaitLog(t, plugin, "msg=registered")
	scratch.File(t, config, "{ipcLock: false, memlock: 1Gi}\n", 0o644)
	awaitThat(t, plugin, patience, "reads the configuration again",
		func() bool { return strings.Count(plugin.Log(), "the configuration is in force") == 2 })
	expectMemlock(t, runContainer(t, runPod(t, containerd.Pod{}), containerd.Container{Devices: containerd.Verbs(0)}),
		"1073741824")
}
