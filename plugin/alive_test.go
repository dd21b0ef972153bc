// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdma-spec/rdma-spec/plugin/nritest"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// A health check does not ask the kubelet: its failures would open the breaker that guards creations.
func TestAlive_AsksNoKubelet(t *testing.T) {
	kubelet := &fakeKubelet{err: errors.New("the kubelet did not respond in time")}
	p := unregistered(Options{Policy: mustPolicy(t, "optIn: {resources: [rdma/*]}"), Resources: kubelet})
	if err := p.Alive(); err != nil {
		t.Error(err)
	}
	if len(kubelet.asked) > 0 {
		t.Errorf("the kubelet is asked about %q", kubelet.asked)
	}
}

// A plugin that uses the time that the runtime gives it is not killed for that.
func TestAlive_WithinRequestTimeout(t *testing.T) {
	for patience, want := range map[time.Duration]time.Duration{2 * time.Second: aliveWithin, time.Minute: time.Minute} {
		nritest.SetPatience(t, patience)
		if _, p := registered(t, Options{Policy: mustPolicy(t, "{}")}); p.answersWithin() != want {
			t.Errorf("where the runtime waits %s, the plugin counts as hung after %s, want %s", patience, p.answersWithin(), want)
		}
	}
}

// While a decision hangs, every health check fails, and all of them wait for one decision: their number does not add
// up.
func TestAlive_DecisionHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := unregistered(Options{Policy: mustPolicy(t, "{}")})
		goOn, decisions := make(chan struct{}), atomic.Int32{}
		p.facts.Verbs = func(hca.Number) (hca.Device, bool, error) {
			decisions.Add(1)
			<-goOn
			return hca.Device{}, false, nil
		}
		var checks sync.WaitGroup
		for range 100 {
			checks.Go(func() {
				if start := time.Now(); p.Alive() == nil || time.Since(start) != aliveWithin {
					t.Errorf("it is alive, or says that it is not after %s", time.Since(start))
				}
			})
		}
		checks.Wait()
		if p.Alive() == nil || decisions.Load() != 1 {
			t.Errorf("%d decisions hang, want 1", decisions.Load())
		}
		close(goOn)
		synctest.Wait()
		if err := p.Alive(); err != nil {
			t.Error(err)
		}
	})
}
