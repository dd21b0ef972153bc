// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"sync"
	"time"

	"github.com/rdma-spec/rdma-spec/spec"
)

// pendingFor is how long a grant waits for its container's PostCreateContainer. Where a creation fails in between, none comes.
const pendingFor = time.Minute

// pending holds the grants of containers between their CreateContainer and PostCreateContainer, by container.
type pending struct {
	mu     sync.Mutex
	grants map[string]pendingGrant
}

type pendingGrant struct {
	spec.Grant
	since time.Time
}

func (p *pending) put(container string, grant spec.Grant, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.grants == nil {
		p.grants = map[string]pendingGrant{}
	}
	for id, g := range p.grants {
		if now.Sub(g.since) > pendingFor {
			delete(p.grants, id)
		}
	}
	p.grants[container] = pendingGrant{grant, now}
}

func (p *pending) take(container string) (spec.Grant, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	g, ok := p.grants[container]
	delete(p.grants, container)
	return g.Grant, ok
}
