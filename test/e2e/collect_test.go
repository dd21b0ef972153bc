// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// A support bundle gives the same results elsewhere as the node itself. It contains no secret from the environment of a
// container or another process.
func TestCollect(t *testing.T) {
	const secret = "s3cr3t-of-a-container"
	startPlugin(t, "{}")
	container := runContainer(t, runPod(t, containerd.Pod{Namespace: "ml"}),
		containerd.Container{Devices: containerd.Verbs(0), Env: map[string]string{"PASSWORD": secret}})
	if got := shell(t, container, "echo $PASSWORD"); got != secret {
		t.Fatalf("the container's variable is %q", got)
	}
	t.Setenv("PASSWORD_OF_COLLECT", secret)
	file := filepath.Join(scratch.Dir(t), "node.tar.gz")
	const patience = "--timeout=1m" // because the node's CPU is emulated
	_, listed, status := call(t, "collect", "--to", file, patience)
	if status != 0 || !strings.Contains(listed, " sys/class/infiniband/rxe0 -> ") {
		t.Fatalf("collect: exit status %d\n%s", status, listed)
	}
	there, thereNotes, thereStatus := call(t, "doctor", "-o", "json", patience)
	here, hereNotes, hereStatus := call(t, "doctor", "-o", "json", patience, "--root", file)
	if there == "" || thereStatus != hereStatus {
		t.Errorf("doctor: exit status %d there and %d here\n%s%s", thereStatus, hereStatus, thereNotes, hereNotes)
	}
	if diff := cmp.Diff(there, here); diff != "" {
		t.Errorf("doctor, -there +here:\n%s", diff)
	}
	dir := scratch.Dir(t)
	if out, err := exec.CommandContext(t.Context(), "tar", "-xzf", file, "-C", dir).CombinedOutput(); err != nil {
		t.Fatalf("tar: %v: %s", err, out)
	}
	files := 0
	err := filepath.WalkDir(dir, func(name string, e os.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(name)
		if files++; bytes.Contains(text, []byte(secret)) || e.Name() == "environ" {
			t.Errorf("%s has an environment variable", strings.TrimPrefix(name, dir))
		}
		return err
	})
	if err != nil || files < 100 {
		t.Errorf("%d files, %v", files, err)
	}
}
