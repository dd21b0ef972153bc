// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"time"

	"k8s.io/apimachinery/pkg/util/cache"
)

const (
	// logAgain is how long a repeated line is not logged.
	logAgain = 10 * time.Minute
	// loggedMost bounds the number of lines that are remembered.
	loggedMost = 1024
)

// throttle keeps repeated lines from filling the log, since the kubelet keeps retrying a refused container.
type throttle struct{ logged *cache.LRUExpireCache }

func newThrottle() throttle { return throttle{cache.NewLRUExpireCache(loggedMost)} }

// due reports whether a line was not logged in the last ten minutes, and records it as logged.
func (t throttle) due(line string) bool {
	if _, logged := t.logged.Get(line); logged {
		return false
	}
	t.logged.Add(line, true, logAgain)
	return true
}
