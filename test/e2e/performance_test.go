// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/rdma-spec/rdma-spec/plugin/storedspec"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/test/node/containerd"
)

// Editing a stored spec takes no longer than creating the container.
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

// podsInTurn is how many pods one side starts before it is the other side's turn.
const podsInTurn = 5

// TestPodsPerSecond prints how many pods per second containerd starts with the plugin and without it. The two sides
// alternate, and the test compares the ratios, because the absolute rates mean little on an emulated CPU.
func TestPodsPerSecond(t *testing.T) {
	if *podPairs == 0 {
		t.Skip("takes minutes: make bench-pods")
	}
	for name, ctr := range map[string]containerd.Container{
		"no RDMA":                         {},
		"holds an HCA, and gets IPC_LOCK": {Devices: containerd.Verbs(0)},
	} {
		t.Run(name, func(t *testing.T) {
			podsPerSecond(t, ctr) // the first pods take longer
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

// podsPerSecond starts pods with one container each, one after the other, and returns their rate. It removes the pods
// after the measurement.
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
