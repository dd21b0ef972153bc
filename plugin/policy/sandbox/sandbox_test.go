// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"path"
	"slices"
	"testing"
)

func TestSandboxes(t *testing.T) {
	handler := func(name string) bool {
		return slices.ContainsFunc(Handlers(), func(glob string) bool { is, _ := path.Match(glob, name); return is })
	}
	annotated := func(key string) bool { return Annotated(map[string]string{key: "krun"}) }
	for what, test := range map[string]struct {
		is      func(string) bool
		yes, no []string
	}{
		"handlers": {handler, []string{"kata", "kata-qemu", "runsc", "gvisor", "krun", "krun-sev",
			"contrast-cc-k3s-qemu-tdx-0123abcd"}, []string{"", "runc", "crun", "nvidia", "my-kata"}},
		"runtime types": {Type, []string{"io.containerd.kata.v2", "io.containerd.kata-qemu.v2", "io.containerd.runsc.v1",
			"io.containerd.contrast-cc.v2", "io.containerd.krun.v2"}, []string{"", "io.containerd.runc.v2", "runsc"}},
		"programs": {Program, []string{"/opt/kata/bin/qemu-system-x86_64", "runsc-sandbox", "/usr/bin/krun",
			"containerd-shim-kata-v2", "firecracker"}, []string{"", "/usr/bin/runc", "crun", "/bin/sleep", "/qemu/sleep"}},
		"annotations": {annotated, []string{"io.katacontainers.pkg.oci.container_type", "dev.gvisor.spec.mount.a",
			"run.oci.handler"}, []string{"io.kubernetes.cri.container-type", "katacontainers"}},
	} {
		for _, name := range test.yes {
			if !test.is(name) {
				t.Errorf("%s: %q is not that of a sandbox", what, name)
			}
		}
		for _, name := range test.no {
			if test.is(name) {
				t.Errorf("%s: %q is that of a sandbox", what, name)
			}
		}
	}
}
