// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A fleet answers within seconds, however many of its nodes hang. Time is simulated.
func TestAsk(t *testing.T) {
	const timeout, each = 12 * time.Second, 250 * time.Millisecond
	for _, test := range []struct {
		name      string
		nodes     int
		hangs     func(i int) bool
		heedless  bool // whether a question that hangs goes on when its context has ended
		within    time.Duration
		interrupt time.Duration
		why       string
	}{
		{name: "one node", nodes: 1, within: each},
		{name: "a fleet", nodes: 5000, within: 10 * time.Second},
		{name: "a larger fleet, which cannot be asked within the timeout", nodes: 20_000, within: 26 * time.Second},
		{name: "1 % hang", nodes: 5000, hangs: func(i int) bool { return i%100 == 0 }, within: 15 * time.Second},
		{name: "10 % hang", nodes: 5000, hangs: func(i int) bool { return i%10 == 0 }, within: 15 * time.Second},
		{name: "10 % hang, and heed no context", nodes: 5000, hangs: func(i int) bool { return i%10 == 0 }, heedless: true,
			within: 15 * time.Second},
		{name: "the first 500 hang", nodes: 5000, hangs: func(i int) bool { return i < 500 }, within: 15 * time.Second},
		{name: "the last one hangs", nodes: 5000, hangs: func(i int) bool { return i == 4999 }, within: timeout},
		{name: "both nodes hang", nodes: 2, hangs: func(int) bool { return true }, within: timeout},
		{name: "an interrupt", nodes: 3, hangs: func(i int) bool { return i == 1 }, interrupt: time.Second, within: time.Second,
			why: "context canceled"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nodes, hangs := make([]string, test.nodes), map[string]bool{}
				for i := range nodes {
					nodes[i] = fmt.Sprintf("n%05d", i)
					hangs[nodes[i]] = test.hangs != nil && test.hangs(i)
				}
				ctx, interrupt := context.WithCancel(t.Context())
				defer interrupt()
				if test.interrupt > 0 {
					time.AfterFunc(test.interrupt, interrupt)
				}
				ends := make(chan struct{})
				defer close(ends)
				var now, most atomic.Int64
				question := func(ctx context.Context, node string) answer {
					n := now.Add(1)
					for seen := most.Load(); n > seen && !most.CompareAndSwap(seen, n); seen = most.Load() {
					}
					defer now.Add(-1)
					if !hangs[node] {
						time.Sleep(each)
						return answer{}
					}
					if test.heedless {
						<-ends
					} else {
						<-ctx.Done()
					}
					return answer{Error: "late"}
				}
				why := test.why
				if why == "" {
					why = "no response within 12s: for a slow node, increase --request-timeout"
				}
				began, seen := time.Now(), map[string]bool{}
				for a := range ask(ctx, nodes, timeout, question) {
					want := map[bool]string{true: why}[hangs[a.Node]]
					if a.Error != want || seen[a.Node] {
						t.Fatalf("%+v, want the error %q, once", a, want)
					}
					seen[a.Node] = true
				}
				if took := time.Since(began); len(seen) != test.nodes || took > test.within {
					t.Errorf("%d answers within %s, want %d within %s", len(seen), took, test.nodes, test.within)
				}
				hang := int64(0)
				for _, does := range hangs {
					if does {
						hang++
					}
				}
				if most.Load() > atOnce+hang {
					t.Errorf("%d nodes were asked at once, want %d beside %d that hang", most.Load(), atOnce, hang)
				}
			})
		})
	}
}

// Where all nodes take long, as on a machine that is busy, no more of them are asked at once than otherwise.
func TestAskSlowNodes(t *testing.T) {
	const timeout, each = 12 * time.Second, 2 * slow // below timeout/4, after which ask stops waiting
	synctest.Test(t, func(t *testing.T) {
		nodes := make([]string, 20*atOnce)
		for i := range nodes {
			nodes[i] = fmt.Sprintf("n%05d", i)
		}
		var now, atLast atomic.Int64
		for range ask(t.Context(), nodes, timeout, func(_ context.Context, node string) answer {
			n := now.Add(1)
			if node == nodes[len(nodes)-1] {
				atLast.Store(n)
			}
			time.Sleep(each)
			now.Add(-1)
			return answer{}
		}) {
		}
		if n := atLast.Load(); n == 0 || n > atOnce {
			t.Errorf("%d nodes were asked at once in the end, want %d", n, atOnce)
		}
	})
}

// Without a timeout, a node may take as long as it likes. The answers of others do not wait for it.
func TestAskWithoutTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		took := map[string]time.Duration{}
		for a := range ask(t.Context(), []string{"slow", "quick"}, 0, func(_ context.Context, node string) answer {
			time.Sleep(map[string]time.Duration{"slow": time.Hour}[node])
			return answer{}
		}) {
			took[a.Node] = time.Since(began)
		}
		if took["slow"] != time.Hour || took["quick"] != 0 {
			t.Errorf("they answer after %v", took)
		}
	})
}
