// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package systemd_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/node/crio"
	"github.com/rdma-spec/rdma-spec/test/node/pods"
	"github.com/rdma-spec/rdma-spec/test/node/systemd"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/churn"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// unlimited matches the limits of a process that may lock all its memory.
var unlimited = regexp.MustCompile(`(?m)^Max locked memory +unlimited +unlimited `)

// upgrades is how often the service is restarted beside each runtime.
var upgrades = flag.Int("upgrades", 2, "how often to restart the service beside each runtime")

const (
	handedOver = "handed over the runtime connection to the next process"
	tookOver   = "took over the runtime connection from the previous process"

	// What the runtimes say of a plugin that registers, and of one that is gone.
	connected    = `plugin \"90-rdma\" connected and synchronized`
	disconnected = `connection to plugin \"90-rdma\" closed`

	// held keeps the service's next process from starting, as long as it exists.
	held = "/run/nri-rdma.held"
	// holdable has the service wait for that. The one that waits runs without the service's hardening.
	holdable = "[Service]\nTimeoutStartSec=2min\nExecStartPre=+/bin/sh -c 'while [ -e " + held +
		" ]; do sleep 0.1; done'\n"
)

// TestNodeServiceUpgradeBesideOthers is TestNodeServiceUpgrade beside other runtimes. It comes before that: the state of a
// newer containerd stays.
func TestNodeServiceUpgradeBesideOthers(t *testing.T) {
	besideSystemd(t, installUpgrades, func(t *testing.T) {
		testUpgrades(t, "1.7.35", "2.3.7")
		t.Run("CRI-O", func(t *testing.T) {
			started, err := crio.Start(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			testUpgradesBeside(t, started.Server)
		})
	})
}

// TestNodeServiceUpgrade restarts the service, as installed, under a real systemd, while containers are created: the
// runtime does not notice, and each container has its limit. A service that is stopped, that is killed, or whose
// runtime goes, registers again.
func TestNodeServiceUpgrade(t *testing.T) {
	besideSystemd(t, installUpgrades, func(t *testing.T) { testUpgrades(t, "2.4.2") })
}

func installUpgrades(t *testing.T) {
	installService(t)
	scratch.File(t, units+"/nri-rdma.service.d/held.conf", holdable, 0o644)
	t.Cleanup(func() { _ = os.Remove(units + "/nri-rdma.service.d/held.conf") })
}

func testUpgrades(t *testing.T, containerds ...string) {
	scratch.File(t, config, "{}\n", 0o644)
	for _, version := range containerds {
		t.Run("containerd "+version, func(t *testing.T) {
			options := containerd.Options{Version: version, Runtime: "runc", RequestTimeout: "1m"}
			ctrd, err := containerd.Start(t.Context(), options)
			if err != nil {
				t.Fatal(err)
			}
			testUpgradesBeside(t, ctrd.Server)
		})
	}
}

func testUpgradesBeside(t *testing.T, runtime *pods.Server) {
	t.Cleanup(runtime.Stop)
	if err := os.RemoveAll(pluginLog); err != nil {
		t.Fatal(err)
	}
	systemd.Manage(t, "start", "nri-rdma")
	t.Cleanup(func() {
		systemd.Manage(t, "stop", "nri-rdma")
		if t.Failed() {
			t.Logf("the plugin:\n%s\nthe runtime:\n%s", scratch.Read(t, pluginLog), runtime.Log())
		}
	})
	awaitSaid(t, runtime, connected, 1)
	sandbox, err := runtime.RunPod(t.Context(), pods.Pod{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sandbox.Remove(context.Background()); err != nil {
			t.Error(err)
		}
	})
	c := &creations{runtime: runtime, sandbox: sandbox}
	load := churn.Start(t, func(ctx context.Context, number int) error {
		return c.create(ctx, fmt.Sprintf("main-%d", number))
	})
	for i := range *upgrades {
		systemd.Manage(t, "restart", "nri-rdma")
		awaitLog(t, pluginLog, tookOver, i+1)
		wantNothingStored(t)
		load.AwaitMore(t, await.Timeout)
	}
	load.End()
	longest := c.longest.Round(time.Millisecond)
	t.Logf("%d containers were created during %d upgrades, each within %s", load.Count(), *upgrades, longest)
	testCreationBetween(t, c)
	taken := *upgrades + 1
	awaitLog(t, pluginLog, tookOver, taken)
	wantSaid(t, "the plugin", scratch.Read(t, pluginLog),
		map[string]int{"msg=registered": 1, handedOver: taken, tookOver: taken})
	wantSaid(t, "the runtime", runtime.Log(), map[string]int{connected: 1, disconnected: 0})

	systemd.Manage(t, "stop", "nri-rdma")
	wantNothingStored(t)
	awaitSaid(t, runtime, disconnected, 1)
	systemd.Manage(t, "start", "nri-rdma")
	awaitSaid(t, runtime, connected, 2)
	systemd.Manage(t, "kill", "--signal=KILL", "--kill-who=main", "nri-rdma")
	awaitSaid(t, runtime, connected, 3)
	wantNothingStored(t)
	testRuntimeGoesBetween(t, c)
	systemd.Manage(t, "restart", "nri-rdma")
	awaitLog(t, pluginLog, tookOver, taken+1)
	wantSaid(t, "the runtime that came", runtime.Log(), map[string]int{connected: 1, disconnected: 0})
}

// testCreationBetween: a creation that begins between two of the service's processes waits for the next one.
func testCreationBetween(t *testing.T, c *creations) {
	t.Helper()
	release := hold(t)
	created := make(chan error, 1)
	go func() { created <- c.create(t.Context(), "between") }()
	select {
	case err := <-created:
		t.Errorf("while no process of the plugin ran, a container was created: %v", err)
		created <- nil
	case <-time.After(time.Second):
	}
	release()
	if err := await.Receive(t, await.Timeout, "a container created", created); err != nil {
		t.Error(err)
	}
}

// testRuntimeGoesBetween: a process that is left a connection to a runtime that is gone registers with the next one.
func testRuntimeGoesBetween(t *testing.T, c *creations) {
	t.Helper()
	release := hold(t)
	if err := c.runtime.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	release()
	awaitSaid(t, c.runtime, connected, 1) // it has a new log
	wantNothingStored(t)
	if err := c.create(t.Context(), "afterwards"); err != nil {
		t.Error(err)
	}
}

// hold restarts the service, and returns where its last process has ended, with its connection in systemd's store. The
// next one starts after the release.
func hold(t *testing.T) (release func()) {
	t.Helper()
	scratch.File(t, held, "", 0o600)
	release = func() { _ = os.Remove(held) } // it may have been released before
	t.Cleanup(release)
	systemd.Manage(t, "restart", "--no-block", "nri-rdma")
	await.That(t, await.Timeout, "between two processes, with what the first has left", func() bool {
		state := systemd.Manage(t, "show", "--property=SubState,NFileDescriptorStore", "nri-rdma")
		return strings.Contains(state, "SubState=start-pre\n") && strings.Contains(state, "NFileDescriptorStore=2\n")
	})
	return release
}

func wantNothingStored(t *testing.T) {
	t.Helper()
	if got := systemd.Manage(t, "show", "--property=NFileDescriptorStore", "nri-rdma"); got != "NFileDescriptorStore=0\n" {
		t.Errorf("systemd keeps descriptors: %s", got)
	}
}

func wantSaid(t *testing.T, who, log string, want map[string]int) {
	t.Helper()
	got := map[string]int{}
	for text := range want {
		got[text] = strings.Count(log, text)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("how often %s says what, -want +got:\n%s", who, diff)
	}
}

// awaitSaid waits until the runtime has said something that many times, and fails where it says it more often.
func awaitSaid(t *testing.T, runtime *pods.Server, text string, count int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), await.Timeout)
	defer cancel()
	what := fmt.Sprintf("says %d times %s", count, text)
	if err := runtime.Await(ctx, what, func() bool { return strings.Count(runtime.Log(), text) >= count }); err != nil {
		t.Fatal(err)
	}
	wantSaid(t, "the runtime", runtime.Log(), map[string]int{text: count})
}

// creations creates containers that hold an HCA, in a pod.
type creations struct {
	runtime *pods.Server
	sandbox *pods.Sandbox
	longest time.Duration // that one took
}

// create creates a container, and removes it. It fails where the container is without its limit.
func (c *creations) create(ctx context.Context, name string) error {
	begin := time.Now()
	id, err := c.sandbox.Run(ctx, pods.Container{Name: name, Devices: pods.Verbs(0)})
	if err != nil {
		return err
	}
	c.longest = max(c.longest, time.Since(begin))
	pid, err := c.runtime.PID(ctx, id)
	if err != nil {
		return err
	}
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	if err != nil {
		return err
	}
	if !unlimited.Match(limits) {
		return fmt.Errorf("container %s has the limits\n%s", name, limits)
	}
	return c.runtime.RemoveContainer(ctx, id)
}
