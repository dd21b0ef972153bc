// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/sirupsen/logrus"

	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/plugin/limits/limitstest"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/test/testing/expect"
)

// bench is a Loop on a node in memory. Its passes are made by hand.
type bench struct {
	*Loop
	t       *testing.T
	kernel  *limitstest.Kernel
	specs   *storedSpecs
	kubelet *kubelet
	log     *bytes.Buffer
}

// processes are the soft limits of those of each container, by its name.
type processes map[string][]spec.Limit

// newBench makes a bench whose containers run processes.
func newBench(t *testing.T, config string, running processes) *bench {
	t.Helper()
	byID := map[string][]spec.Limit{}
	for name, soft := range running {
		byID[limitstest.ID(name)] = soft
	}
	b := &bench{
		t: t, kernel: limitstest.NewKernel(byID), specs: &storedSpecs{texts: map[string]string{}},
		kubelet: &kubelet{}, log: &bytes.Buffer{},
	}
	log := logrus.New()
	log.SetOutput(b.log)
	b.Loop = New(Options{
		Log: log, Limits: limits.On(b.kernel), Specs: b.specs, Resources: b.kubelet,
		Facts: policy.Facts{
			Verbs: func(n hca.Number) (hca.Device, bool, error) {
				return hca.Device{}, n == hca.Number{Major: 231, Minor: 192}, nil
			},
			HCAs: func() (*hca.Inventory, error) { return &hca.Inventory{}, nil },
		},
	})
	b.use(config)
	return b
}

// onBench runs a test on a bench, in a time of its own.
func onBench(t *testing.T, config string, running processes, test func(t *testing.T, b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newBench(t, config, running)) })
}

func (b *bench) use(config string) {
	b.t.Helper()
	p, err := policy.FromText([]byte(config))
	if err != nil {
		b.t.Fatal(err)
	}
	b.Use(p)
}

var verbs = policy.Device{Path: "/dev/infiniband/uverbs0", Type: "c", Major: 231, Minor: 192}

// container is a container of a pod of its own, with devices.
func container(name string, devices ...policy.Device) Container {
	return Container{
		Container: policy.Container{Namespace: "default", Pod: "pod-" + name, Name: "main", Devices: devices},
		ID:        limitstest.ID(name), Sandbox: "sandbox-" + name,
	}
}

// passes makes passes, and gives what the log says of them.
func (b *bench) passes(n int) string {
	b.t.Helper()
	b.log.Reset()
	for range n {
		b.settledPass()
	}
	return b.log.String()
}

// settledPass makes a pass, and another one if some process may have been about to get its limits.
func (b *bench) settledPass() {
	b.pass(b.t.Context())
	for _, s := range b.states {
		for _, since := range s.low {
			if time.Since(since) < startsWithin {
				time.Sleep(startsWithin)
				b.pass(b.t.Context())
				return
			}
		}
	}
}

// expect makes a pass and compares its outcome.
func (b *bench) expect(want Stats) {
	b.t.Helper()
	b.settledPass()
	got, ok := b.Stats()
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(Stats{}, "Looked"), cmpopts.EquateEmpty()); diff != "" || !ok {
		b.t.Errorf("statistics, %t (-want +got):\n%s\nThe log says:\n%s", ok, diff, b.log)
	}
}

// expectSoft compares the soft limits of a container's processes.
func (b *bench) expectSoft(name string, want ...spec.Limit) {
	b.t.Helper()
	expect.Equal(b.t, "soft limits of "+name, want, b.kernel.Soft(limitstest.ID(name)))
}

func expectWords(t *testing.T, text string, times int, words string) {
	t.Helper()
	if got := strings.Count(text, words); got != times {
		t.Errorf("the log says %q %d times, want %d:\n%s", words, got, times, text)
	}
}

// recorded gives the names of the recorded containers.
func (b *bench) recorded() string {
	var names []string
	for _, e := range b.record.all() {
		names = append(names, limitstest.Name(e.ID))
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// expectRecorded compares the names of the recorded containers.
func (b *bench) expectRecorded(want string) {
	b.t.Helper()
	if got := b.recorded(); got != want {
		b.t.Errorf("recorded: %q, want %q", got, want)
	}
}

// unfinished counts the edits that are to be tried again.
func (b *bench) unfinished() int { return len(b.record.owed()) }

// storedSpecs are the specs that a runtime keeps of containers, by name.
type storedSpecs struct {
	mu    sync.Mutex
	texts map[string]string
	err   error
	reads int
}

func (s *storedSpecs) ApplyRunning(_ context.Context, container string, grant spec.Grant) (changed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := limitstest.Name(container)
	former, ok := s.texts[name]
	switch {
	case s.err != nil:
		return false, s.err
	case !ok:
		return false, storedspec.ErrNotFound
	}
	text, err := grant.Apply([]byte(former), spec.AllSets)
	s.texts[name] = string(text)
	return string(text) != former, err
}

func (s *storedSpecs) Read(_ context.Context, container string) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads++
	text, ok := s.texts[limitstest.Name(container)]
	switch {
	case s.err != nil:
		return nil, s.err
	case !ok:
		return nil, storedspec.ErrNotFound
	}
	return []byte(text), nil
}

// kubelet tells which resources pods hold.
type kubelet struct {
	mu       sync.Mutex
	names    map[string][]string // by pod
	unlisted map[string]bool     // pods whose resources it does not report all
	down     bool
	unknown  map[string]bool // pods that it does not know
	asked    map[string]int
	before   func() // an answer
}

func (k *kubelet) Names(_ context.Context, _, _, pod, _ string) ([]string, bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.asked == nil {
		k.asked = map[string]int{}
	}
	k.asked[pod]++
	if k.before != nil {
		k.before()
	}
	if k.down || k.unknown[pod] {
		return nil, false, errors.New("down")
	}
	return k.names[pod], !k.unlisted[pod], nil
}
