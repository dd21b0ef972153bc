// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"context"
	"errors"
	"maps"
	"sync"

	"github.com/rdma-spec/rdma-spec/plugin/storedspec"
	"github.com/rdma-spec/rdma-spec/spec"
)

// unfinishedMost bounds how many edits are tried again.
const unfinishedMost = 1000

var errNoSpecs = errors.New("the runtime keeps no specs that can be edited")

// edits are those that failed when a container was created, by the container's ID.
type edits struct {
	mu     sync.Mutex
	grants map[string]spec.Grant
}

func (e *edits) add(id string, grant spec.Grant) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.grants == nil {
		e.grants = map[string]spec.Grant{}
	}
	if len(e.grants) < unfinishedMost {
		e.grants[id] = grant
	}
}

func (e *edits) remove(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.grants, id)
}

func (e *edits) all() map[string]spec.Grant {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.grants)
}

func (e *edits) clear() {
	e.mu.Lock()
	defer e.mu.Unlock()
	clear(e.grants)
}

// finishEdits tries the edits again that failed, and counts the containers that lack CAP_IPC_LOCK all the same.
func (r *Repair) finishEdits(ctx context.Context, found *findings) (lacking int) {
	tried, specs := r.edits.all(), r.specs()
	for id, grant := range tried {
		err := errNoSpecs
		if specs != nil {
			_, err = specs.ApplyRunning(ctx, id, grant)
		}
		log := r.Log.WithField("id", id)
		switch {
		case err == nil:
			log.Info("CAP_IPC_LOCK added to the stored spec after the creation: processes of later execs have it; if those that run need it, recreate the pod")
			r.edits.remove(id)
		case errors.Is(err, storedspec.ErrNotFound):
			r.edits.remove(id)
		default:
			log.WithError(err).Debug("still no CAP_IPC_LOCK: the stored spec could not be changed")
			lacking++
		}
	}
	for _, f := range found.containers {
		s := r.state(f.id)
		if _, now := tried[f.id.String()]; now {
			s.spec = storedSpec{} // it may have changed
		} else if f.wants().IPCLock != spec.IPCLockNo && s.spec.lacksIPCLock {
			lacking++
		}
	}
	return lacking
}
