// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/node/daemon"
)

// When containerd restarts, for example because the GPU Operator's toolkit restarts it at boot, the plugin is
// registered soon after containerd serves again. docs/install.md says how soon.
func TestContainerdRestartsAtBoot(t *testing.T) {
	plugin := startPlugin(t, "{}")
	for i := range 5 {
		if err := ctrd.Restart(within(t, patience)); err != nil {
			t.Fatal(err)
		}
		serves := time.Now()
		awaitRegistrations(t, plugin, i+2)
		took := time.Since(serves)
		t.Logf("registered %s after containerd serves", took)
		if took > 2*time.Second {
			t.Errorf("registered %s after containerd serves, want 2 s at most", took)
		}
	}
}

// When containerd restarts while clients start containers, the plugin is registered again each time, causes no
// container to fail, and reports the containers that were started in the meantime.
func TestContainerdRestarts(t *testing.T) {
	const restarts, clients = 3, 1
	early := runContainer(t, runPod(t, containerd.Pod{}), containerd.Container{Name: "early",
		Devices: containerd.Verbs(0)})
	expectMemlock(t, early, kernelDefault)
	plugin := startReporter(t)
	var pods []*containerd.Sandbox
	for range clients {
		pods = append(pods, runPod(t, containerd.Pod{}))
	}
	ctx, stop := context.WithCancel(within(t, 10*patience))
	var wg sync.WaitGroup
	t.Cleanup(func() {
		stop()
		wg.Wait()
	})
	var created, blamed atomic.Int64
	// starting is locked for reading while a container is started: until it has started, its process has runc's own limit.
	var starting sync.RWMutex
	for _, pod := range pods {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				starting.RLock()
				_, err := pod.Run(ctx, containerd.Container{Name: fmt.Sprintf("restarts-%d", i), Devices: containerd.Verbs(0)})
				starting.RUnlock()
				if err == nil {
					created.Add(1)
					continue
				}
				if strings.Contains(err.Error(), "rdma: pod") {
					blamed.Add(1)
					t.Logf("creation: %v", err)
				}
				pause := time.NewTimer(200 * time.Millisecond) // leaves the CPU to containerd while it starts
				<-pause.C
			}
		})
	}
	for i := range restarts {
		before := created.Load()
		awaitThat(t, plugin, patience, "sees a container",
			func() bool { return created.Load() > before })
		// Stop the plugin's process until a container is created without it, as if its registration were late. For each
		// client, one container may have been adjusted before.
		signal(t, plugin, syscall.SIGSTOP)
		if err := ctrd.Restart(within(t, patience)); err != nil {
			t.Fatal(err)
		}
		missed := created.Load()
		awaitThat(t, ctrd, 2*patience, "starts a container without the plugin",
			func() bool { return created.Load() > missed+clients })
		signal(t, plugin, syscall.SIGCONT)
		goesOn := time.Now()
		awaitRegistrations(t, plugin, i+2)
		registered := time.Now()
		if took := registered.Sub(goesOn); took > 5*time.Second {
			t.Errorf("registered again after %s, want 5 s at most", took)
		}
		starting.Lock()
		// For each client, one container that was being created had no process yet when the runtime listed it.
		low := len(runningLow(t))
		expectBelow(t, plugin, low-clients, low)
		starting.Unlock()
	}
	stop()
	wg.Wait()
	low := runningLow(t)
	t.Logf("%d restarts, %d containers started, %d failed because of the plugin; %d run without their limit, one of "+
		"them older than the plugin",
		restarts, created.Load(), blamed.Load(), len(low))
	if blamed.Load() > 0 {
		t.Errorf("%d creations failed because of the plugin", blamed.Load())
	}
	if len(low) <= restarts {
		t.Errorf("%d containers run without their limit, want one from each of %d restarts and the early one: this tests "+
			"nothing", len(low), restarts)
	}
	if err := daemon.Await(within(t, patience), slowly, "raises what is low",
		func() bool { return len(runningLow(t)) == 0 }, startRepair(t)); err != nil {
		t.Error(err)
	}
	expectMemlock(t, early, "unlimited")
	id := runContainer(t, runPod(t, containerd.Pod{}), containerd.Container{Devices: containerd.Verbs(0)})
	expectMemlock(t, id, "unlimited")
}

// runningLow returns the running containers that have the kernel's limit and a verbs device. All containers of this
// file's tests have one.
func runningLow(t *testing.T) []string {
	t.Helper()
	answer, err := ctrd.CRI().ListContainers(within(t, patience), &cri.ListContainersRequest{Filter: &cri.ContainerFilter{
		State: &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING},
	}})
	if err != nil {
		t.Fatal(err)
	}
	var low []string
	for _, c := range answer.GetContainers() {
		pid, err := ctrd.PID(within(t, patience), c.GetId())
		if err != nil {
			continue // it was removed in the meantime
		}
		if limit, err := softMemlock(pid); err == nil && limit != "unlimited" {
			low = append(low, c.GetMetadata().GetName())
		}
	}
	return low
}

// A plugin that hangs delays containers only until the runtime's timeout. When it continues, the runtime calls it
// again.
func TestPluginStopped(t *testing.T) {
	plugin := startPlugin(t, "ipcLock: false")
	pod := runPod(t, containerd.Pod{})
	signal(t, plugin, syscall.SIGSTOP)
	start := time.Now()
	// By then, the runtime no longer waits for the plugin.
	unrelated := runContainer(t, pod, containerd.Container{Name: "unrelated"})
	t.Logf("with the plugin stopped a container was created and started in %s", time.Since(start))
	shell(t, unrelated, "true")
	signal(t, plugin, syscall.SIGCONT)
	number := 0
	awaitThat(t, plugin, patience, "is asked again", func() bool {
		number++
		id := runContainer(t, pod, containerd.Container{Name: fmt.Sprintf("after-%d", number), Devices: containerd.Verbs(0)})
		return memlock(t, id) == "unlimited"
	})
}
