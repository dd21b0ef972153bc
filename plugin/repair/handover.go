// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"time"

	"github.com/rdma-spec/rdma-spec/spec"
)

// State is the record as one process leaves it to the next.
type State struct {
	Listed     time.Time `json:"listed"` // when the runtime listed its containers
	Containers []kept    `json:"containers"`
}

type kept struct {
	Container Container   `json:"container"`
	Since     time.Time   `json:"since"`
	Listed    bool        `json:"listed,omitempty"`
	Edit      *spec.Grant `json:"edit,omitempty"`
}

// Leave returns the record for the process that goes on in this one's place; nil if nothing is recorded.
func (r *Loop) Leave() *State {
	if r.off() {
		return nil
	}
	s := &State{Listed: *r.listedAt.Load()}
	for _, e := range r.record.all() {
		s.Containers = append(s.Containers, kept{e.Container, e.since, e.listed, e.edit.Load()})
	}
	return s
}

// TakeOver goes on with the record of the process before. It is Listed, for a runtime that lists nothing again.
func (r *Loop) TakeOver(before *State, specsUsable bool) {
	if r == nil {
		return
	}
	r.specsUsable.Store(specsUsable)
	if r.off() || before == nil {
		return
	}
	r.listedAt.Store(&before.Listed)
	r.record.mu.Lock()
	for _, c := range before.Containers {
		e := &recorded{Container: c.Container, state: &state{}, since: c.Since, listed: c.Listed}
		e.edit.Store(c.Edit)
		r.record.put(e)
	}
	r.record.mu.Unlock()
	r.passNow()
}
