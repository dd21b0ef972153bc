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

// editsMost bounds how many edits are tried again.
const editsMost = 1000

var errNoSpecs = errors.New("the runtime stores no specs that can be edited")

// edits are those that failed when containers were created: what a stored spec lacks, by the container's ID.
type edits struct {
	mu     sync.Mutex
	grants map[string]spec.Grant
}

func (e *edits) add(id string, grant spec.Grant) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.grants) < editsMost {
		e.grants[id] = grant
	}
}

func (e *edits) all() map[string]spec.Grant {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.grants)
}

func (e *edits) forget(grants map[string]spec.Grant) {
	e.mu.Lock()
	defer e.mu.Unlock()
	maps.DeleteFunc(e.grants, func(id string, _ spec.Grant) bool { _, ok := grants[id]; return ok })
}

// finishEdits tries the failed edits again, unless the policy gives the container no CAP_IPC_LOCK any more, and counts the containers that
// still lack it.
func (r *Repair) finishEdits(ctx context.Context, found *findings, unfinished map[string]spec.Grant) (lacking int) {
	done, specs := map[string]spec.Grant{}, r.specs()
	withdrawn := found.withdrawn
	for _, f := range found.containers { // the kubelet has been asked since
		if f.noIPCLock() {
			withdrawn = append(withdrawn, f.id.String())
		}
	}
	for _, id := range withdrawn {
		if grant, tried := unfinished[id]; tried {
			done[id] = grant
			delete(unfinished, id)
		}
	}
	for id, grant := range unfinished {
		changed, err := false, errNoSpecs
		if specs != nil {
			changed, err = specs.ApplyRunning(ctx, id, grant)
		}
		log := r.Log.WithField("id", id)
		switch {
		case err == nil && !changed:
			log.Info("the stored spec has what the policy gives: containerd has made the change after all, or the container drops all capabilities")
			done[id] = grant
		case err == nil:
			log.Info("CAP_IPC_LOCK added to the stored spec after the creation: processes of later execs have it; " +
				"if running processes need it, recreate the pod")
			done[id] = grant
		case errors.Is(err, storedspec.ErrNotFound):
			done[id] = grant
		default:
			log.WithError(err).Debug("still no CAP_IPC_LOCK: the stored spec could not be changed")
			lacking++
		}
	}
	r.edits.forget(done)
	for _, f := range found.containers {
		s := r.state(f.id)
		if _, tried := unfinished[f.id.String()]; tried {
			s.spec = storedSpec{} // it may have changed
		} else if f.wants().IPCLock != spec.IPCLockNo && s.spec.lacksIPCLock {
			lacking++
		}
	}
	return lacking
}
