// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/rdma-spec/rdma-spec/plugin/storedspec"
	"github.com/rdma-spec/rdma-spec/spec"
)

var errNoSpecs = errors.New("the runtime stores no specs that can be edited")

const (
	// specsMost bounds how many stored specs a pass reads: one has 20 KB, and a read takes a millisecond.
	specsMost = 20
	// specAgain is how long after it was read a stored spec is read again: the runtime writes it when a container is
	// resized.
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
func (r *Loop) specs() Specs {
	if r.Specs == nil || !r.specsUsable.Load() {
		return nil
	}
	return r.Specs
}

// readSpecs reads the stored specs of some containers, first those that were not read for the longest time. A container
// that was resized is decided about again.
func (r *Loop) readSpecs(ctx context.Context, found *findings, decide func(*finding)) {
	specs := r.specs()
	if specs == nil {
		return
	}
	now := time.Now()
	due := slices.DeleteFunc(slices.Clone(found.containers),
		func(f *finding) bool { return now.Sub(f.spec.tried) < specAgain })
	slices.SortStableFunc(due, func(a, b *finding) int { return a.spec.tried.Compare(b.spec.tried) })
	gone := map[*recorded]bool{}
	for _, f := range due[:min(len(due), specsMost)] {
		f.spec.tried = now
		limit := f.memoryLimit() // that the decision is about
		text, err := specs.Read(ctx, f.ID)
		if err == nil {
			err = f.spec.parse(text, f.wants().IPCLock)
		}
		switch {
		case found.hidden != nil && errors.Is(err, storedspec.ErrNotFound):
			gone[f.recorded] = true // nothing else would say so
		case err != nil:
			r.logger(f).WithError(err).Debug("its stored spec cannot be read")
		case f.memoryLimit() != limit:
			decide(f)
		}
	}
	isGone := func(e *recorded) bool { return gone[e] }
	r.record.forget(slices.Collect(maps.Keys(gone)), isGone)
	found.keep(func(f *finding) bool { return !isGone(f.recorded) && f.wantsSomething() })
}

// memoryLimit returns a container's memory limit: the spec's if that was read, otherwise the one that was recorded.
func (f *finding) memoryLimit() int64 {
	if f.spec.known {
		return f.spec.memoryLimit
	}
	return f.MemoryLimit
}

// parse takes what matters from a stored spec.
func (s *storedSpec) parse(text []byte, ipcLock spec.IPCLock) error {
	confirmed, err := spec.Grant{IPCLock: ipcLock}.Confirm(text, spec.BaseSets)
	if err != nil {
		return err
	}
	limit, err := spec.MemoryLimit(text)
	if err != nil {
		return err
	}
	s.known, s.memlock, s.setsMemlock = true, confirmed.Memlock, confirmed.MemlockKnown
	s.memoryLimit, s.lacksIPCLock = limit, !bytes.Equal(text, confirmed.Text)
	return nil
}

// finishEdits tries again to confirm what was not when containers were created, and counts the containers that still
// lack CAP_IPC_LOCK.
func (r *Loop) finishEdits(ctx context.Context, found *findings) (lacking int) {
	owed := r.record.owed()
	for _, f := range found.containers {
		if _, tried := owed[f.ID]; !tried && f.wants().IPCLock != spec.IPCLockNo && f.spec.lacksIPCLock {
			lacking++
		}
	}
	for id, grant := range owed {
		if !r.finishEdit(ctx, id, grant) && grant.IPCLock != spec.IPCLockNo {
			lacking++
		}
	}
	return lacking
}

// finishEdit tries again to give a stored spec what it may lack, and reports whether the container lacks nothing any
// more.
func (r *Loop) finishEdit(ctx context.Context, id string, grant spec.Grant) bool {
	changed, err := false, errNoSpecs
	if specs := r.specs(); specs != nil {
		changed, err = specs.ApplyRunning(ctx, id, grant)
	}
	if s := r.states[id]; s != nil {
		s.spec = storedSpec{} // it may have changed
	}
	log := r.Log.WithField("id", id)
	switch {
	case err == nil && !changed:
		log.Info("confirmed: the stored spec has what the container was granted, less CAP_IPC_LOCK where it drops all " +
			"capabilities")
	case err == nil:
		log.Info("the stored spec lacked some of what the container was granted, and has it now: processes of later execs " +
			"have it; if running processes need it, recreate the pod")
	case !errors.Is(err, storedspec.ErrNotFound):
		log.WithError(err).Debug("still not confirmed")
		return false
	}
	r.record.settle(id)
	return true
}
