// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
)

// comparisons is how often both sides of a comparison take turns. The best of them counts: what the plugin costs, it costs in each,
// however busy the machine is.
const comparisons = 3

// bandwidthScript transfers 100 MB through an HCA and prints perftest's table.
const bandwidthScript = `
	ib_write_bw -d rxe0 -x 1 -s 1M -n 100 -F >/dev/null 2>&1 &
	for i in 1 2 3 4 5 6 7 8 9 10; do
		out=$(ib_write_bw -d rxe0 -x 1 -s 1M -n 100 -F 127.0.0.1 2>&1) && break
		sleep 0.5
	done
	echo "$out"
	wait`

// A container that the plugin has adjusted transfers as fast as a program on the node itself.
func TestBandwidth(t *testing.T) {
	startPlugin(t, "{}")
	pod := runPod(t, containerd.Pod{})
	id := runContainer(t, pod, containerd.Container{Name: "perftest", Devices: containerd.Verbs(0)})
	var ratios []float64
	for range comparisons {
		out, err := exec.CommandContext(within(t, patience), "sh", "-c", bandwidthScript).CombinedOutput()
		if err != nil {
			t.Fatalf("on the node: %v\n%s", err, out)
		}
		host, inside := averageBandwidth(t, string(out)), averageBandwidth(t, shell(t, id, bandwidthScript))
		t.Logf("%.1f MB/s on the node, %.1f MB/s in the container", host, inside)
		ratios = append(ratios, inside/host)
	}
	if slices.Max(ratios) < 0.9 {
		t.Errorf("the container has %.2f of the node's bandwidth, want 0.9 at least", ratios)
	}
}

// averageBandwidth finds the average bandwidth in MB/s in perftest's table: bytes, iterations, peak, average, messages.
func averageBandwidth(t *testing.T, out string) float64 {
	t.Helper()
	for line := range strings.Lines(out) {
		if fields := strings.Fields(line); len(fields) > 3 && fields[0] == "1048576" {
			if average, err := strconv.ParseFloat(fields[3], 64); err == nil {
				return average
			}
		}
	}
	t.Fatalf("ib_write_bw printed no result:\n%s", out)
	return 0
}
