// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rdma-spec/rdma-spec/plugin"
	"github.com/rdma-spec/rdma-spec/plugin/nritest"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

// slow is a collector that waits until it is let go.
type slow struct{ asked, goOn chan struct{} }

func (s slow) Describe(chan<- *prometheus.Desc) {}

func (s slow) Collect(chan<- prometheus.Metric) {
	close(s.asked)
	<-s.goOn
}

// TestMetricsOneAtATime: however many ask, the plugin works for one of them.
func TestMetricsOneAtATime(t *testing.T) {
	s := slow{make(chan struct{}), make(chan struct{})}
	address := freeAddress(t)
	p := plugin.New(plugin.Options{Name: "rdma", Index: "90", Root: "/", Log: silent()})
	stop, err := serveHTTP(address, p, silent(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	first := make(chan int)
	go func() {
		answer, err := http.Get("http://" + address + "/metrics")
		if err != nil {
			t.Error(err)
			first <- 0
			return
		}
		defer answer.Body.Close() //nolint:errcheck // nothing is read
		first <- answer.StatusCode
	}()
	<-s.asked
	awaitStatus(t, address, "/metrics", http.StatusServiceUnavailable)
	close(s.goOn)
	if got := <-first; got != http.StatusOK {
		t.Errorf("the first was answered with %d", got)
	}
}

// TestNotReadyWithoutNumbers: registered, but without /sys/dev every container would look like one without RDMA devices.
func TestNotReadyWithoutNumbers(t *testing.T) {
	folder := t.TempDir()
	config := filepath.Join(folder, "config.yaml")
	if err := os.WriteFile(config, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	runtime := nritest.New(t, "containerd", "v2.4.2")
	runtime.Start(t)
	address := freeAddress(t)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	root := hcatest.V100Node().Files().Without("sys/dev").Root(t)
	go func() {
		ended <- run(ctx, options{config: config, name: "rdma", index: "90", socket: runtime.Socket, root: root, http: address}, silent())
	}()
	awaitStatus(t, address, "/healthz", http.StatusOK)
	for !strings.Contains(awaitStatus(t, address, "/metrics", http.StatusOK), "\nnri_rdma_connected 1") {
		t.Log("not registered yet")
	}
	if why := awaitStatus(t, address, "/readyz", http.StatusServiceUnavailable); !strings.Contains(why, "mount the node's /sys/dev") {
		t.Errorf("not ready, since %q", why)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
