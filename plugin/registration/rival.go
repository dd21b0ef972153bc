// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"fmt"
	"sync"
	"time"
)

const (
	rivalAgain = 500 * time.Millisecond
	// rivalGone is how long no other plugin must have been seen before a process that stayed out registers. It bridges the
	// restart of another plugin's service, which takes about a second.
	rivalGone = 3 * time.Second
)

// rivalError says why this process stays out.
type rivalError struct{ error }

func (e *rivalError) Error() string {
	return fmt.Sprintf("not registering: %v: two plugins would set the same limits; remove one of them", e.error)
}

// rivals remembers which other plugin was last seen serving the node's containers.
type rivals struct {
	mu   sync.Mutex
	seen time.Time
	last *rivalError // nil if no other plugin was seen
}

// rival returns a rivalError while another plugin serves the node's containers.
func (r *Registration) rival() error {
	if r.Rival == nil {
		return nil
	}
	now := r.Rival()
	r.rivals.mu.Lock()
	defer r.rivals.mu.Unlock()
	switch {
	case now != nil:
		r.rivals.seen = time.Now()
		r.rivals.last = &rivalError{now}
	case r.rivals.last == nil || time.Since(r.rivals.seen) >= r.rivalGone:
		r.rivals.last = nil
		return nil
	}
	return r.rivals.last
}

// stayOut waits while another plugin serves the node's containers. It holds no lock, so that each process of a
// deployment stays out independently.
func (r *Registration) stayOut(ctx context.Context) {
	said := ""
	for ctx.Err() == nil {
		err := r.rival()
		if err == nil {
			return
		}
		if err.Error() != said {
			said = err.Error()
			r.Log.Warn(said)
		}
		select {
		case <-ctx.Done():
		case <-time.After(rivalAgain):
		}
	}
}

// Out returns why this process stays out; nil if it does not.
func (r *Registration) Out() error {
	r.rivals.mu.Lock()
	defer r.rivals.mu.Unlock()
	if r.rivals.last == nil {
		return nil
	}
	return r.rivals.last
}
