// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/rdma-spec/rdma-spec/test/testing/must"
)

// TestFrozenDisk: during a rollout, the disk with the stored policies is frozen for three seconds, as during the backup
// of a virtual machine. No container is affected.
func TestFrozenDisk(t *testing.T) {
	t.Setenv("NRI_RDMA_NAMESPACE", "rdma-spec")
	t.Setenv("NRI_RDMA_POD", "nri-rdma-abcde")
	n := newNodeThatWaits(t, build(t, "runtime", "runtime-0.12.3", "-modfile", "nri-0.12.3.mod", "-tags", "nri_no_wasm"),
		2*time.Second)
	kept := filepath.Join(n.root, "var/lib/rdma-spec/inforce")
	must.Succeed(t, os.MkdirAll(kept, 0o755))
	image := filepath.Join(n.dir, "image")
	if out, err := exec.Command("sh", "-c", "truncate -s 32M "+image+" && mkfs.ext4 -q "+image+" && mount -o loop "+image+" "+
		kept).CombinedOutput(); err != nil {
		t.Skipf("no file system can be made and mounted: %v %s", err, out)
	}
	thaw := func() { _ = exec.Command("fsfreeze", "-u", kept).Run() } // fails if the disk is not frozen
	t.Cleanup(func() {
		thaw()
		_ = exec.Command("umount", kept).Run() // the test is over
	})
	old := n.owner(t, n.handover...)
	n.load(t)
	next := n.start(t, n.handover...)
	next.awaitReady(t, waiting)
	if out, err := exec.Command("fsfreeze", "-f", kept).CombinedOutput(); err != nil {
		t.Skipf("it cannot be frozen: %v %s", err, out)
	}
	began := time.Now()
	thawed := time.AfterFunc(3*time.Second, thaw)
	defer thawed.Stop()
	old.terminate()
	next.awaitReady(t, registered)
	time.Sleep(time.Until(began.Add(4 * time.Second))) // the load continues while the disk is frozen, and afterwards
	created := 0
	longest := time.Duration(0)
	for _, c := range n.creations(t) {
		if c.Began.Before(began) {
			continue
		}
		longest = max(longest, c.Ended.Sub(c.Began))
		if !c.RDMA {
			continue
		}
		if created++; !c.Adjusted {
			t.Errorf("an RDMA container was created without the plugin, %s after the freeze", c.Began.Sub(began))
		}
	}
	counters := n.counters(t)
	t.Logf("%d RDMA containers were created, the longest creation took %s; %+v", created, longest, counters)
	if created == 0 || counters.Registered != 1 || counters.Closed != 0 {
		t.Errorf("want some, over the connection of one registration")
	}
	next.kill()
}
