// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/rdma-spec/rdma-spec/plugin/nritest"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
)

func (p *Plugin) memlockInForce() string { return string(p.policy().Config().Memlock) }

func openDescriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	must.Succeed(t, err)
	return len(entries)
}

func TestMetrics(t *testing.T) {
	root := hcatest.A100(t)
	runtime, p := registered(t, Options{Policy: mustPolicy(t, "{}"), Inventory: inventoryOf(t, root)})
	registry := prometheus.NewRegistry()
	registry.MustRegister(p.Collectors()...)
	problems, err := testutil.GatherAndLint(registry)
	if err != nil || len(problems) > 0 {
		t.Errorf("metrics: %v %v", problems, err)
	}
	if _, err := runtime.Create(t.Context(), pod, verbsContainer(t, root)); err != nil {
		t.Fatal(err)
	}
	want := `
		# HELP nri_rdma_connected 1 while the plugin is registered with the runtime.
		# TYPE nri_rdma_connected gauge
		nri_rdma_connected 1
		# HELP nri_rdma_hca_port_active 1 if the port of the HCA was ACTIVE when the HCA last responded.
		# TYPE nri_rdma_hca_port_active gauge
		nri_rdma_hca_port_active{hca="mlx5_0",link_layer="InfiniBand",port="1"} 0
		nri_rdma_hca_port_active{hca="mlx5_1",link_layer="InfiniBand",port="1"} 1
		nri_rdma_hca_port_active{hca="mlx5_bond_0",link_layer="Ethernet",port="1"} 1
		# HELP nri_rdma_requests_total CreateContainer requests from the runtime, by result (adjusted, untouched, refused) and signal.
		# TYPE nri_rdma_requests_total counter
		nri_rdma_requests_total{result="adjusted",signal="device"} 1
	`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "nri_rdma_connected",
		"nri_rdma_hca_port_active", "nri_rdma_requests_total"); err != nil {
		t.Error(err)
	}
}

// A file with an error replaces neither the policy by which containers were created before there was a file, nor that
// of a good one, and the plugin stays ready.
func TestUse_BadConfiguration(t *testing.T) {
	_, p := registered(t, Options{})
	for _, step := range []struct {
		config  string // "": the file has an error
		memlock string
		valid   float64
	}{{"", "unlimited", 0}, {"memlock: 1Gi", "1Gi", 1}, {"", "1Gi", 0}, {"memlock: 2Gi", "2Gi", 1}} {
		if step.config == "" {
			p.Use(nil, "a file", errors.New("memlok: unknown key"))
		} else {
			p.Use(mustPolicy(t, step.config), "a file", nil)
		}
		valid := testutil.ToFloat64(p.metrics.configValid)
		if memlock := p.memlockInForce(); memlock != step.memlock || valid != step.valid || notReady(p) != nil {
			t.Errorf("%+v: memlock %s, valid: %v, ready: %v", step, memlock, valid, notReady(p))
		}
	}
	if n := strings.Count(p.log.String(), "invalid configuration"); n != 2 {
		t.Errorf("%d lines about refused configurations, want 2:\n%s", n, p.log)
	}
}

// Started with a file that cannot be read, the plugin registers all the same and refuses RDMA containers alone, until
// the file is corrected. However often the configuration changes then, the registration stays.
func TestRun_startedWithBadFile(t *testing.T) {
	runtime := nritest.New(t, "containerd", "v2.4.2")
	p := run(t, Options{Socket: runtime.Socket})
	p.Use(nil, "a file", errors.New("memlok: unknown key")) // as the program does, before it registers
	runtime.Start(t)
	await.That(t, await.Timeout, "registered", func() bool { return runtime.Synchronised() == 1 })
	_, err := runtime.Create(t.Context(), pod, verbsContainer(t, p.root))
	if err == nil || !strings.Contains(err.Error(), "the plugin has no valid configuration: memlok: unknown key") {
		t.Errorf("creation of an RDMA container: %v", err)
	}
	if _, err := runtime.Create(t.Context(), pod, &api.Container{Id: "plain", Name: "main"}); err != nil {
		t.Errorf("creation of another one: %v", err)
	}
	if notReady(p) == nil || testutil.ToFloat64(p.metrics.configValid) != 0 {
		t.Errorf("ready: %v; valid: %v", notReady(p), testutil.ToFloat64(p.metrics.configValid))
	}
	for _, config := range []string{"ipcLock: false", "optIn: {resources: [rdma/*]}", "memlock: 1Gi"} {
		p.Use(mustPolicy(t, config), "a file", nil)
	}
	if got, err := runtime.Create(t.Context(), pod, verbsContainer(t, p.root)); err != nil ||
		got.GetRlimits()[0].GetSoft() != 1<<30 || runtime.Synchronised() != 1 || runtime.Connections() != 1 {
		t.Errorf("adjustment %v, error %v; %d connections", got, err, runtime.Connections())
	}
}

func notReady(p *running) error {
	_, err := p.Ready()
	return err
}
