// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec"
	"github.com/rdma-spec/rdma-spec/spec"
)

// processTable is a node's processes: for each container the soft limit of each of its processes.
type processTable struct {
	mu         sync.Mutex
	containers map[string][]spec.Limit
	hidden     error
	refuse     error // to raise
	numbered   []string
	repairs    []map[string]spec.Limit
}

func (p *processTable) Visible() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hidden
}

// Containers numbers processes anew: the container's place among the names, and the process's in it.
func (p *processTable) Containers() (map[string][]int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.numbered = slices.Sorted(maps.Keys(p.containers))
	found := map[string][]int{}
	for i, id := range p.numbered {
		for j := range p.containers[id] {
			found[id] = append(found[id], i*100+j)
		}
	}
	return found, nil
}

func (p *processTable) Memlock(pid int) (spec.Rlimit, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	soft := p.containers[p.numbered[pid/100]][pid%100]
	return spec.Rlimit{Soft: soft, Hard: soft}, nil
}

func (p *processTable) Repair(ctx context.Context, wanted map[string]spec.Limit, specs limits.Specs) map[string]limits.Repaired {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.repairs = append(p.repairs, wanted)
	outcomes := map[string]limits.Repaired{}
	for id, want := range wanted {
		var r limits.Repaired
		if r.Err = p.refuse; r.Err == nil {
			for i, limit := range p.containers[id] {
				if limit < want {
					p.containers[id][i] = want
					r.Raised++
				}
			}
			if specs != nil {
				r.SpecChanged, r.SpecErr = specs.ApplyRunning(ctx, id, spec.Grant{Memlock: want})
			}
		}
		outcomes[id] = r
	}
	return outcomes
}

func (p *processTable) lowest(id string) spec.Limit {
	p.mu.Lock()
	defer p.mu.Unlock()
	lowest := spec.Unlimited
	for _, limit := range p.containers[id] {
		lowest = min(lowest, limit)
	}
	return lowest
}

func (p *processTable) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

// storedSpecs are the specs that a runtime keeps of containers that run.
type storedSpecs struct {
	mu    sync.Mutex
	texts map[string]string
	err   error
}

func (s *storedSpecs) ApplyRunning(_ context.Context, container string, grant spec.Grant) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return false, s.err
	}
	text, err := grant.Apply([]byte(s.texts[container]), spec.AllSets)
	s.texts[container] = string(text)
	return true, err
}

func (s *storedSpecs) Read(_ context.Context, container string) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text, ok := s.texts[container]
	if !ok {
		return nil, storedspec.ErrNotFound
	}
	return []byte(text), s.err
}

// kubelet tells which resources pods hold.
type kubelet struct {
	mu       sync.Mutex
	names    map[string][]string
	down     bool
	answered map[string]int
}

func (k *kubelet) set(down bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.down = down
}

func (k *kubelet) Names(_, _, pod, _ string) ([]string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.down {
		return nil, errors.New("down")
	}
	if k.answered == nil {
		k.answered = map[string]int{}
	}
	k.answered[pod]++
	return k.names[pod], nil
}
