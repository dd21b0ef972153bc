// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"time"

	"k8s.io/apimachinery/pkg/util/cache"
)

const (
	// logAgain is how long the plugin suppresses a repeated line.
	logAgain = 10 * time.Minute
	// loggedMost bounds the number of remembered lines.
	loggedMost = 1024
)

// throttle keeps repeated lines from filling the log, since the kubelet keeps retrying a refused container.
type throttle struct{ logged *cache.LRUExpireCache }

func newThrottle() throttle { return throttle{cache.NewLRUExpireCache(loggedMost)} }

// due returns false if a line was logged in the last ten minutes. If the line was not logged in that time, due records
// the line as logged, and returns true.
func (t throttle) due(line string) bool {
	if _, logged := t.logged.Get(line); logged {
		return false
	}
	t.logged.Add(line, true, logAgain)
	return true
}
