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
	// A pass sends kubeletBurst requests at once, and then one every kubeletPause: the kubelet accepts a hundred a second, and those
	// about containers that are created come first.
	kubeletBurst = 10
	kubeletPause = 50 * time.Millisecond
	// kubeletWithin bounds the time that a pass spends on requests.
	kubeletWithin = 5 * time.Second
)

// answer is the kubelet's answer about a container's resources. It never changes: resources are allotted when the pod is admitted.
type answer struct {
	names []string
	known bool // there are no others
}

var errNotAsked = errors.New("the kubelet has not answered yet")

// decide decides about a container by what is known; asks is true if the kubelet's answer is needed and not known.
func (r *Repair) decide(p *policy.Policy, node policy.Node, e *recorded, c policy.Container) (d policy.Decision, asks bool) {
	if s := r.states[e.id]; s != nil {
		c.MemoryLimit = s.spec.limitOf(&c)
	}
	if r.Resources != nil {
		c.Resources = func() ([]string, bool, error) {
			a, ok := r.answers[e.id]
			if !ok {
				asks = true
				return nil, false, errNotAsked
			}
			return a.names, a.known, nil
		}
	}
	d = p.Decide(c, node)
	return d, asks
}

// askKubelet asks the kubelet once about each container whose decision needs it, and removes those that the policy gives nothing. A pass
// continues where the last one stopped.
func (r *Repair) askKubelet(ctx context.Context, found *findings, decide func(*finding)) {
	var asking []*finding
	for _, f := range found.containers {
		if f.asks {
			asking = append(asking, f)
		}
	}
	asked, answered, start := 0, false, time.Now()
	for ; asked < len(asking) && time.Since(start) < kubeletWithin; asked++ {
		if ctx.Err() != nil || asked >= kubeletBurst && !pause(ctx, kubeletPause) {
			return
		}
		f := asking[(r.askFrom+asked)%len(asking)]
		if names, known, err := r.Resources.Names(f.sandboxKey(), f.Namespace, f.Pod, f.Name); err == nil {
			r.answers[f.id], answered = answer{names, known}, true
			decide(f)
		}
	}
	r.askFrom += asked
	found.unasked = answered && asked < len(asking)
	found.keep((*finding).wantsSomething)
}
