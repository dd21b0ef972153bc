// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rdma-spec/rdma-spec/test/testing/await"
)

// inside, in the environment, says that a test runs in systemd's namespaces.
const inside = "TEST_INSIDE_SYSTEMD"

// Beside starts a systemd in the node, and in its namespaces the test that calls it once more, with flags of the test
// program: systemd is the first process of its PID namespace, and the processes of containers are in that one as well.
// There, Beside returns true. What is installed before is there when systemd starts. systemd reads the units of
// directories, and of Units.
func Beside(t *testing.T, install func(*testing.T), dirs []string, flags ...string) bool {
	t.Helper()
	if os.Getenv("RDMA_NODE") == "" {
		t.Fatal("this test runs inside the RDMA node: call `make e2e`")
	}
	if os.Getenv(inside) != "" {
		return true
	}
	install(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute) // an emulated CPU
	defer cancel()
	s, err := Start(ctx, dirs...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Stop()
		if t.Failed() {
			t.Logf("systemd:\n%s", Log("nri-rdma", "containerd"))
		}
	})
	self, err := filepath.Abs(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	deadline, _ := t.Deadline() // the Makefile gives one
	_, subtests, _ := strings.Cut(flag.Lookup("test.run").Value.String(), "/")
	cmd := s.Command(self, append([]string{"-test.run=^" + t.Name() + "$/" + subtests,
		"-test.skip=" + flag.Lookup("test.skip").Value.String(), "-test.v",
		"-test.timeout=" + (time.Until(deadline) - time.Minute).String()}, flags...)...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdout = t.Output()
	cmd.Stderr = t.Output()
	cmd.WaitDelay = await.Timeout // where a process that it left keeps its output open
	if err := cmd.Run(); err != nil {
		t.Errorf("beside systemd: %v", err)
	}
	return false
}

// Manage runs systemctl, which must succeed, and returns what it says.
func Manage(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("systemctl", args...).CombinedOutput()
	if err != nil {
		t.Errorf("systemctl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}
