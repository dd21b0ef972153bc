// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
)

// comparisons is how often both sides of a comparison take turns. The best of them counts: what the plugin costs, it
// costs in each, however busy the machine is.
const comparisons = 3

// bandwidthScript sends 20 MB through an HCA and back, and prints how fast. ib_write_bw would want to know the rate of
// the CPU's clock, which not every machine tells.
const bandwidthScript = `
	ibv_rc_pingpong -d rxe0 -g 1 -s 1048576 -n 20 >/dev/null 2>&1 &
	for i in 1 2 3 4 5 6 7 8 9 10; do
		out=$(ibv_rc_pingpong -d rxe0 -g 1 -s 1048576 -n 20 127.0.0.1 2>&1) && break
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
		host, inside := rateOf(t, string(out)), rateOf(t, shell(t, id, bandwidthScript))
		t.Logf("%.0f Mbit/s on the node, %.0f Mbit/s in the container", host, inside)
		ratios = append(ratios, inside/host)
	}
	if slices.Max(ratios) < 0.9 {
		t.Errorf("the container has %.2f of the node's bandwidth, want 0.9 at least", ratios)
	}
}

// transferRate matches what ibv_rc_pingpong says at its end.
var transferRate = regexp.MustCompile(`(?m)^\d+ bytes in [\d.]+ seconds = ([\d.]+) Mbit/sec$`)

// rateOf returns the rate in Mbit/s that ibv_rc_pingpong has printed.
func rateOf(t *testing.T, out string) float64 {
	t.Helper()
	found := transferRate.FindStringSubmatch(out)
	if found == nil {
		t.Fatalf("ibv_rc_pingpong printed no result:\n%s", out)
	}
	rate, err := strconv.ParseFloat(found[1], 64)
	if err != nil || rate < 1 {
		t.Fatalf("a rate of %s Mbit/s, %v: the measurement is worth nothing", found[1], err)
	}
	return rate
}
