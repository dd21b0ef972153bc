// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"time"

	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/rdma-spec/rdma-spec/spec"
)

const (
	// editWithin is how long an edit waits for its container's PostCreateContainer. Where a creation fails in between, none comes.
	editWithin = time.Minute
	// tellAgain is the time after which what is refused again and again is logged again.
	tellAgain = 10 * time.Minute
	// remembered bounds what is kept of either.
	remembered = 1024
)

// edits holds what is to be written into stored specs, from CreateContainer to PostCreateContainer, by container.
type edits struct{ grants *cache.LRUExpireCache }

func newEdits() edits { return edits{cache.NewLRUExpireCache(remembered)} }

func (e edits) put(container string, grant spec.Grant) { e.grants.Add(container, grant, editWithin) }

func (e edits) take(container string) (spec.Grant, bool) {
	grant, ok := e.grants.Get(container)
	if !ok {
		return spec.Grant{}, false
	}
	e.grants.Remove(container)
	return grant.(spec.Grant), true
}

// throttle keeps what is tried again and again, as a kubelet does with a refused container, from filling the log.
type throttle struct{ told *cache.LRUExpireCache }

func newThrottle() throttle { return throttle{cache.NewLRUExpireCache(remembered)} }

// due reports whether a line is to be logged now.
func (t throttle) due(line string) bool {
	if _, told := t.told.Get(line); told {
		return false
	}
	t.told.Add(line, true, tellAgain)
	return true
}
