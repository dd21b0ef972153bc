// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/configure/change"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/cri/critest"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
)

// The doctor finds in containers what status does, and what their processes see beside it.
func TestDoctorOfContainers(t *testing.T) {
	files, containers := mixedNode()
	user := holder(18, 1, "user")
	user.Spec.Process.Capabilities.Bounding = append(user.Spec.Process.Capabilities.Bounding, "CAP_IPC_LOCK")
	addProcess(files, 18, "8388608 8388608", plain)
	files["proc/18/status"] += "Uid:\t1000\t1000\t1000\t1000\n"
	mounted := other(19, "mounted")
	addProcess(files, 19, "8388608 8388608", plain)
	files["proc/19/mountinfo"] = "31 30 0:5 /infiniband /dev/infiniband ro - devtmpfs udev rw\n"
	file := config(t, mixedConfig)
	for name, test := range map[string]struct {
		args []string
		want []string
	}{
		"by a policy": {[]string{"--config", file}, []string{
			"container-ipc-lock wrong container ml/user main: rdma-spec repair --as-called ml/user",
			"container-memlock wrong container listed/privileged main: rdma-spec repair --as-called listed/privileged",
			"container-memlock wrong container ml/train-1 main: rdma-spec repair --as-called ml/train-1",
			"container-memlock wrong container ml/unseen-low main: rdma-spec repair --as-called ml/unseen-low",
			"container-memlock skipped container ml/user main: ",
			"container-memlock wrong container ml/user-namespace main: rdma-spec repair --as-called ml/user-namespace",
			"container-refused wrong container guest-a/guest main: Change the pod or the policy (FILE) as the message says",
			"container-refused wrong container ml/annotated main: Change the pod or the policy (FILE) as the message says",
			"container-hca wrong container listed/without-devices main: kubectl -n listed delete pod without-devices",
			"container-hostpath wrong container ml/mounted main: Remove the hostPath volume from the pod, and request an RDMA resource of a device plugin instead",
		}},
		"without a policy": {nil, []string{
			"container-hostpath wrong container ml/mounted main: Remove the hostPath volume from the pod, and request an RDMA resource of a device plugin instead",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			root := files.Root(t)
			r := critest.Serve(t, critest.Options{}, append(containers, user, mounted)...)
			stdout, stderr, _ := command(t, append([]string{"doctor", "-o", "json", "--root", root, "--runtime-endpoint", r.Socket,
				"--only", "container-ipc-lock,container-memlock,container-refused,container-hca,container-hostpath"}, test.args...)...)
			var got diagnosis
			if err := json.Unmarshal([]byte(stdout), &got); err != nil {
				t.Fatalf("%v: %s%s", err, stdout, stderr)
			}
			var lines []string
			for _, f := range got.Findings {
				if f.Status == doctor.Wrong || f.Status == doctor.Skipped {
					asCalled := strings.Join([]string{"--config", file, "--root", root, "--runtime-endpoint", r.Socket}, " ")
					cure := strings.NewReplacer(asCalled, "--as-called", file, "FILE").Replace(f.Cure)
					lines = append(lines, fmt.Sprintf("%s %s %s: %s", f.Check, f.Status, f.Object, cure))
				}
			}
			if diff := cmp.Diff(test.want, lines); diff != "" {
				t.Errorf("(-want +got):\n%s\n%s", diff, stdout)
			}
		})
	}
}

// The doctor is told which file another tool has overwritten since configure wrote it.
func TestDoctorOfConfiguredFiles(t *testing.T) {
	root, _ := cdiNode(t, "etc/systemd/system/containerd.service")
	if got := call("", "configure", "limits", "--root", root); got.Status != 0 {
		t.Fatalf("%+v", got)
	}
	answer := func() []change.Overwriting {
		t.Helper()
		got, err := nodeOptions{root: root}.questions(nil)[doctor.QuestionConfigured](t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return got.(doctor.Configured).Overwritten
	}
	if got := answer(); len(got) != 0 {
		t.Errorf("untouched: %v", got)
	}
	const dropIn = "/etc/systemd/system/containerd.service.d/90-rdma-spec-memlock.conf"
	if err := os.WriteFile(filepath.Join(root, dropIn), []byte("[Service]\nLimitMEMLOCK=64K\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	want := []change.Overwriting{{Path: dropIn, Feature: "limits"}}
	if diff := cmp.Diff(want, answer(), cmpopts.IgnoreFields(change.Overwriting{}, "Since")); diff != "" {
		t.Errorf("changed (-want +got):\n%s", diff)
	}
}
