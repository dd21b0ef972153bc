// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/proto"
)

// side is one side of a comparison: plugins, and the container about which the runtime calls them.
type side struct {
	*plugins
	order
}

// create creates containers one after another, and returns the time that NRI adds to each creation, in CreateContainer
// and PostCreateContainer.
func (s side) create(t testing.TB, count int) []time.Duration {
	t.Helper()
	copies := make([]*api.Container, count)
	for i := range copies {
		copies[i] = proto.Clone(s.ctr).(*api.Container)
		copies[i].Id = newID()
	}
	took := make([]time.Duration, count)
	for i, ctr := range copies {
		if s.stored != nil {
			s.stored(ctr)
		}
		began := time.Now()
		if _, err := s.runtime.CreateInPlace(t.Context(), s.pod, ctr); err != nil {
			t.Fatalf("%v; the plugins' log: %s", err, s.lastLines())
		}
		took[i] = time.Since(began)
	}
	return took
}

// pair contains the sorted durations of one batch of each side.
type pair struct{ ours, theirs []time.Duration }

// compare has both sides create batches of containers alternately, and returns one pair for each two batches. The sides
// also alternate in which one begins, so that neither benefits from the state that the previous batch left.
func compare(t testing.TB, ours, theirs side, pairs, batch int) []pair {
	t.Helper()
	const warmUp = 100
	ours.create(t, warmUp)
	theirs.create(t, warmUp)
	measured := make([]pair, pairs)
	for i := range measured {
		if i%2 == 0 {
			measured[i].ours = ours.batch(t, batch)
			measured[i].theirs = theirs.batch(t, batch)
		} else {
			measured[i].theirs = theirs.batch(t, batch)
			measured[i].ours = ours.batch(t, batch)
		}
	}
	return measured
}

// batch creates containers, and returns the sorted durations. This process is the runtime's side of NRI: it collects
// garbage before a batch but not during it, so that only the plugins cause the longest durations.
func (s side) batch(t testing.TB, count int) []time.Duration {
	t.Helper()
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	took := s.create(t, count)
	slices.Sort(took)
	return took
}

// spread describes several measurements of one value: minimum, quartiles, and median.
type spread struct{ least, low, median, high float64 }

func spreadOf(values []float64) spread {
	slices.Sort(values)
	return spread{least: values[0], low: quantileOf(values, .25), median: quantileOf(values, .5), high: quantileOf(values, .75)}
}

// quantileOf returns a quantile of sorted values.
func quantileOf[T any](sorted []T, quantile float64) T {
	return sorted[min(int(quantile*float64(len(sorted))), len(sorted)-1)]
}

// quantile compares a quantile of both sides, pair by pair.
func (r result) quantile(pairs []pair, name string, quantile, target float64) result {
	var ours, theirs, ratios []float64
	for _, p := range pairs {
		o, t := quantileOf(p.ours, quantile), quantileOf(p.theirs, quantile)
		ours, theirs = append(ours, micros(o)), append(theirs, micros(t))
		ratios = append(ratios, float64(o)/float64(t))
	}
	r.unit, r.ours, r.theirs, r.compared, r.target = name+" µs", spreadOf(ours).median, spreadOf(theirs).median,
		spreadOf(ratios), target
	return r
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
