// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/test/node"
	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/node/pods"
	"github.com/rdma-spec/rdma-spec/test/node/systemd"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

const (
	pluginLog, containerdLog = "/run/nri-rdma.log", "/run/containerd.log"

	// filesOfUnit is the limit of open files in the unit, for containerd and for containers without their own limit.
	filesOfUnit = 524288

	// containerdUnit is the unit in containerd's own releases.
	containerdUnit = `[Unit]
Description=containerd container runtime
Documentation=https://containerd.io
After=network.target dbus.service local-fs.target

[Service]
ExecStart=/usr/local/bin/containerd
Type=notify
Delegate=yes
KillMode=process
Restart=always
RestartSec=5
LimitNPROC=infinity
LimitCORE=infinity
TasksMax=infinity
OOMScoreAdjust=-999

[Install]
WantedBy=multi-user.target
`
)

// installDropIn adds lines to a service, and writes its log to a file, because the node has no journal.
func installDropIn(t *testing.T, unit, lines, log string) {
	t.Helper()
	scratch.File(t, filepath.Join(systemd.Units, unit+".service.d/node.conf"), "[Service]\nStandardError=append:"+
		log+"\n"+lines+"\n", 0o644)
}

// bareNode is a node on which systemd runs a containerd as installed from its release. A container is running on it.
type bareNode struct {
	kept    string // a container that has an HCA and runs all the time
	keptPID int
}

// startBare installs and starts a containerd. It keeps the state of the previous bare node's containerd, which is
// separate from the state of the node's other containerds.
func startBare(t *testing.T, version, bare string) *bareNode {
	t.Helper()
	parts := nodeParts(t)
	_, err := os.Stat("/var/lib/configure")
	first := errors.Is(err, fs.ErrNotExist)
	if first {
		onNode(t, `set -e
			mkdir -p /var/lib/configure /var/lib/containerd /run/containerd /run/nri
			mount --bind /var/lib/configure /var/lib/containerd
			for each in /run/containerd /run/nri; do mount -t tmpfs -o mode=0755 tmpfs $each; done`)
	}
	scratch.File(t, "/usr/local/lib/systemd/system/containerd.service", containerdUnit, 0o644)
	installDropIn(t, "containerd",
		"ExecStart=\nExecStart=/usr/local/bin/containerd --config /etc/containerd/config.toml\n"+
			"Environment=PATH="+parts.Containerd(version)+":"+os.Getenv("PATH")+"\nLimitNOFILE="+
			strconv.Itoa(filesOfUnit), containerdLog)
	onNode(t, "ln -sf "+filepath.Join(parts.Containerd(version), "containerd")+" /usr/local/bin/containerd")
	n := &bareNode{}
	n.configure(t, bare)
	systemd.Manage(t, "daemon-reload")
	systemd.Manage(t, "start", "containerd")
	t.Cleanup(func() {
		systemd.Manage(t, "stop", "containerd")
		if t.Failed() {
			t.Logf("containerd said:\n%s\nnri-rdma said:\n%s", readLog(containerdLog), readLog(pluginLog))
		}
		_ = os.Remove(containerdLog) // the log of the next containerd is different
	})
	client, err := pods.NewClient(containerd.Socket)
	if err != nil {
		t.Fatal(err)
	}
	ctrd = &containerd.Containerd{Options: containerd.Options{Version: version}, Server: &pods.Server{Client: client}}
	t.Cleanup(func() {
		client.Close()
		ctrd = nil
	})
	awaitCRI(t)
	if first {
		importImages(t, filepath.Join(parts.Containerd(version), "ctr"), parts)
	}
	n.kept = runContainer(t, runPod(t, containerd.Pod{}), containerd.Container{Devices: containerd.Verbs(0)})
	n.keptPID = pid(t, n.kept)
	return n
}

