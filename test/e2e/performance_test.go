// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"flag"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/rdma-spec/rdma-spec/plugin/storedspec"
	"github.com/rdma-spec/rdma-spec/spec"
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

// The edit of a stored spec costs less than the creation that it is part of.
func TestEditCost(t *testing.T) {
	client := storedspec.New(storedspec.Options{Address: containerd.Socket, Budget: time.Second})
	defer client.Close()
	pod := runPod(t, containerd.Pod{})
	var creations, edits []time.Duration
	for i := range 11 {
		start := time.Now()
		id, err := pod.Create(within(t, patience), containerd.Container{Name: fmt.Sprintf("main-%d", i),
			Devices: containerd.Verbs(0)})
		if err != nil {
			t.Fatal(err)
		}
		created := time.Now()
		found, err := client.Confirm(t.Context(), id, spec.Grant{IPCLock: spec.IPCLockYes})
		if err != nil || !found.Wrote {
			t.Fatalf("found: %v, error: %v", found, err)
		}
		creations, edits = append(creations, created.Sub(start)), append(edits, time.Since(created))
	}
	slices.Sort(creations)
	slices.Sort(edits)
	creation, edit := creations[len(creations)/2], edits[len(edits)/2]
	t.Logf("p50 of a creation %s, of an edit %s: %.2f of it", creation, edit, edit.Seconds()/creation.Seconds())
	if edit > creation {
		t.Errorf("an edit takes %s where a creation takes %s", edit, creation)
	}
}

var podPairs = flag.Int("pod-pairs", 0,
	"measure how many pods start in a second, with and without the plugin, in so many pairs")

// podsInTurn is how many pods a side starts in its turn.
const podsInTurn = 5

// TestPodsPerSecond prints how many pods a second containerd starts with the plugin, and without it. Both take turns,
// and each turn has its ratio: the node's CPU is emulated, so the absolute rates say little.
func TestPodsPerSecond(t *testing.T) {
	if *podPairs == 0 {
		t.Skip("takes minutes: make bench-pods")
	}
	for name, ctr := range map[string]containerd.Container{
		"no RDMA":                         {},
		"holds an HCA, and gets IPC_LOCK": {Devices: containerd.Verbs(0)},
	} {
		t.Run(name, func(t *testing.T) {
			podsPerSecond(t, ctr) // the first ones are slower
			var with, without, ratios []float64
			for i := range *podPairs {
				measure := func(plugin bool) {
					if !plugin {
						without = append(without, podsPerSecond(t, ctr))
						return
					}
					p := startPlugin(t, "{}")
					with = append(with, podsPerSecond(t, ctr))
					p.Stop()
				}
				first := i%2 == 0
				measure(first)
				measure(!first)
				ratios = append(ratios, with[i]/without[i])
			}
			for _, values := range [][]float64{with, without, ratios} {
				slices.Sort(values)
			}
			t.Logf("%d pairs of %d pods: with the plugin %.2f pods a second, without %.2f: ratio %.2f, quartiles %.2f to %.2f",
				*podPairs, podsInTurn,
				with[*podPairs/2], without[*podPairs/2], ratios[*podPairs/2], ratios[*podPairs/4], ratios[*podPairs*3/4])
			if best := ratios[*podPairs-1]; best < 0.9 {
				t.Errorf("with the plugin, %.2f times as many pods start as without it, in the best of %d pairs", best, *podPairs)
			}
		})
	}
}

// podsPerSecond starts pods of one container each, one after another, and removes them when the time is taken.
func podsPerSecond(t *testing.T, ctr containerd.Container) float64 {
	t.Helper()
	started := make([]*containerd.Sandbox, podsInTurn)
	began := time.Now()
	for i := range started {
		var err error
		if started[i], err = ctrd.RunPod(within(t, patience), containerd.Pod{}); err != nil {
			t.Fatal(err)
		}
		runContainer(t, started[i], ctr)
	}
	took := time.Since(began)
	for _, pod := range started {
		if err := pod.Remove(within(t, patience)); err != nil {
			t.Fatal(err)
		}
	}
	return podsInTurn / took.Seconds()
}
