// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"time"

	"k8s.io/apimachinery/pkg/util/cache"
)

const (
	// logAgain is the time after which the same line is logged again.
	logAgain = 10 * time.Minute
	// loggedMost bounds how many lines are remembered.
	loggedMost = 1024
)

// throttle keeps repeated lines from filling the log: a kubelet tries a refused container again and again.
type throttle struct{ logged *cache.LRUExpireCache }

func newThrottle() throttle { return throttle{cache.NewLRUExpireCache(loggedMost)} }

// due reports whether a line should be logged now, because it was not in the last ten minutes. Now it counts as logged.
func (t throttle) due(line string) bool {
	if _, logged := t.logged.Get(line); logged {
		return false
	}
	t.logged.Add(line, true, logAgain)
	return true
}
