// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdma-spec/rdma-spec/spec"
)

// recordBytesMost bounds the record: pods choose how long their annotations are.
const recordBytesMost = 16 << 20

// recorded is a container of the record. It never changes.
type recorded struct {
	Container
	since  time.Time // it was listed or created
	listed bool      // the runtime had it when the plugin registered
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
	unfinished map[string]spec.Grant // what stored specs lack, since the edit failed at the creation
	bytes      int
	omitted    atomic.Uint64 // containers that did not fit
}

func newRecord() record {
	return record{containers: map[string]*recorded{}, unfinished: map[string]spec.Grant{}}
}

// list replaces the record by what the runtime lists. The result says that a container did not fit, for the first time.
func (r *record) list(containers []Container) (full bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.containers, r.bytes = map[string]*recorded{}, 0
	for _, c := range containers {
		full = r.put(&recorded{Container: c, since: time.Now(), listed: true}) || full
	}
	maps.DeleteFunc(r.unfinished, func(id string, _ spec.Grant) bool { return r.containers[id] == nil })
	return full
}

// add records one more container. The result is that of list.
func (r *record) add(e *recorded) (full bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.put(e)
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
		delete(r.unfinished, e.ID)
		r.bytes -= e.bytes()
	}
}

// has reports whether a container is recorded.
func (r *record) has(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.containers[id] != nil
}

// owe records that a container's stored spec lacks a grant, and reports whether the container is recorded.
func (r *record) owe(id string, grant spec.Grant) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.containers[id] == nil {
		return false
	}
	r.unfinished[id] = grant
	return true
}

// settle records that a container's stored spec lacks nothing.
func (r *record) settle(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.unfinished, id)
}

// withdraw takes out of what a container's stored spec may lack what the policy does not give any more.
func (r *record) withdraw(id string, gives spec.Grant) {
	r.mu.Lock()
	defer r.mu.Unlock()
	grant, owed := r.unfinished[id]
	if grant.Memlock = min(grant.Memlock, gives.Memlock); gives.IPCLock == spec.IPCLockNo {
		grant.IPCLock = spec.IPCLockNo
	}
	if grant.Memlock == 0 && grant.IPCLock == spec.IPCLockNo {
		delete(r.unfinished, id)
	} else if owed {
		r.unfinished[id] = grant
	}
}

// owed returns what stored specs lack, by container.
func (r *record) owed() map[string]spec.Grant {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.unfinished)
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

// State is the record as one process leaves it to the next. It has ages and no instants, since clocks are set.
type State struct {
	ListedAgo  time.Duration `json:"listedAgo"` // since the runtime listed its containers, in nanoseconds
	Containers []kept        `json:"containers"`
}

type kept struct {
	Container Container     `json:"container"`
	Age       time.Duration `json:"age"` // since it was listed or created, in nanoseconds
	Listed    bool          `json:"listed,omitempty"`
	Edit      *spec.Grant   `json:"edit,omitempty"` // that its stored spec lacks
}

// Leave returns the record for the process that goes on in this one's place; nil if nothing is recorded.
func (r *Loop) Leave() *State {
	if r.off() {
		return nil
	}
	s, owed := &State{ListedAgo: time.Since(*r.listedAt.Load())}, r.record.owed()
	for _, e := range r.record.all() {
		k := kept{Container: e.Container, Age: time.Since(e.since), Listed: e.listed}
		if grant, lacks := owed[e.ID]; lacks {
			k.Edit = &grant
		}
		s.Containers = append(s.Containers, k)
	}
	slices.SortFunc(s.Containers, func(a, b kept) int { return strings.Compare(a.Container.ID, b.Container.ID) })
	return s
}

// TakeOver goes on with the record of the process before. It is Listed, for a runtime that lists nothing again.
func (r *Loop) TakeOver(before *State, specsUsable bool) {
	if r == nil {
		return
	}
	r.specsUsable.Store(specsUsable)
	switch {
	case r.off():
		return
	case before == nil: // repair was off there
		r.warnUnlisted()
		return
	}
	now := time.Now()
	listed := now.Add(-before.ListedAgo)
	r.listedAt.Store(&listed)
	for _, c := range before.Containers {
		r.record.add(&recorded{Container: c.Container, since: now.Add(-c.Age), listed: c.Listed})
		if c.Edit != nil {
			r.record.owe(c.Container.ID, *c.Edit)
		}
	}
	r.passNow()
}
