// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"sync"
	"time"
)

// atOnce is how many nodes are asked side by side, beside those that have not answered for slow, or for twice as long
// as others take: a machine that is busy must not ask ever more at once.
const (
	atOnce = 200
	slow   = time.Second
)

// ask puts a question to all nodes, and returns their answers as they come. One deadline holds for all nodes: after
// timeout, nobody waits for a node that has not answered, unless others still do: a fleet may be too large to be asked
// by then. The end of the context ends the waiting as well. Without a timeout, ask waits for all. The answers are to be
// read to the end.
func ask(ctx context.Context, nodes []string, timeout time.Duration,
	question func(ctx context.Context, node string) answer) <-chan answer {
	answers := make(chan answer) // who reads slowly is not overrun
	go func() {
		defer close(answers)
		ctx, giveUp := context.WithCancelCause(ctx)
		defer giveUp(nil)
		timeout := cmp.Or(timeout, math.MaxInt64)
		deadline := time.NewTimer(timeout)
		defer deadline.Stop()
		latest := time.Now()
		came := make(chan answer, len(nodes))
		took := time.Duration(0) // by all that have answered
		usual := took
		places := make(chan struct{}, atOnce)
		silent := map[string]bool{}
		for _, node := range nodes {
			silent[node] = true
		}
		for next := 0; len(silent) > 0; {
			place := places
			if next == len(nodes) {
				place = nil
			}
			select {
			case place <- struct{}{}:
				node := nodes[next]
				patience := max(slow, 2*usual)
				go func() { came <- askOne(ctx, node, patience, question, func() { <-places }) }()
				next++
			case a := <-came:
				if a.Error != "" && ctx.Err() != nil {
					continue // it was cut off
				}
				delete(silent, a.Node)
				latest = time.Now()
				took += a.took
				usual = took / time.Duration(len(nodes)-len(silent))
				answers <- a
			case <-deadline.C:
				if rest := timeout/4 - time.Since(latest); rest > 0 || len(came) > 0 {
					deadline.Reset(max(rest, 0))
					continue
				}
				giveUp(fmt.Errorf("no response within %s: for a slow node, increase --request-timeout", timeout))
			case <-ctx.Done():
				for node := range silent {
					answers <- answer{Node: node, Status: unanswered, Error: context.Cause(ctx).Error()}
				}
				return
			}
		}
	}()
	return answers
}

// askOne puts a question to a node, whose place is free as soon as it has answered, or has not for as long as patience.
func askOne(ctx context.Context, node string, patience time.Duration, question func(context.Context, string) answer,
	leave func()) answer {
	leave = sync.OnceFunc(leave)
	defer leave()
	late := time.AfterFunc(patience, leave)
	defer late.Stop()
	began := time.Now()
	a := question(ctx, node)
	a.Node = node
	a.took = time.Since(began)
	return a
}
