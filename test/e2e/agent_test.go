// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/node/daemon"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// A plugin that starts while the runtime stops a container for 20 s (containerd#14083) waits on one connection, and is
// registered within a second of the container's end.
func TestRegistersAfterALongStop(t *testing.T) {
	stubborn := runContainer(t, runPod(t, containerd.Pod{}), containerd.Container{Name: "stubborn",
		Args: []string{"/bin/busybox", "sh", "-c", "trap '' TERM; while :; do sleep 1; done"}})
	startPlugin(t, "{}").Stop() // containerd waits for the grace period with NRI's lock held where a plugin was registered
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

// probing is how long containers are probed; longer for who has the time.
func probing() time.Duration {
	if d, err := time.ParseDuration(os.Getenv("RDMA_TEST_PROBING")); err == nil {
		return d
	}
	return 12 * time.Second
}

// Exec probes, whose first processes have the runtime's limit for a moment, are never reported as below policy.
func TestExecProbesAreNotBelow(t *testing.T) {
	plugin := startPlugin(t, "repair: {mode: report, every: 1s}", "--http", metricsAddress)
	pod := runPod(t, containerd.Pod{})
	var ids []string
	for _, name := range []string{"a", "b"} {
		ids = append(ids, runContainer(t, pod, containerd.Container{Name: name, Devices: containerd.Verbs(0)}))
	}
	ctx, stop := context.WithTimeout(t.Context(), probing())
	defer stop()
	var probes sync.WaitGroup
	counts := make([]int, len(ids))
	for i, id := range ids {
		probes.Go(func() {
			for ctx.Err() == nil {
				if result, err := ctrd.Exec(ctx, id, "/bin/busybox", "true"); err == nil && result.Status == 0 {
					counts[i]++
				}
			}
		})
	}
	seen := 0
	for ctx.Err() == nil {
		if n, err := below(); err == nil {
			seen++
			if n > 0 {
				t.Errorf("%d containers are counted as below policy", n)
			}
		}
		pause := time.NewTimer(time.Second)
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
	}
	probes.Wait()
	t.Logf("%v probes, %d looks at the metrics", counts, seen)
	if counts[0] == 0 || counts[1] == 0 || seen == 0 {
		t.Error("nothing was probed or seen: this tests nothing")
	}
	if strings.Contains(plugin.Log(), "below policy") {
		t.Errorf("it reports containers:\n%s", plugin.Log())
	}
}

// Beside another containerd whose socket is found first, as Docker's, containers of the runtime get CAP_IPC_LOCK, and
// rdma-spec names both and shows the runtime's containers.
func TestTwoContainerds(t *testing.T) {
	const moved = "/run/k3s/containerd/containerd.sock"
	onNode(t, "mkdir -p "+filepath.Dir(moved)+" && mv "+containerd.Socket+" "+moved)
	t.Cleanup(func() { onNodeAfter(t, "mv "+moved+" "+containerd.Socket) })
	startAnother(t, containerd.Socket,
		"disabled_plugins = ['io.containerd.grpc.v1.cri', 'io.containerd.nri.v1.nri']") // as Docker's, without CRI
	startPlugin(t, "{}")
	id := runContainer(t, runPod(t, containerd.Pod{Name: "beside"}), containerd.Container{Name: "main",
		Devices: containerd.Verbs(0)})
	expectMemlock(t, id, "unlimited")
	expectCapabilities(t, id, everySet)
	stdout, stderr, status := call(t, "status")
	if status != 0 || !strings.Contains(stdout, "default/beside  main") {
		t.Errorf("status: exit status %d\n%s%s", status, stdout, stderr)
	}
	for _, socket := range []string{containerd.Socket, moved} {
		if !strings.Contains(stderr, socket) {
			t.Errorf("status does not name %s:\n%s", socket, stderr)
		}
	}
}

// startAnother runs another containerd, with the plugins' part of a configuration.
func startAnother(t *testing.T, socket, plugins string) *daemon.Process {
	t.Helper()
	folder, programs := scratch.Folder(t), nodeParts(t).Containerd(*version)
	config := filepath.Join(folder, "config.toml")
	// The shims of the first containerd report to the ttrpc socket beside its own.
	scratch.File(t, config, "version = 3\n"+plugins+"\n[ttrpc]\naddress = '"+folder+"/ttrpc.sock'\n", 0o644)
	another := start(t, filepath.Join(programs, "containerd"), "--config", config,
		"--address", socket, "--root", folder+"/root", "--state", folder+"/state")
	awaitThat(t, another, patience, "serves its API", func() bool {
		return exec.CommandContext(t.Context(), filepath.Join(programs, "ctr"), "--address", socket, "version").Run() == nil
	})
	return another
}
