// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri/critest"
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
	file := configFile(t, mixedConfig)
	const raise = "rdma-spec configure nri --restart && rdma-spec configure plugin && systemctl daemon-reload && " +
		"systemctl enable --now nri-rdma"
	for name, test := range map[string]struct {
		args []string
		want []string
	}{
		"by a policy": {[]string{"--config", file}, []string{
			"container-ipc-lock wrong container ml/user main: rdma-spec repair --as-called ml/user",
			"container-memlock skipped container guest-a/guest main: ",
			"container-memlock wrong container listed/privileged main: rdma-spec repair --as-called listed/privileged",
			"container-memlock wrong container ml/train-1 main: rdma-spec repair --as-called ml/train-1",
			"container-memlock wrong container ml/unseen-low main: rdma-spec repair --as-called ml/unseen-low",
			"container-memlock skipped container ml/user main: ",
			"container-memlock wrong container ml/user-namespace main: rdma-spec repair --as-called ml/user-namespace",
			"container-refused wrong container guest-a/guest main: Change the pod or the policy (FILE) as the message says",
			"container-refused wrong container ml/annotated main: Change the pod or the policy (FILE) as the message says",
			"container-hca wrong container listed/without-devices main: kubectl -n listed delete pod without-devices",
			"container-hostpath wrong container ml/mounted main: Remove the hostPath volume from the pod, and request an RDMA " +
				"resource of a device plugin instead",
		}},
		"without a policy": {nil, []string{
			"container-ipc-lock wrong container ml/user main: " + raise,
			"container-memlock wrong container guest-a/guest main: " + raise,
			"container-memlock wrong container listed/privileged main: " + raise,
			"container-memlock wrong container ml/train-1 main: Have its program raise its own limit (ulimit -l unlimited), " +
				"and find what lowers it: a script, or /etc/security/limits.conf of its image",
			"container-memlock wrong container ml/unseen-low main: " + raise,
			"container-memlock skipped container ml/user main: ",
			"container-memlock wrong container ml/user-namespace main: " + raise,
			"container-hostpath wrong container ml/mounted main: Remove the hostPath volume from the pod, and request an RDMA " +
				"resource of a device plugin instead",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			root := files.Root(t)
			r := critest.Serve(t, critest.Options{}, append(containers, user, mounted)...)
			stdout, stderr, _ := runCommand(t, append([]string{"doctor", "-o", "json", "--root", root,
				"--runtime-endpoint", r.Socket,
				"--only", "container-ipc-lock,container-memlock,container-refused,container-hca,container-hostpath"},
				test.args...)...)
			var got doctor.Diagnosis
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
