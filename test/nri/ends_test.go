// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"
)

// A plugin that gets SIGTERM under load leaves no creation behind, and no answer that it gave is lost: also on a busy
// machine.
func TestEnds(t *testing.T) {
	eachVersion(t, func(t *testing.T, runtime string) {
		for _, loops := range []int{0, 4} {
			t.Run(fmt.Sprintf("beside %d busy loops", loops), func(t *testing.T) {
				n := newNode(t, runtime)
				keepBusy(t, n, loops)
				n.load(t)
				for range *rounds {
					p := n.start(t)
					p.awaitReady(t, registered)
					n.goesOn(t, true)
					n.pause()
					p.end(t)
					n.goesOn(t, false)
				}
				n.judge(t, false)
			})
		}
	})
}

// keepBusy runs loops that take all the CPU that they get.
func keepBusy(t *testing.T, n *node, loops int) {
	t.Helper()
	script := fmt.Sprintf("for i in $(seq %d); do while :; do :; done & done; cat; kill $(jobs -p) 2>/dev/null; wait",
		loops)
	startBeside(t, exec.Command("bash", "-c", script), filepath.Join(n.folder, "busy.log"))
}
