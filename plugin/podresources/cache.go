// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package podresources

import (
	"sync"
	"time"
)

const (
	// keptFor is how long an answer is kept: long enough for the containers of a pod to be created one after the other.
	keptFor = 2 * time.Minute
	// keptMost bounds how many answers are kept.
	keptMost = 1024
)

// cache keeps answers by sandbox.
type cache struct {
	mu      sync.Mutex
	entries map[string]entry
}

type entry struct {
	answer
	since time.Time
}

func (c *cache) get(sandbox string, now time.Time) (answer, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries[sandbox]
	if !ok || now.Sub(e.since) >= keptFor {
		return nil, false
	}
	return e.answer, true
}

// put keeps an answer. What has grown old goes, and where that is not enough, what is oldest.
func (c *cache) put(sandbox string, a answer, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries == nil {
		c.entries = map[string]entry{}
	}
	var oldest string
	for s, e := range c.entries {
		if now.Sub(e.since) >= keptFor {
			delete(c.entries, s)
		} else if oldest == "" || e.since.Before(c.entries[oldest].since) {
			oldest = s
		}
	}
	if _, known := c.entries[sandbox]; !known && len(c.entries) >= keptMost {
		delete(c.entries, oldest)
	}
	c.entries[sandbox] = entry{a, now}
}
