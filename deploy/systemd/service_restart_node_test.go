// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package systemd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdma-spec/rdma-spec/test/node/systemd"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// testDeath: systemd starts the plugin again after SIGABRT, which its watchdog sends. Go ends a program with status 2
// then, as it does where a program panics. TestNodeServiceUpgrade does the same with SIGKILL.
func testDeath(t *testing.T) {
	t.Helper()
	before := awaitRegistered(t, 0)
	if err := syscall.Kill(before, syscall.SIGABRT); err != nil {
		t.Fatal(err)
	}
	awaitRegistered(t, before)
}

// awaitRegistered waits until the service's main process is another one than before and has told systemd that it is
// registered, and returns its PID.
func awaitRegistered(t *testing.T, before int) int {
	t.Helper()
	pid := 0
	await.Success(t, 2*time.Minute, fmt.Sprintf("registered: the service, with another process than %d", before),
		func() error {
			state := systemd.Manage(t, "show", "--property=MainPID,StatusText", "nri-rdma")
			found := regexp.MustCompile(`(?m)^MainPID=(\d+)$`).FindStringSubmatch(state)
			if found == nil {
				return fmt.Errorf("systemd does not name its process:\n%s", state)
			}
			pid, _ = strconv.Atoi(found[1]) // digits
			if pid == 0 || pid == before || !strings.Contains(state, "StatusText=registered") {
				return fmt.Errorf("systemd says:\n%s", state)
			}
			return nil
		})
	return pid
}

// testOrder: both services start before the services that bring pods.
func testOrder(t *testing.T) {
	t.Helper()
	for _, service := range []string{"nri-rdma", "nri-rdma-validator"} {
		before := strings.Fields(systemd.Manage(t, "show", "--property=Before", "--value", service))
		for _, runtime := range []string{
			"containerd", "crio", "kubelet", "k3s", "k3s-agent", "rke2-server", "rke2-agent", "k0scontroller", "k0sworker",
			"snap.microk8s.daemon-containerd",
		} {
			if !slices.Contains(before, runtime+".service") {
				t.Errorf("%s.service does not start before %s.service, only before %v", service, runtime, before)
			}
		}
	}
}

// testRuntimeDirectory: the plugin can write to its runtime directory, and what it writes outlives it.
func testRuntimeDirectory(t *testing.T) {
	t.Helper()
	const dir = "/run/rdma-spec"
	mounts := scratch.Read(t, filepath.Join("/proc", strconv.Itoa(awaitRegistered(t, 0)), "mountinfo"))
	writable := map[string]bool{} // by mount point
	for _, mount := range regexp.MustCompile(`(?m)^(?:\S+ ){4}(\S+) (rw|ro)`).FindAllStringSubmatch(mounts, -1) {
		writable[mount[1]] = mount[2] == "rw"
	}
	if !writable[dir] || writable["/"] {
		t.Errorf("%s must be writable, and / must not be:\n%s", dir, mounts)
	}
	kept := filepath.Join(dir, "kept")
	scratch.File(t, kept, "", 0o600)
	systemd.Manage(t, "stop", "nri-rdma")
	if _, err := os.Stat(kept); err != nil {
		t.Errorf("after systemctl stop: %v", err)
	}
}