// importImages imports the images into containerd, and gives the pause image all names that the configurations use for
// it.
func importImages(t *testing.T, ctr string, parts node.PartSet) {
	t.Helper()
	script := ctr + " -n k8s.io images import " + parts.Image("pause") + " && " + ctr + " -n k8s.io images import " +
		parts.Image("busybox") +
		" && " + ctr + " -n k8s.io images tag --force " + node.ImageName("pause")
	for _, tag := range []string{"3.8", "3.9", "3.10", "3.10.1", "3.10.2"} {
		script += " registry.k8s.io/pause:" + tag
	}
	onNode(t, script)
}

// configure replaces the node's configuration with one from the corpus.
func (n *bareNode) configure(t *testing.T, configuration string) {
	t.Helper()
	const dir = "/etc/containerd"
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"config.toml": scratch.Read(t, corpus(configuration+".toml"))}
	dropIns, err := filepath.Glob(corpus(configuration + ".conf.d/*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range dropIns {
		files["conf.d/"+filepath.Base(file)] = scratch.Read(t, file)
	}
	scratch.Files(t, dir, files, 0o640)
}

// expectKept checks that the container that runs all the time was not restarted.
func (n *bareNode) expectKept(t *testing.T) {
	t.Helper()
	if got := pid(t, n.kept); got != n.keptPID {
		t.Errorf("the process of the container that runs all the time is %d, it was %d", got, n.keptPID)
	}
	if err := syscall.Kill(n.keptPID, 0); err != nil {
		t.Errorf("the container that runs all the time: %v", err)
	}
}

// changed are the directories in which configure changes files. The test compares their files byte by byte.
var changed = []string{"/etc/containerd", "/etc/systemd", "/etc/rdma-spec", "/etc/nri", "/etc/crio", "/opt/nri",
	"/usr/local/lib/systemd", systemd.Units}

// nodeFiles describes the files and directories of the node by path: mode, owner, and content, or otherwise size and
// time.
func nodeFiles(t *testing.T) map[string]string {
	t.Helper()
	return filesIn(t, "/etc", "/opt", "/usr/local/bin", "/usr/local/lib/systemd", systemd.Units)
}

// filesIn describes the files in some directories like nodeFiles.
func filesIn(t *testing.T, dirs ...string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			all[path], err = describe(path, entry)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// expectFiles compares the files before a change with those afterwards, or after the change was reverted.
func expectFiles(t *testing.T, before, after map[string]string) {
	t.Helper()
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("files (-before +after):\n%s", diff)
	}
}

func describe(path string, entry fs.DirEntry) (string, error) {
	info, err := entry.Info()
	if err != nil {
		return "", err
	}
	owner, _ := info.Sys().(*syscall.Stat_t) // always this type on Linux
	text := fmt.Sprintf("%v %d:%d", info.Mode(), owner.Uid, owner.Gid)
	inside := func(dir string) bool { return strings.HasPrefix(path, dir+"/") }
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		to, err := os.Readlink(path)
		return text + " -> " + to, err
	case info.Mode().IsRegular() && slices.ContainsFunc(changed, inside):
		content, err := os.ReadFile(path)
		return text + "\n" + string(content), err
	case info.Mode().IsRegular():
		return fmt.Sprintf("%s %d bytes of %v", text, info.Size(), info.ModTime()), nil
	}
	return text, nil
}

// readLog returns the content of a log file; "" if it does not exist.
func readLog(file string) string {
	text, _ := os.ReadFile(file) // a missing file is treated as empty
	return string(text)
}

// succeed runs rdma-spec, which must exit with 0.
func succeed(t *testing.T, args ...string) {
	t.Helper()
	if stdout, stderr, status := call(t, args...); status != 0 {
		t.Fatalf("rdma-spec %s: exit status %d\n%s%s", strings.Join(args, " "), status, stdout, stderr)
	}
}

// awaitCRI waits until the containerd that systemd runs responds.
func awaitCRI(t *testing.T) {
	t.Helper()
	await.That(t, patience, "answering CRI", func() bool { return ctrd.Answers(within(t, patience)) })
}

// awaitRegisteredService waits until the service has logged this many times that the plugin is registered.
func awaitRegisteredService(t *testing.T, times int) {
	t.Helper()
	await.That(t, patience, "registered: the service",
		func() bool { return strings.Count(readLog(pluginLog), "msg=registered") >= times })
}
