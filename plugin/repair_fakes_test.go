// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"sync"

	"github.com/rdma-spec/rdma-spec/plugin/limits/limitstest"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec"
	"github.com/rdma-spec/rdma-spec/spec"
)

// node is a kernel with the processes of containers, given by name: the soft limit of each.
func node(containers map[string][]spec.Limit) *limitstest.Kernel {
	byID := map[string][]spec.Limit{}
	for name, soft := range containers {
		byID[limitstest.ID(name)] = soft
	}
	return limitstest.NewKernel(byID)
}

// storedSpecs are the specs that a runtime keeps of containers that run, by name.
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
	name := limitstest.Name(container)
	text, err := grant.Apply([]byte(s.texts[name]), spec.AllSets)
	s.texts[name] = string(text)
	return true, err
}

func (s *storedSpecs) Read(_ context.Context, container string) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text, ok := s.texts[limitstest.Name(container)]
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

func (k *kubelet) Names(_, _, pod, _ string) ([]string, bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.down {
		return nil, false, errors.New("down")
	}
	if k.answered == nil {
		k.answered = map[string]int{}
	}
	k.answered[pod]++
	return k.names[pod], true, nil
}
