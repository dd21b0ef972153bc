// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/node/pods"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// The directories in which containerd looks for plugins to launch, and for their configurations.
const (
	launchedPlugin = "/opt/nri/plugins/90-rdma"
	launchedConfig = "/etc/nri/conf.d/90-rdma.conf"
	launchedLog    = "/run/launched.log"
)

// A plugin that containerd launches is registered before containerd serves CRI. So even the first container, from a
// client that has been trying since before containerd started, has memlock, IPC_LOCK, and the HCAs that only the
// configuration in conf.d allows. After a restart of containerd, one plugin is running again.
//
// containerd launches a plugin without flags, discards its output, and continues without a plugin that takes five
// seconds. Because the node's CPU is emulated, a script gives the plugin a longer budget and keeps its log, and
// containerd is configured to wait longer.
func TestLaunchedByContainerd(t *testing.T) {
	program, patient := filepath.Join(*bin, "nri-rdma"), options()
	patient.RegistrationTimeout = "1m"
	ctrd.Stop()
	t.Cleanup(func() {
		onNodeAfter(t, "rm "+launchedPlugin+" "+launchedConfig)
		replaceContainerd(t, options())
	})
	scratch.File(t, launchedPlugin, "#!/bin/sh\nexec "+program+" --budget "+budget+" 2>>"+launchedLog+"\n", 0o755)
	scratch.File(t, launchedConfig, "inject: {namespaces: [ml]}\n", 0o644)

	early, err := pods.NewClient(containerd.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(early.Close)
	started := make(chan error, 1)
	go func() {
		c, err := containerd.Start(t.Context(), patient)
		if err == nil {
			ctrd = c
		}
		started <- err
	}()
	var pod *containerd.Sandbox
	await.Success(t, 2*patience, "made: the first pod", func() (err error) {
		pod, err = early.RunPod(t.Context(), containerd.Pod{Namespace: "ml", Annotations: map[string]string{asks: "true"}})
		return err
	})
	first, runs := pod.Run(within(t, patience), containerd.Container{User: 1000})
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pod.Remove(context.Background()); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the plugin said: %s\ncontainerd said:\n%s", readLog(launchedLog), ctrd.Log())
		}
	})
	if runs != nil {
		t.Fatal(runs)
	}
	expectLaunchedGrant(t, first)
	if err := ctrd.Restart(within(t, 2*patience)); err != nil {
		t.Fatal(err)
	}
	expectLaunchedGrant(t, runContainer(t, pod, containerd.Container{Name: "again", User: 1000}))
	if got := processes(t, program); got != 1 {
		t.Errorf("%d processes of the plugin run, want 1", got)
	}
}

func expectLaunchedGrant(t *testing.T, id string) {
	t.Helper()
	expectMemlock(t, id, "unlimited")
	expectCapabilities(t, id, everySet)
	expectDevices(t, id, "rdma_cm", "uverbs0", "uverbs1")
}

// processes returns the number of processes that run a program.
func processes(t *testing.T, program string) (count int) {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil && strings.TrimSuffix(to, " (deleted)") == program {
			count++
		}
	}
	return count
}
