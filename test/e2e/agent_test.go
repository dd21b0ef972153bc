// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/node/daemon"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// While the runtime stops a container for 20 s (containerd#14083), a starting plugin waits on one connection. It is
// registered within a second after the container's end.
func TestRegistersAfterALongStop(t *testing.T) {
	stubborn := runContainer(t, runPod(t, containerd.Pod{}), containerd.Container{Name: "stubborn",
		Args: []string{"/bin/busybox", "sh", "-c", "trap '' TERM; while :; do sleep 1; done"}})
	startPlugin(t, "{}").Stop() // containerd waits for the grace period with NRI's lock only if a plugin was registered before
	stopped := make(chan time.Time, 1)
	go func() {
		_, err := ctrd.CRI().StopContainer(within(t, 2*patience),
			&cri.StopContainerRequest{ContainerId: stubborn, Timeout: 20})
		if err != nil {
			t.Error(err)
		}
		stopped <- time.Now()
	}()
	plugin := start(t, filepath.Join(*bin, "nri-rdma"), "--log-level", "debug", "--socket", containerd.NRISocket,
		"--budget", budget)
	awaitLog(t, plugin, "msg=registered")
	registered := time.Now()
	if end := <-stopped; registered.Sub(end) > time.Second {
		t.Errorf("registered %s after the container's end, want one second at most", registered.Sub(end))
	} else {
		t.Logf("registered %s after the container's end", registered.Sub(end))
	}
	if n := strings.Count(plugin.Log(), "msg=registering"); n != 1 {
		t.Errorf("%d registrations were begun, want one", n)
	}
}

// startAnother runs another containerd with this plugins section in its configuration.
func startAnother(t *testing.T, socket, plugins string) *daemon.Process {
	t.Helper()
	dir, programs := scratch.Dir(t), nodeParts(t).Containerd(*version)
	config := filepath.Join(dir, "config.toml")
	// By default, its shims would report to the first containerd's ttrpc socket.
	scratch.File(t, config, "version = 3\n"+plugins+"\n[ttrpc]\naddress = '"+dir+"/ttrpc.sock'\n", 0o644)
	another := start(t, filepath.Join(programs, "containerd"), "--config", config,
		"--address", socket, "--root", dir+"/root", "--state", dir+"/state")
	awaitThat(t, another, patience, "serves its API", func() bool {
		return exec.CommandContext(t.Context(), filepath.Join(programs, "ctr"), "--address", socket, "version").Run() == nil
	})
	return another
}
