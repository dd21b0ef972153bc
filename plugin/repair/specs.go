// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec"
	"github.com/rdma-spec/rdma-spec/spec"
)

const (
	// specsMost bounds how many stored specs a pass reads: one has 20 KB, and a read takes a millisecond.
	specsMost = 20
	// specAgain is how long after it was read a stored spec is read again: the runtime writes it when a container is resized.
	specAgain = time.Minute
)

// storedSpec is what a container's stored spec said when it was read last. The zero storedSpec is to be read.
type storedSpec struct {
	tried        time.Time
	known        bool
	memlock      spec.Rlimit
	setsMemlock  bool
	memoryLimit  int64
	lacksIPCLock bool // which the policy gives
}

// specs returns the client of the stored specs; nil where the runtime stores none that can be edited.
func (r *Repair) specs() Specs {
	if r.Specs == nil || !r.specsUsable.Load() {
		return nil
	}
	return r.Specs
}

// readSpecs reads the stored specs of some containers, first those that were not read for the longest time. A container that was
// resized is decided about anew.
func (r *Repair) readSpecs(ctx context.Context, found *findings, decide func(*finding)) {
	specs := r.specs()
	if specs == nil {
		return
	}
	now := time.Now()
	due := slices.DeleteFunc(slices.Clone(found.containers), func(f *finding) bool { return now.Sub(r.state(f.id).spec.tried) < specAgain })
	slices.SortStableFunc(due, func(a, b *finding) int { return r.state(a.id).spec.tried.Compare(r.state(b.id).spec.tried) })
	var gone []*recorded
	for _, f := range due[:min(len(due), specsMost)] {
		s := &r.state(f.id).spec
		s.tried = now
		limit := s.limitOf(&f.Container) // that the decision is about
		text, err := specs.Read(ctx, f.id.String())
		if err == nil {
			err = s.parse(text, f.wants().IPCLock)
		}
		switch {
		case found.hidden != nil && errors.Is(err, storedspec.ErrNotFound):
			gone = append(gone, f.recorded) // nothing else would say so
		case err != nil:
			r.logger(f).WithError(err).Debug("its stored spec cannot be read")
		case s.memoryLimit != limit:
			decide(f)
		}
	}
	r.record.forget(gone)
	found.keep(func(f *finding) bool { return !slices.Contains(gone, f.recorded) && f.wantsSomething() })
}

// limitOf returns a container's memory limit: the spec's if that was read, otherwise the one that was recorded.
func (s *storedSpec) limitOf(c *policy.Container) int64 {
	if s.known {
		return s.memoryLimit
	}
	return c.MemoryLimit
}

// parse takes what matters from a stored spec.
func (s *storedSpec) parse(text []byte, ipcLock spec.IPCLock) error {
	memlock, sets, err := spec.Memlock(text)
	if err != nil {
		return err
	}
	limit, err := spec.MemoryLimit(text)
	if err != nil {
		return err
	}
	with, err := spec.Grant{IPCLock: ipcLock}.Apply(text, spec.BaseSets)
	if err != nil {
		return err
	}
	s.known, s.memlock, s.setsMemlock = true, memlock, sets
	s.memoryLimit, s.lacksIPCLock = limit, !bytes.Equal(text, with)
	return nil
}
