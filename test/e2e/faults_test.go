// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
)

func onNode(t *testing.T, command string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "sh", "-c", command).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
}

// HCAs come and go; the next container sees those that are there, without a restart of the plugin.
func TestHotplug(t *testing.T) {
	startPlugin(t, listed)
	pod := runPod(t, containerd.Pod{Namespace: "ml-train", Annotations: map[string]string{"rdma.noderesource.dev": "true"}})
	holds := func(name, want string) {
		t.Helper()
		id := runContainer(t, pod, containerd.Container{Name: name})
		if got := shell(t, id, "ls /dev/infiniband"); got != want {
			t.Errorf("container %s holds %q, want %q", name, got, want)
		}
	}
	holds("before", "rdma_cm\nuverbs0\nuverbs1")
	onNode(t, "rdma link del rxe1")
	t.Cleanup(func() {
		onNodeAfter(t, "test -e /sys/class/infiniband/rxe1 || rdma link add rxe1 type rxe netdev dummy1")
	})
	holds("unplugged", "rdma_cm\nuverbs0")
	onNode(t, "rdma link add rxe1 type rxe netdev dummy1")
	holds("plugged", "rdma_cm\nuverbs0\nuverbs1")
}

func onNodeAfter(t *testing.T, command string) {
	t.Helper()
	if out, err := exec.Command("sh", "-c", command).CombinedOutput(); err != nil {
		t.Errorf("%s: %v: %s", command, err, out)
	}
}

// containerd restarts while clients create pods: the plugin is registered again each time, and fails nobody.
func TestContainerdRestarts(t *testing.T) {
	const restarts, clients = 10, 2
	plugin := startPlugin(t, "ipcLock: false")
	ctx, stop := context.WithCancel(within(t, 10*patience))
	var wg sync.WaitGroup
	var created, blamed atomic.Int64
	for client := range clients {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				err := createAndRemove(ctx, fmt.Sprintf("restarts-%d-%d", client, i))
				switch {
				case err == nil:
					created.Add(1)
				case strings.Contains(err.Error(), "rdma: pod"):
					blamed.Add(1)
					t.Logf("creation: %v", err)
				}
			}
		})
	}
	for i := range restarts {
		before := created.Load()
		if err := plugin.Await(within(t, patience), "sees a container", func() bool { return created.Load() > before }); err != nil {
			t.Fatal(err)
		}
		if err := ctrd.Restart(within(t, patience)); err != nil {
			t.Fatal(err)
		}
		up := time.Now()
		registrations := func() int { return strings.Count(plugin.Log(), "msg=registered") }
		if err := plugin.Await(within(t, patience), "is registered again", func() bool { return registrations() >= i+2 }); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(up); took > 5*time.Second {
			t.Errorf("registered again %s after containerd was up, want 5 s at most", took)
		}
	}
	stop()
	wg.Wait()
	t.Logf("%d restarts, %d containers created, %d failed because of the plugin", restarts, created.Load(), blamed.Load())
	if blamed.Load() > 0 {
		t.Errorf("%d creations failed because of the plugin", blamed.Load())
	}
	id := runContainer(t, runPod(t, containerd.Pod{}), containerd.Container{Devices: containerd.Verbs(0)})
	expectMemlock(t, id, "unlimited")
}

// A plugin that is killed at any moment fails no container. What was started without it is found and cured once it is back.
func TestPluginKilled(t *testing.T) {
	const kills, clients = 20, 2
	ctx, stop := context.WithCancel(within(t, 10*patience))
	pod := runPod(t, containerd.Pod{})
	var wg sync.WaitGroup
	var count atomic.Int64
	started := make([][]string, clients)
	for client := range clients {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				id, err := pod.Run(ctx, containerd.Container{Name: fmt.Sprintf("killed-%d-%d", client, i), Devices: containerd.Verbs(0)})
				switch {
				case err == nil:
					started[client] = append(started[client], id)
					count.Add(1)
				case ctx.Err() == nil:
					t.Errorf("a container was not started: %v", err)
				}
			}
		})
	}
	const config = "{ipcLock: false, repair: {mode: fix, every: 1s}}"
	for i := range kills {
		plugin := startPlugin(t, config)
		moment := time.NewTimer(rand.N(500 * time.Millisecond))
		<-moment.C
		if err := plugin.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		<-plugin.Exited()
		before := count.Load()
		want := before + 1
		if i%4 == 3 { // the last one among them
			want += clients // beyond those under way: that one has met no plugin
		}
		awaitCount(ctx, &count, want)
	}
	stop()
	wg.Wait()
	ids := slices.Concat(started...)
	low := 0
	for _, id := range ids {
		if memlock(t, id) != "unlimited" {
			low++
		}
	}
	t.Logf("%d kills, %d containers started, %d of them without the plugin", kills, len(ids), low)
	if low == 0 {
		t.Error("no container was started without the plugin: this tests nothing")
	}
	plugin := startPlugin(t, config)
	for _, id := range ids {
		if err := plugin.Await(within(t, patience), "raises the limit of "+id, func() bool { return memlock(t, id) == "unlimited" }); err != nil {
			t.Fatal(err)
		}
	}
}

// awaitCount waits until a count has been reached, or the context is done.
func awaitCount(ctx context.Context, count *atomic.Int64, want int64) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for count.Load() < want && ctx.Err() == nil {
		<-tick.C
	}
}

// A plugin that hangs holds containers up no longer than the runtime waits for it, and is asked again once it goes on.
func TestPluginStopped(t *testing.T) {
	plugin := startPlugin(t, "ipcLock: false")
	pod := runPod(t, containerd.Pod{})
	if err := plugin.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	unrelated := runContainer(t, pod, containerd.Container{Name: "unrelated"})
	t.Logf("with the plugin stopped a container was created and started in %s", time.Since(start))
	shell(t, unrelated, "true")
	const stopped = 10 * time.Second
	rest := time.NewTimer(stopped - time.Since(start))
	<-rest.C
	if err := plugin.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	number := 0
	err := plugin.Await(within(t, patience), "is asked again", func() bool {
		number++
		id := runContainer(t, pod, containerd.Container{Name: fmt.Sprintf("after-%d", number), Devices: containerd.Verbs(0)})
		return memlock(t, id) == "unlimited"
	})
	if err != nil {
		t.Fatal(err)
	}
}

// createAndRemove makes a pod with a container that holds a verbs device, and removes it as far as containerd runs.
func createAndRemove(ctx context.Context, name string) error {
	pod, err := ctrd.RunPod(ctx, containerd.Pod{Name: name})
	if err != nil {
		return err
	}
	defer func() { _ = pod.Remove(context.WithoutCancel(ctx)) }() // containerd may be down: the node ends with the tests
	_, err = pod.Create(ctx, containerd.Container{Devices: containerd.Verbs(0)})
	return err
}
