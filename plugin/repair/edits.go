// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"context"
	"errors"

	"github.com/rdma-spec/rdma-spec/plugin/storedspec"
	"github.com/rdma-spec/rdma-spec/spec"
)

var errNoSpecs = errors.New("the runtime stores no specs that can be edited")

// finishEdits tries the edits again that failed when containers were created, and counts the containers that still lack
// CAP_IPC_LOCK.
func (r *Loop) finishEdits(ctx context.Context, found *findings, all []*recorded) (lacking int) {
	for _, f := range found.containers {
		if f.edit.Load() == nil && f.wants().IPCLock != spec.IPCLockNo && f.spec.lacksIPCLock {
			lacking++
		}
	}
	for _, e := range all {
		if grant := e.edit.Load(); grant != nil && !r.finishEdit(ctx, e, *grant) {
			lacking++
		}
	}
	return lacking
}

// finishEdit tries an edit again, and reports whether the container lacks nothing any more.
func (r *Loop) finishEdit(ctx context.Context, e *recorded, grant spec.Grant) bool {
	changed, err := false, errNoSpecs
	if specs := r.specs(); specs != nil {
		changed, err = specs.ApplyRunning(ctx, e.ID, grant)
	}
	e.spec = storedSpec{} // it may have changed
	log := r.Log.WithField("id", e.ID)
	switch {
	case err == nil && !changed:
		log.Info("the stored spec has what the policy gives: containerd has made the change after all, or the container " +
			"drops all capabilities")
	case err == nil:
		log.Info("CAP_IPC_LOCK added to the stored spec after the creation: processes of later execs have it; " +
			"if running processes need it, recreate the pod")
	case !errors.Is(err, storedspec.ErrNotFound):
		log.WithError(err).Debug("still no CAP_IPC_LOCK: the stored spec could not be changed")
		return false
	}
	e.edit.Store(nil)
	return true
}
