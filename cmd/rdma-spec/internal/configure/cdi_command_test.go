// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package configure

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fsnotify/fsnotify"
	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// cdiNode returns a node with files, and a directory of programs.
func cdiNode(t *testing.T, files ...string) (root, programs string) {
	t.Helper()
	root, programs = scratch.Dir(t), scratch.Dir(t)
	for _, file := range append(files, "etc/hostname") {
		scratch.File(t, filepath.Join(root, file), "[Service]\n", 0o600)
	}
	for _, name := range []string{"rdma-spec", "rdma-hook"} {
		scratch.File(t, filepath.Join(programs, name), "\x7fELF "+name, 0o755)
	}
	return root, programs
}

// theSpec is a CDI file as the units write it, which names the hook.
const theSpec = `cdiVersion: 0.5.0
kind: rdma.noderesource.dev/hca
devices:
  - name: mlx5_0
    containerEdits:
      deviceNodes:
        - path: /dev/infiniband/uverbs0
containerEdits:
  hooks:
    - hookName: createRuntime
      path: /usr/local/bin/rdma-hook
`

// configuredCDI returns a node with what configure cdi installs, and CDI files.
func configuredCDI(t *testing.T, specs map[string]string) (root string) {
	t.Helper()
	root, programs := cdiNode(t)
	done(t, root, "cdi --programs "+programs)
	scratch.Files(t, root, specs, 0o600)
	return root
}

// Containers with a device of a CDI file start only with its hook: it is there as long as a file names it.
func TestConfigureCDIRevertRemovesTheSpecificationBeforeItsHook(t *testing.T) {
	other := strings.ReplaceAll(theSpec, "/usr/local/bin/rdma-hook", "/usr/bin/rdma-hook")
	root := configuredCDI(t, map[string]string{"etc/cdi/rdma.yaml": theSpec, "run/cdi/mine.yaml": theSpec,
		"etc/cdi/package.yaml": other})
	watcher, err := fsnotify.NewBufferedWatcher(100)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = watcher.Close() })
	for _, dir := range []string{"etc/cdi", "run/cdi", "usr/local/bin"} {
		if err := watcher.Add(filepath.Join(root, dir)); err != nil {
			t.Fatal(err)
		}
	}
	if dry := done(t, root, "cdi --revert --dry-run"); !strings.Contains(dry.Stdout,
		"--- "+root+"/etc/cdi/rdma.yaml\n+++ /dev/null\n") {
		t.Errorf("--dry-run: %+v", dry)
	}
	if got := done(t, root, "cdi --revert"); !strings.Contains(got.Stdout, "removed "+root+"/etc/cdi/rdma.yaml\n") {
		t.Errorf("--revert: %+v", got)
	}
	var removed []string
	for len(removed) < 4 {
		event := await.Receive(t, await.Timeout, fmt.Sprintf("removed beside %q: another file", removed), watcher.Events)
		if event.Has(fsnotify.Remove) && event.Name != filepath.Join(root, "usr/local/bin") {
			removed = append(removed, strings.TrimPrefix(event.Name, root))
		}
	}
	if diff := cmp.Diff([]string{"/usr/local/bin/rdma-spec", "/etc/cdi/rdma.yaml", "/run/cdi/mine.yaml",
		"/usr/local/bin/rdma-hook"}, removed); diff != "" {
		t.Errorf("removed, in this order (-want +got):\n%s", diff)
	}
	if _, err := os.Stat(filepath.Join(root, "etc/cdi/package.yaml")); err != nil {
		t.Errorf("a file with another hook: %v", err)
	}
}

// A file that is not ours is not removed, so its hook stays. Units that are enabled would write the file again.
func TestConfigureCDIRevertRefuses(t *testing.T) {
	for want, files := range map[string]map[string]string{
		"the CDI file /etc/cdi/theirs.yaml uses the hook /usr/local/bin/rdma-hook: remove the CDI file first\n": {
			"etc/cdi/theirs.yaml": strings.ReplaceAll(theSpec, "rdma.noderesource.dev/hca", "example.com/nic"),
		},
		"rdma-spec-cdi.timer is enabled: run systemctl disable --now rdma-spec-cdi.timer first\n": {
			"etc/systemd/system/timers.target.wants/rdma-spec-cdi.timer": "",
		},
		"rdma-spec-cdi.service, rdma-spec-cdi.timer are enabled: run systemctl disable --now rdma-spec-cdi.service " +
			"rdma-spec-cdi.timer first\n": {
			"etc/systemd/system/timers.target.wants/rdma-spec-cdi.timer":       "",
			"etc/systemd/system/multi-user.target.wants/rdma-spec-cdi.service": "",
		},
	} {
		refused(t, configuredCDI(t, files), "cdi --revert", 3, "rdma-spec: "+want)
	}
}

// A node with a kubelet is refused, since a pod could get HCAs past NRI.
func TestConfigureCDIRefusesAKubeletsNode(t *testing.T) {
	for _, file := range []string{
		"usr/lib/systemd/system/kubelet.service", "etc/systemd/system/k3s-agent.service",
		"etc/systemd/system/rke2-server.service",
		"var/lib/kubelet/config.yaml", "etc/kubernetes/kubelet.conf",
	} {
		root, programs := cdiNode(t, file)
		refused(t, root, "cdi --programs "+programs, 3, "this node has a kubelet (")
		done(t, root, "cdi --kubernetes --programs "+programs)
	}
}

// Where /usr cannot be written, the programs are elsewhere, and the units name them there.
func TestConfigurePrefix(t *testing.T) {
	root, programs := cdiNode(t)
	scratch.File(t, filepath.Join(programs, "nri-rdma"), "\x7fELF", 0o600)
	before := nodeFiles(t, root)
	for _, args := range []string{"cdi --programs " + programs, "plugin --program " + programs + "/nri-rdma"} {
		done(t, root, args+" --prefix /opt/rdma")
	}
	for path, text := range nodeFiles(t, root) {
		if strings.Contains(text, "/usr/local/bin/") || strings.HasPrefix(path, "usr/") {
			t.Errorf("%s is in, or names, what cannot be written:\n%s", path, text)
		}
	}
	for _, unit := range []string{"rdma-spec-cdi.service", "nri-rdma.service"} {
		if text := scratch.Read(t, filepath.Join(root, "etc/systemd/system", unit)); !strings.Contains(text,
			"ExecStart=/opt/rdma/bin/") {
			t.Errorf("%s: %s", unit, text)
		}
	}
	done(t, root, "--revert")
	unchanged(t, root, before, "--revert")
}
