// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/plugin/nritest"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/await"
	"github.com/rdma-spec/rdma-spec/test/race"
)

func TestRepairMetrics(t *testing.T) {
	root := hcatest.V100(t)
	verbs := verbsContainer(t, root).GetLinux().GetDevices()[0]
	table := node(map[string][]spec.Limit{"low": {low}, "good": {spec.Unlimited}})
	p := New(Options{Root: root, Log: quiet(), Limits: limits.On(table), Policy: mustPolicy(t, "{}")})
	if n := testutil.CollectAndCount(repairMetrics{p.repair}); n != 0 {
		t.Errorf("%d metrics before anybody looked", n)
	}
	p.repair.registered(nil, []*api.Container{existing("low", verbs), existing("good", verbs)}, true)
	p.repair.pass(t.Context())
	want := `
		# HELP nri_rdma_repairs_total Running containers that were to be raised to policy, by result (raised, failed).
		# TYPE nri_rdma_repairs_total counter
		nri_rdma_repairs_total{result="failed"} 0
		nri_rdma_repairs_total{result="raised"} 0
		# HELP nri_rdma_running_containers RDMA containers that run, by memlock (sufficient, below policy, unknown).
		# TYPE nri_rdma_running_containers gauge
		nri_rdma_running_containers{memlock="below"} 1
		nri_rdma_running_containers{memlock="sufficient"} 1
		nri_rdma_running_containers{memlock="unknown"} 0
	`
	if err := testutil.CollectAndCompare(repairMetrics{p.repair}, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	p.Use(mustPolicy(t, "repair: {mode: fix}"), "test", nil)
	p.repair.pass(t.Context())
	want = strings.NewReplacer(`"raised"} 0`, `"raised"} 1`, `"below"} 1`, `"below"} 0`, `"sufficient"} 1`, `"sufficient"} 2`).Replace(want)
	if err := testutil.CollectAndCompare(repairMetrics{p.repair}, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

// Thousands of containers that the runtime has already, each of them one to be watched, cost next to nothing.
func TestFiveThousandWatchedContainers(t *testing.T) {
	root := hcatest.V100(t)
	verbs := verbsContainer(t, root).GetLinux().GetDevices()[0]
	running := map[string][]spec.Limit{}
	var all []*api.Container
	for i := range fiveThousand() {
		name := fmt.Sprintf("watched-%d", i)
		running[name] = []spec.Limit{spec.Unlimited}
		ctr := existing(name, verbs)
		for j := range 30 {
			ctr.Env = append(ctr.Env, fmt.Sprintf("SERVICE_%d_PORT=tcp://10.0.0.%d:443", j, i%250))
		}
		all = append(all, ctr)
	}
	nri := nritest.New(t, "containerd", "v2.4.2")
	nri.SetExisting(all)
	before := measure(t)
	p := run(t, Options{Socket: nri.Socket, Root: root, Policy: mustPolicy(t, "{}"), Limits: limits.On(node(running))})
	took := registrationCost(t, nri)
	p.expectStats(t, RepairStats{RDMA: fiveThousand()})
	grown := func() int64 { return int64(measure(t).heap) - int64(before.heap) }
	await.That(t, await.Patience, "memory is back to within 5 MB of before", func() bool { return grown() < 5<<20 }) // a pass may be under way
	if took > 500*time.Millisecond && !race.Detector {
		t.Errorf("registration took %s of CPU time, want 500 ms at most: 100 µs a container", took)
	}
	runtime.KeepAlive(all)
	p.stop()
}
