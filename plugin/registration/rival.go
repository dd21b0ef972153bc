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
	// rivalGone is how long this process waits before registering after the other plugin was last seen. The time covers a
	// restart of the other plugin's service, which takes about a second.
	rivalGone = 3 * time.Second
)

// rivalError contains the reason why this process does not register.
type rivalError struct{ error }

func (e *rivalError) Error() string {
	return fmt.Sprintf("not registering: %v, and two plugins would set the same limits. Remove one of the plugins",
		e.error)
}

// rivals records the other plugin that was last seen serving the node's containers.
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

// stayOut waits while another plugin serves the node's containers. stayOut holds no lock, so that each process of a
// deployment waits independently.
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

// Out returns an error if this process does not register because of another plugin. The error names the other plugin.
func (r *Registration) Out() error {
	r.rivals.mu.Lock()
	defer r.rivals.mu.Unlock()
	if r.rivals.last == nil {
		return nil
	}
	return r.rivals.last
}
