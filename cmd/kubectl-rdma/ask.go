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

// atOnce is the maximum number of concurrent queries. A query that takes longer than slow, and twice as long as the
// others, no longer counts. The limit scales with the usual response time, so that a busy machine does not send more
// and more queries.
const (
	atOnce = 200
	slow   = time.Second
)

// ask queries all nodes, and returns their responses as they arrive. One timeout applies to all nodes together. After
// the timeout, ask waits for the remaining nodes only while other responses still arrive, because a large fleet can
// take longer. ask also stops when the context ends. Without a timeout, ask waits for all nodes. The caller must read
// all responses.
func ask(ctx context.Context, nodes []string, timeout time.Duration,
	question func(ctx context.Context, node string) answer) <-chan answer {
	answers := make(chan answer) // unbuffered, so that a slow reader is not overrun
	go func() {
		defer close(answers)
		ctx, giveUp := context.WithCancelCause(ctx)
		defer giveUp(nil)
		timeout := cmp.Or(timeout, math.MaxInt64)
		deadline := time.NewTimer(timeout)
		defer deadline.Stop()
		latest := time.Now()
		came := make(chan answer, len(nodes))
		took := time.Duration(0) // total time of all responses
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
					continue // the query was canceled
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

// askOne queries a node. It frees the node's place after the response, or after patience.
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
