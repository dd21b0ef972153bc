// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"context"
	"errors"
	"time"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
)

const (
	// A pass sends kubeletBurst requests at once, and then one every kubeletPause: the kubelet accepts a hundred a second,
	// and those about containers that are created come first.
	kubeletBurst = 10
	kubeletPause = 50 * time.Millisecond
	// kubeletWithin bounds the time that a pass spends on requests.
	kubeletWithin = 5 * time.Second
)

var errNotAsked = errors.New("the kubelet has not answered yet")

// decide decides about a container by what is known. What the policy withdraws is not owed any more.
func (r *Loop) decide(p *policy.Policy, facts policy.Facts, f *finding) {
	c := f.Container.Container
	c.MemoryLimit, c.Resources, f.asks = f.memoryLimit(), f.resources, false
	if r.Resources != nil && f.resources == nil {
		c.Resources = func() ([]string, bool, error) {
			f.asks = true
			return nil, false, errNotAsked
		}
	}
	c.Injected = c.Injected || f.listed && p.Injects(c)
	f.decision = p.Decide(c, facts)
	if !f.asks {
		r.record.withdraw(f.ID, f.wants())
	}
}

// askKubelet asks the kubelet once about each container whose decision needs it, and removes those that the policy
// gives nothing. A pass continues where the last one stopped.
func (r *Loop) askKubelet(ctx context.Context, found *findings, decide func(*finding)) {
	var asking []*finding
	for _, f := range found.containers {
		if f.asks {
			asking = append(asking, f)
		}
	}
	asked, answered, start := 0, false, time.Now()
	for ; asked < len(asking) && time.Since(start) < kubeletWithin; asked++ {
		if asked >= kubeletBurst {
			select {
			case <-ctx.Done():
			case <-time.After(kubeletPause):
			}
		}
		if ctx.Err() != nil {
			return
		}
		f := asking[(r.askFrom+asked)%len(asking)]
		if names, known, err := r.Resources.Names(ctx, f.Sandbox, f.Namespace, f.Pod, f.Name); err == nil {
			f.resources, answered = func() ([]string, bool, error) { return names, known, nil }, true
			decide(f)
		}
	}
	r.askFrom += asked
	found.unasked = answered && asked < len(asking)
	found.keep((*finding).wantsSomething)
}
