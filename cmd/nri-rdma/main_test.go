// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/sirupsen/logrus"

	"github.com/rdma-spec/rdma-spec/plugin/nritest"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/plugin/policy/inforce"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/loopback"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

func TestParseFlags_wrongCalls(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"--index 9", `--index "9" is invalid: use two digits, such as 90`},
		{"--index abc", `"abc" is invalid: use two digits`},
		{"--budget 50ms", "--budget 50ms is too low"},
		{"extra", `unexpected argument "extra"`},
		{"--no-such-flag", "unknown flag"},
	} {
		if _, err := parseFlags(strings.Fields(test.args)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.args, err, test.want)
		}
	}
	for _, o := range []options{{logLevel: "loud", logFormat: "text"}, {logLevel: "info", logFormat: "xml"}} {
		if _, err := newLogger(o); err == nil {
			t.Errorf("%+v gives a logger", o)
		}
	}
}

// With a configuration that cannot be read, the daemon registers, says so, and takes the file once it is corrected.
// Package policy has what else a file can be.
func TestServe_badConfiguration(t *testing.T) {
	runtime := nritest.New(t, "containerd", "v2.4.2")
	runtime.Start(t)
	config, address := filepath.Join(scratch.Dir(t), "config.yaml"), loopback.Address()
	scratch.File(t, config, "memlok: 1Gi", 0o600)
	running(t, options{config: config, socket: runtime.Socket, root: hcatest.V100(t), http: address})
	awaitRegistered(t, address)
	if why := awaitStatus(t, address, "/readyz", http.StatusServiceUnavailable); !strings.Contains(why, config) {
		t.Errorf("/readyz says %q, want %s in it", why, config)
	}
	scratch.File(t, config, "memlock: 1Gi", 0o600)
	awaitStatus(t, address, "/readyz", http.StatusOK)
}

