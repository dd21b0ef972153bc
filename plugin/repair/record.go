// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdma-spec/rdma-spec/spec"
)

// recordBytesMost bounds the record: pods choose how long their annotations are.
const recordBytesMost = 16 << 20

// recorded is a container of the record. Only its state changes.
type recorded struct {
	Container
	*state
	since  time.Time // it was listed or created
	listed bool      // the runtime had it when the plugin registered
}

// state is what is remembered of a container from one pass to the next. All but the edit is the pass's alone.
type state struct {
	edit atomic.Pointer[spec.Grant] // what its stored spec lacks, since the edit failed at its creation
	// resources gives the kubelet's answer, nil before. It never changes: resources are allotted when the pod is admitted.
	resources   func() (names []string, known bool, err error)
	logged      string     // the last line about the container
	verdict     Verdict    // of the last pass
	raisedTo    spec.Limit // by a pass
	specPending bool       // its processes were raised, and its stored spec was not
	spec        storedSpec
	low         map[int]time.Time // since when its processes are seen to have less, by PID
}

// bytes estimates what the container takes.
func (e *recorded) bytes() int {
	const itself, device = 1000, 100
	size := itself + device*len(e.Devices)
	for key, value := range e.Annotations {
		size += len(key) + len(value)
	}
	return size
}

// record holds the containers that were listed or created, by ID, whatever the policy says of them, since a later
// policy may say more. The runtime does not report when one is gone: the pass forgets it when it has no processes.
type record struct {
	mu         sync.Mutex
	containers map[string]*recorded
	bytes      int
	omitted    atomic.Uint64 // containers that did not fit
}

// list replaces the record by what the runtime lists. The result says that a container did not fit, for the first time.
func (r *record) list(containers []Container) (full bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	former := r.containers
	r.containers, r.bytes = map[string]*recorded{}, 0
	for _, c := range containers {
		e := &recorded{Container: c, state: &state{}, since: time.Now(), listed: true}
		if known := former[c.ID]; known != nil {
			e.state = known.state
		}
		full = r.put(e) || full
	}
	return full
}

// add records a container that is created. The result is that of list.
func (r *record) add(c Container) (full bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.put(&recorded{Container: c, state: &state{}, since: time.Now()})
}

func (r *record) put(e *recorded) (full bool) {
	if e.AllDevices {
		e.Devices = nil // hundreds, and none of them is a signal
	}
	r.drop(r.containers[e.ID])
	if r.bytes+e.bytes() > recordBytesMost {
		return r.omitted.Add(1) == 1
	}
	r.containers[e.ID] = e
	r.bytes += e.bytes()
	return false
}

func (r *record) drop(e *recorded) {
	if e != nil && r.containers[e.ID] == e {
		delete(r.containers, e.ID)
		r.bytes -= e.bytes()
	}
}

// get returns a container; nil if it is not recorded.
func (r *record) get(id string) *recorded {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.containers[id]
}

// all returns the containers.
func (r *record) all() []*recorded {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.containers))
}

// forget removes those containers that are gone. One that was listed or created again meanwhile is another one and
// stays, although its ID may be the same.
func (r *record) forget(all []*recorded, gone func(*recorded) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range all {
		if gone(e) {
			r.drop(e)
		}
	}
}

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
