// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"testing"
)

func TestSandboxes(t *testing.T) {
	handler := func(name string) bool { return Handler(name, "io.containerd.runc.v2", "/usr/bin/runc") }
	byType := func(name string) bool { return Handler("untrusted", name, "") }
	byProgram := func(name string) bool { return Handler("untrusted", "io.containerd.runc.v2", name) }
	inContainer := func(name string) bool { return Process(name, false) }
	onNode := func(name string) bool { return Process(name, true) }
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
		"handlers by their types":    {byType, []string{"io.containerd.kata.v2"}, []string{"", "io.containerd.runc.v2"}},
		"handlers by their programs": {byProgram, []string{"/usr/bin/krun", "/usr/local/bin/runsc"}, []string{"", "/usr/bin/crun"}},
		"processes in containers": {inContainer, []string{"/usr/local/bin/runsc"}, []string{"/usr/bin/qemu-system-x86_64",
			"/usr/bin/python3"}},
		"processes on the node": {onNode, []string{"/opt/kata/bin/qemu-system-x86_64", "/usr/bin/firecracker"},
			[]string{"/usr/bin/runc"}},
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
