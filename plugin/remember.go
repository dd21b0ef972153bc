// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"time"

	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/rdma-spec/rdma-spec/spec"
)

const (
	// editWithin is how long an edit waits for its container's PostCreateContainer: longer than the kubelet waits for a
	// creation. If the creation fails in between, none comes.
	editWithin = 10 * time.Minute
	// logAgain is the time after which the same line is logged again.
	logAgain = 10 * time.Minute
	// remembered bounds what is kept of either.
	remembered = 1024
)

// edits holds the grants for stored specs from CreateContainer to PostCreateContainer, by container.
type edits struct{ grants *cache.LRUExpireCache }

func newEdits() edits { return edits{cache.NewLRUExpireCache(remembered)} }

func (e edits) put(container string, grant spec.Grant) { e.grants.Add(container, grant, editWithin) }

func (e edits) take(container string) (grant spec.Grant, owed bool) {
	kept, _ := e.grants.Get(container)
	e.grants.Remove(container)
	grant, owed = kept.(spec.Grant)
	return grant, owed
}

// all returns what is not taken yet.
func (e edits) all() map[string]spec.IPCLock {
	owed := map[string]spec.IPCLock{}
	for _, container := range e.grants.Keys() {
		if grant, ok := e.grants.Get(container); ok {
			owed[container.(string)] = grant.(spec.Grant).IPCLock
		}
	}
	return owed
}

// throttle keeps repeated lines from filling the log: a kubelet tries a refused container again and again.
type throttle struct{ logged *cache.LRUExpireCache }

func newThrottle() throttle { return throttle{cache.NewLRUExpireCache(remembered)} }

// due reports whether a line should be logged: it was not in the last ten minutes.
func (t throttle) due(line string) bool {
	if _, logged := t.logged.Get(line); logged {
		return false
	}
	t.logged.Add(line, true, logAgain)
	return true
}
