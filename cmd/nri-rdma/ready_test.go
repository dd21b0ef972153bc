// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/plugin/nritest"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// Of two processes in one network, each says whether it is ready, and the registered one has the address for metrics.
func TestReadyInOneNetwork(t *testing.T) {
	runtime, folder, sockets := nritest.New(t, "containerd", "v2.4.2"), scratch.Folder(t), scratch.Folder(t)
	root, address := hcatest.V100(t), freeAddress(t)
	process := func(name string) (end func()) {
		return running(t, options{socket: runtime.Socket, root: root, handover: folder,
			http: inUnix + filepath.Join(sockets, name), metrics: address})
	}
	says := func(name string) (said string, status int) {
		var out strings.Builder
		status = askReady(filepath.Join(sockets, name), &out)
		return out.String(), status
	}
	if said, status := says("nobody"); status != 1 || !strings.Contains(said, "no such file") {
		t.Errorf("nobody is ready: %d, %s", status, said)
	}
	endFirst := process("first")
	await.That(t, await.Patience, "not registered", func() bool {
		said, status := says("first")
		return status == 1 && said == "not registered with the runtime\n"
	})
	runtime.Start(t)
	ready := func(name, want string) {
		t.Helper()
		await.That(t, await.Patience, name+" is "+want, func() bool {
			said, status := says(name)
			return status == 0 && said == want+"\n"
		})
	}
	ready("first", "registered")
	awaitStatus(t, address, "/metrics", http.StatusOK)
	endSecond := process("second")
	ready("second", "waiting behind a registered plugin")
	endFirst()
	ready("second", "registered")
	if metrics := awaitStatus(t, address, "/metrics", http.StatusOK); !strings.Contains(metrics, "\nnri_rdma_connected 1") {
		t.Errorf("the metrics are another one's:\n%s", metrics)
	}
	if n := runtime.Connections(); n != 1 {
		t.Errorf("%d connections", n)
	}
	endSecond()
}
