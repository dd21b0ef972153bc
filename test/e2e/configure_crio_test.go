// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"net"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/node/crio"
)

// configure turns NRI on in a CRI-O where it is off, and --revert gives CRI-O its files again.
func testCRIOConfigure(t *testing.T) {
	dropIn(t, "10-off.conf", "[crio.nri]\nenable_nri = false\n")
	if connection, err := net.Dial("unix", crio.NRISocket); err == nil {
		_ = connection.Close() // nothing was sent
		t.Fatal("NRI serves although it is off")
	}
	files := func() map[string]string { return filesIn(t, filepath.Dir(crio.DropIns)) }
	before := files()
	succeed(t, "configure", "nri", "--runtime", "crio")
	restartCRIO(t)
	startPlugin(t, "{}")
	id := runContainer(t, runPod(t, containerd.Pod{}), containerd.Container{Devices: containerd.Verbs(0)})
	expectMemlock(t, id, "unlimited")
	succeed(t, "configure", "nri", "--revert")
	if diff := cmp.Diff(before, files()); diff != "" {
		t.Errorf("CRI-O's files (-before configure +after --revert):\n%s", diff)
	}
}