func TestRaise(t *testing.T) {
	for name, test := range map[string]struct {
		environment map[string]string
		want        string
	}{
		"service": {nil, "rdma-spec repair"},
		"pod": {map[string]string{"NRI_RDMA_NODE": "gpu-7", "NRI_RDMA_NAMESPACE": "rdma-spec"},
			"kubectl rdma repair gpu-7"},
		"own namespace": {map[string]string{"NRI_RDMA_NODE": "gpu-7", "NRI_RDMA_NAMESPACE": "hpc"},
			"kubectl rdma repair gpu-7 --namespace hpc"},
	} {
		if got := raise(func(key string) string { return test.environment[key] }); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// In a pod of the chart, the configuration is read once, and the policy is kept under the name of the DaemonSet.
func TestDeployment_configurationOfPod(t *testing.T) {
	for name, environment := range map[string]map[string]string{
		"pod":          {"NRI_RDMA_NAMESPACE": "rdma-spec", "NRI_RDMA_POD": "nri-rdma-x7k2p"},
		"a long name":  {"NRI_RDMA_NAMESPACE": "rdma-spec", "NRI_RDMA_POD": strings.Repeat("a", 58) + "x7k2p"},
		"node":         {},
		"no namespace": {"NRI_RDMA_POD": "nri-rdma-x7k2p"},
		"no pod":       {"NRI_RDMA_NAMESPACE": "rdma-spec", "NRI_RDMA_POD": "x"},
	} {
		want := map[string]string{"pod": "DaemonSet.rdma-spec.nri-rdma",
			"a long name": "DaemonSet.rdma-spec." + strings.Repeat("a", 58)}[name]
		if got := deployment(func(key string) string { return environment[key] }); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	t.Setenv("NRI_RDMA_NAMESPACE", "rdma-spec")
	t.Setenv("NRI_RDMA_POD", "nri-rdma-x7k2p")
	runtime, root, address := nritest.New(t, "containerd", "v2.4.2"), hcatest.V100(t), loopback.Address()
	runtime.Start(t)
	config := filepath.Join(scratch.Dir(t), "config.yaml")
	scratch.File(t, config, "memlock: 1Gi", 0o600)
	must.Succeed(t, os.MkdirAll(root+inforce.KeptDir, 0o755), os.MkdirAll(root+"/run", 0o755))
	running(t, options{config: config, socket: runtime.Socket, root: root, http: address})
	awaitStatus(t, address, "/readyz", http.StatusOK)
	kept := inforce.Kept{Root: root, Deployment: "DaemonSet.rdma-spec.nri-rdma"}
	await.That(t, await.Timeout, "kept", func() bool {
		last, err := kept.Read()
		return err == nil && string(last.Policy.Text()) == "memlock: 1Gi"
	})
	seen := make(chan error, 1)
	another := policy.File{Path: config}
	go another.Follow(t.Context(), nil, func(_ *policy.Policy, err error) { seen <- err })
	must.Succeed(t, await.Receive(t, await.Timeout, "another one that follows the file", seen))
	for i := range 3 {
		scratch.File(t, config, fmt.Sprintf("memlok: %dGi\nwrong%d:", i, i), 0o600)
		if err := await.Receive(t, await.Timeout, "a change that another one sees", seen); err == nil {
			t.Fatal("the file is good")
		}
		if metrics := awaitStatus(t, address, "/metrics", http.StatusOK); !strings.Contains(metrics, "\nnri_rdma_config_valid 1") {
			t.Error("the file is read again")
		}
	}
}

// running runs the daemon, of the plugin rdma unless the options have another name, until the end of the test or before
// that of what is returned. It has to end well.
func running(t *testing.T, o options) (end func()) {
	t.Helper()
	o.name, o.index = cmp.Or(o.name, "rdma"), "90"
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- servePlugin(ctx, o, silent()) }()
	end = sync.OnceFunc(func() {
		stop()
		if err := await.Receive(t, await.Timeout, "the end", ended); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	return end
}

// awaitRegistered waits for the daemon that serves metrics at an address to register.
func awaitRegistered(t *testing.T, address string) {
	t.Helper()
	await.That(t, await.Timeout, "registered", func() bool {
		return strings.Contains(awaitStatus(t, address, "/metrics", http.StatusOK), "\nnri_rdma_connected 1")
	})
}

func silent() *logrus.Logger {
	log := logrus.New()
	log.SetOutput(io.Discard)
	return log
}

// The whole daemon: it serves metrics, says when it is ready, tells systemd, and ends when it is told to.
func TestServe(t *testing.T) {
	dir := scratch.Dir(t)
	systemd, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "notify"), Net: "unixgram"})
	must.Succeed(t, err)
	t.Setenv("NOTIFY_SOCKET", filepath.Join(dir, "notify"))
	t.Setenv("WATCHDOG_USEC", "30000")
	runtime := nritest.New(t, "containerd", "v2.4.2")
	config := filepath.Join(dir, "config.yaml")
	scratch.File(t, config, "{}", 0o600)
	address := loopback.Address()
	end := running(t, options{config: config, socket: runtime.Socket, root: hcatest.V100(t), http: address})
	awaitStatus(t, address, "/healthz", http.StatusOK)
	awaitStatus(t, address, "/readyz", http.StatusServiceUnavailable)
	runtime.Start(t)
	awaitStatus(t, address, "/readyz", http.StatusOK)
	metrics := awaitStatus(t, address, "/metrics", http.StatusOK)
	for _, name := range []string{"\nnri_rdma_connected 1", "\nnri_rdma_config_valid 1",
		`nri_rdma_api_failing{api="containerd",path="creation"} 0`, `nri_rdma_api_failing{api="containerd",path="beside"} 0`,
		"nri_rdma_build_info{version=", "process_resident_memory_bytes"} {
		if !strings.Contains(metrics, name) {
			t.Errorf("/metrics has no %s", name)
		}
	}
	registered := registeredMetrics(t)
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (nri_rdma_\S+)`).FindAllStringSubmatch(metrics, -1) {
		if !slices.ContainsFunc(registered, func(r metric) bool { return r.name == m[1] }) {
			t.Errorf("%s is served, and the page's tests do not know it", m[1])
		}
	}
	for _, word := range []string{"READY=1", "WATCHDOG=1", "STATUS=registered"} {
		awaitNotification(t, systemd, word)
	}
	end()
}

// A validator, which can run beside the plugin with another configuration, does not write the policy in force.
func TestServe_validatorWritesNoPolicy(t *testing.T) {
	runtime := nritest.New(t, "containerd", "v2.4.2")
	runtime.Start(t)
	root, address := hcatest.V100(t), loopback.Address()
	must.Succeed(t, os.Mkdir(filepath.Join(root, "run"), 0o755))
	written := func() bool {
		_, err := os.Stat(filepath.Join(root, inforce.File))
		return err == nil
	}
	end := running(t, options{name: "rdma-validator", socket: runtime.Socket, root: root, http: address, validate: true})
	awaitStatus(t, address, "/readyz", http.StatusOK)
	end()
	if written() {
		t.Error("the validator has written a policy")
	}
	running(t, options{socket: runtime.Socket, root: root, http: address})
	await.That(t, await.Timeout, "the plugin's policy is written", written)
}

// awaitStatus asks until the answer has a status, and gives the answer.
func awaitStatus(t *testing.T, address, path string, want int) string {
	t.Helper()
	var body []byte
	await.Success(t, await.Timeout, fmt.Sprintf("%s gives %d", path, want), func() error {
		answer, err := http.Get("http://" + address + path)
		if err != nil {
			return err
		}
		defer func() { _ = answer.Body.Close() }() // it was only read
		if answer.StatusCode != want {
			return errors.New(answer.Status)
		}
		body, err = io.ReadAll(answer.Body)
		return err
	})
	return string(body)
}

func awaitNotification(t *testing.T, systemd *net.UnixConn, word string) {
	t.Helper()
	must.Succeed(t, systemd.SetReadDeadline(time.Now().Add(await.Timeout)))
	buffer := make([]byte, 4096)
	for {
		n, err := systemd.Read(buffer)
		if err != nil {
			t.Fatalf("systemd was not told %s: %v", word, err)
		}
		if strings.Contains(string(buffer[:n]), word) {
			return
		}
	}
}

// holdsVerbs is of a container that holds the first HCA of hcatest.V100.
var holdsVerbs = &api.LinuxContainer{Devices: []*api.LinuxDevice{{Path: "/dev/infiniband/uverbs0", Type: "c",
	Major: hcatest.Major, Minor: hcatest.FirstVerbs}}}

// Launched by the runtime, the plugin is there before the first container, with the configuration of the runtime.
func TestServe_launchedByRuntime(t *testing.T) {
	program, err := os.Readlink("/proc/self/exe")
	must.Succeed(t, err)
	root := hcatest.V100(t)
	script := filepath.Join(scratch.Dir(t), "90-rdma") // the runtime passes neither arguments nor its environment
	scratch.File(t, script, fmt.Sprintf("#!/bin/sh\n%s=launched exec %s --root %s\n", asProgram, program, root), 0o755)
	for config, want := range map[string]uint64{"memlock: 1Gi": 1 << 30, "": math.MaxUint64} {
		runtime := nritest.New(t, "containerd", "v2.4.2")
		runtime.Launch(t, script, config)
		runtime.Start(t)
		got, err := runtime.Create(t.Context(), &api.PodSandbox{Id: "pod"}, &api.Container{Id: "first", Linux: holdsVerbs})
		if err != nil || len(got.GetRlimits()) != 1 || got.GetRlimits()[0].GetSoft() != want {
			t.Errorf("configuration %q: the first container gets %v, %v", config, got.GetRlimits(), err)
		}
		runtime.Stop()
	}
}
