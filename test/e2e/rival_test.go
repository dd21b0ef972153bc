// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/node/daemon"
)

// TestTwoPlugins starts the plugin a second time in another way, such as the service next to the chart. The second one
// does not register, and logs why. RDMA containers can be created. When the first one ends, the second one registers.
func TestTwoPlugins(t *testing.T) {
	inPod := []string{"NRI_RDMA_NAMESPACE=rdma-spec", "NRI_RDMA_POD=nri-rdma-x7k2p"}
	begin := func(environment []string) *daemon.Process {
		t.Helper()
		p, err := daemon.Start(environment, filepath.Join(*bin, "nri-rdma"), "--socket", containerd.NRISocket, "--budget", budget)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if p.Stop(); t.Failed() {
				t.Logf("nri-rdma said:\n%s", p.Log())
			}
		})
		return p
	}
	expectRDMA := func() {
		t.Helper()
		c := runContainer(t, runPod(t, containerd.Pod{}), containerd.Container{Devices: containerd.Verbs(0)})
		expectMemlock(t, c, "unlimited")
	}
	for _, test := range []struct {
		name          string
		first, second []string
		says          string
	}{
		{"the chart first", inPod, nil, "not registering: the rdma-spec/nri-rdma DaemonSet serves this node"},
		{"the service first", nil, inPod, "not registering: an nri-rdma process outside Kubernetes"},
	} {
		t.Run(test.name, func(t *testing.T) {
			first := begin(test.first)
			awaitLog(t, first, "msg=registered")
			expectRDMA()
			second := begin(test.second)
			awaitLog(t, second, test.says)
			expectRDMA()
			if strings.Contains(second.Log(), "msg=registered") {
				t.Error("both have registered")
			}
			first.Stop()
			awaitLog(t, second, "msg=registered")
			expectRDMA()
			second.Stop()
		})
	}
}
