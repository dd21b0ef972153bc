// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/rdma-spec/rdma-spec/spec"
)

func TestMetrics(t *testing.T) {
	onBench(t, "{}", processes{"low": {low}, "good": {spec.Unlimited},
		"lowered": {low}, "spec": {unlimited}}, func(t *testing.T, b *bench) {
		b.specs.texts = map[string]string{"spec": storedText(low, 0), "lowered": storedText(unlimited, 0), "low": "{}"}
		b.kernel.Table[1002].Limit.Hard = unlimited // lowered's: IDs sort as names do
		if n := testutil.CollectAndCount(b); n != 0 {
			t.Errorf("%d metrics before the first pass", n)
		}
		b.Listed([]Container{container("low", verbs), container("good", verbs), container("lowered", verbs),
			container("spec", verbs)}, true)
		b.passes(1)
		want := `
			# HELP nri_rdma_containers_without_ipc_lock Containers whose stored spec lacks the CAP_IPC_LOCK that the policy gives.
			# TYPE nri_rdma_containers_without_ipc_lock gauge
			nri_rdma_containers_without_ipc_lock 0
			# HELP nri_rdma_last_pass_timestamp_seconds When repair last compared the running containers with the policy.
			# TYPE nri_rdma_last_pass_timestamp_seconds gauge
			nri_rdma_last_pass_timestamp_seconds 946684810
			# HELP nri_rdma_repairs_total Attempts to raise a running container to policy, by result (raised, failed).
			# TYPE nri_rdma_repairs_total counter
			nri_rdma_repairs_total{result="failed"} 0
			nri_rdma_repairs_total{result="raised"} 0
			# HELP nri_rdma_running_containers Running RDMA containers, by memlock: sufficient, lowered (by the program itself), below (policy), spec-below (later execs are below policy), unknown.
			# TYPE nri_rdma_running_containers gauge
			nri_rdma_running_containers{memlock="below"} 1
			nri_rdma_running_containers{memlock="lowered"} 1
			nri_rdma_running_containers{memlock="spec-below"} 1
			nri_rdma_running_containers{memlock="sufficient"} 1
			nri_rdma_running_containers{memlock="unknown"} 0
			# HELP nri_rdma_unrecorded_containers_total Containers that repair does not know because its record was full.
			# TYPE nri_rdma_unrecorded_containers_total counter
			nri_rdma_unrecorded_containers_total 0
		`
		if err := testutil.CollectAndCompare(b, strings.NewReader(want)); err != nil {
			t.Error(err)
		}
		b.use("repair: {mode: fix}")
		b.passes(1)
		want = strings.NewReplacer(`"raised"} 0`, `"raised"} 2`, `below"} 1`, `below"} 0`, `"sufficient"} 1`,
			`"sufficient"} 3`).Replace(want)
		if err := testutil.CollectAndCompare(b, strings.NewReader(want)); err != nil {
			t.Error(err)
		}
		b.use("repair: {mode: off}")
		b.passes(1)
		if n := testutil.CollectAndCount(b); n != 0 {
			t.Errorf("%d metrics where repair is off", n)
		}
	})
}
