// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// The files are as runc has systemd write them (NVIDIA/nvidia-container-toolkit#1227, koordinator-sh/koordinator#2809).
func TestScope(t *testing.T) {
	const id = "c33389a1c755"
	const unit = "cri-containerd-" + id + ".scope"
	const at, slice = "run/systemd/transient/" + unit, "0::/kubepods.slice/kubepods-pod1.slice/"
	const header = "# This is a drop-in unit file extension, created via \"systemctl set-property\"\n[Scope]\n"
	usual := "DeviceAllow=\nDeviceAllow=char-pts rwm\nDeviceAllow=/dev/char/1:3 rwm\nDeviceAllow=char-* m\n"
	for name, test := range map[string]struct {
		cgroup     string
		files      map[string]string
		want       Scope
		known, gpu bool
	}{
		"without the GPU": {slice + unit + "\n", map[string]string{at: "[Scope]\n", at + ".d/50-DevicePolicy.conf": header +
			"DevicePolicy=strict\n", at + ".d/50-DeviceAllow.conf": header + usual},
			Scope{Devices: []string{"char-pts", "/dev/char/1:3"}}, true, false},
		"with it": {slice + unit + "\n", map[string]string{at: "[Scope]\n", at + ".d/50-DeviceAllow.conf": header + usual +
			"DeviceAllow=/dev/char/195:0 rw\n"}, Scope{Devices: []string{"char-pts", "/dev/char/1:3", "/dev/char/195:0"}}, true, true},
		"its making alone": {slice + unit + "\n", map[string]string{at: "[Scope]\n", at + ".d/50-DeviceAllow.conf": header +
			"DeviceAllow=/dev/char/195:0 m\n"}, Scope{}, true, false},
		"by its name": {slice + unit + "\n", map[string]string{at: "[Scope]\nDeviceAllow=char-nvidia-frontend rwm\n"},
			Scope{Devices: []string{"char-nvidia-frontend"}}, true, true},
		"systemd before 230": {"4:devices:/kubepods.slice/" + unit + "\n", map[string]string{"run/systemd/system/" + unit: "[Scope]\n",
			"run/systemd/system/" + unit + ".d/50-DeviceAllow.conf": header + usual},
			Scope{Devices: []string{"char-pts", "/dev/char/1:3"}}, true, false},
		"strict, without a rule": {slice + unit + "\n", map[string]string{at: "[Scope]\nDevicePolicy=strict\n"}, Scope{}, true, false},
		"no restriction": {slice + unit + "\n", map[string]string{at: "[Scope]\nDevicePolicy=auto\n"}, Scope{Untouched: true},
			true, true},
		"another systemd in it":              {slice + unit + "/init.scope\n", map[string]string{at: "[Scope]\n"}, Scope{Untouched: true}, true, true},
		"cgroupfs":                           {"0::/kubepods/burstable/pod1/" + id + "\n", nil, Scope{Untouched: true}, true, true},
		"seen from a container":              {"0::/../../kubepods-pod1.slice/" + unit + "\n", map[string]string{at: "[Scope]\n"}, Scope{Untouched: true}, true, true},
		"systemd's files are not to be seen": {slice + unit + "\n", nil, Scope{}, false, false},
		"of another container":               {slice + "cri-containerd-abc.scope\n", nil, Scope{}, false, false},
		"it has ended":                       {"", nil, Scope{}, false, false},
	} {
		files := map[string]string{"proc/7/cgroup": test.cgroup}
		for file, text := range test.files {
			files[file] = text
		}
		got, known := Process{PID: 7}.Scope(scratch.With(t, files, 0o600), id)
		if diff := cmp.Diff(test.want, got); diff != "" || known != test.known || got.Allows("/195:", "nvidia") != test.gpu {
			t.Errorf("%s: known %t, a GPU %t (-want +got):\n%s", name, known, got.Allows("/195:", "nvidia"), diff)
		}
	}
}
