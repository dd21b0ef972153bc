// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"sync"
	"time"
)

const (
	// quietFor is how long something that was said is not said again.
	quietFor = 10 * time.Minute
	// quietMost bounds what is remembered as said.
	quietMost = 1024
)

// quieter keeps what is tried again and again, as a kubelet does with a refused container, from filling the log.
type quieter struct {
	mu   sync.Mutex
	said map[string]*saying
}

type saying struct {
	last  time.Time
	again int // how often it was held back since
}

// say calls speak if what was not said within quietFor; again is how often it has been held back since the last time.
func (q *quieter) say(what string, now time.Time, speak func(again int)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	s, ok := q.said[what]
	if ok && now.Sub(s.last) < quietFor {
		s.again++
		return
	}
	if !ok {
		if q.said == nil || len(q.said) >= quietMost {
			q.said = map[string]*saying{}
		}
		s = &saying{}
		q.said[what] = s
	}
	speak(s.again)
	s.last, s.again = now, 0
}

// forget has everything said again that comes again.
func (q *quieter) forget() {
	q.mu.Lock()
	defer q.mu.Unlock()
	clear(q.said)
}
