// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"testing"

	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

// CRI-O says nothing of a runtime's type: a monitor that runs on the node is a sandbox's.
func TestSandboxedProcess(t *testing.T) {
	root := hcatest.Files{
		"proc/5/exe": hcatest.Link("/opt/kata/bin/qemu-system-x86_64"), "proc/5/root": hcatest.Link("../.."),
		"proc/6/exe": hcatest.Link("/usr/bin/qemu-system-x86_64"), "proc/6/root/": "",
		"proc/7/exe": hcatest.Link("/usr/local/bin/runsc"), "proc/7/root/": "",
		"proc/8/exe": hcatest.Link("/usr/bin/python3"), "proc/8/root/": "",
	}.Root(t)
	for pid, want := range map[int]bool{5: true, 6: false, 7: true, 8: false, 9: false} {
		if got := (Process{PID: pid}).Sandboxed(root); got != want {
			t.Errorf("process %d: %t", pid, got)
		}
	}
}
