// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package breaker stops calls to a failing API, so that no container waits for the API. Three consecutive failures open
// the breaker. After ten seconds, one caller tries the API. The package does not depend on a particular API. The call's
// context sets the timeout for a call.
package breaker

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"
)

const (
	// Failures is the number of consecutive failures that opens a breaker.
	Failures = 3
	// OpenFor is how long a breaker stays open before one caller tries the API.
	OpenFor = 10 * time.Second
	// Enough is the minimum time that a call must have for its failure to count. A caller with less time has already spent
	// its time on other work.
	Enough = 100 * time.Millisecond
)

// ErrOpen means that the API was not called.
var ErrOpen = errors.New("the API was not called, because it failed three times in a row")

// noVerdictError is the error of a call that does not show whether the API works.
type noVerdictError struct{ error }

// Unwrap returns the call's error.
func (e noVerdictError) Unwrap() error { return e.error }

// Options define failures, and the function to call after changes.
type Options struct {
	// Failed reports whether a call's error, which may be nil, is a fault of the API.
	Failed func(err error) bool
	// OnChange, if set, is called when the breaker opens, and when the API responds again. OnChange must not use the
	// breaker.
	OnChange func(open bool)
}

// Breaker guards an API. A Breaker is safe for concurrent use. Breakers are independent of each other.
type Breaker[T any] struct {
	Options
	gate    *gobreaker.CircuitBreaker[T]
	failing atomic.Bool // OnChange was last called with true
}

// New returns a closed Breaker, which allows every call.
func New[T any](o Options) *Breaker[T] {
	b := &Breaker[T]{Options: o}
	b.gate = gobreaker.NewCircuitBreaker[T](gobreaker.Settings{
		MaxRequests: 1,
		Timeout:     OpenFor,
		ReadyToTrip: func(counts gobreaker.Counts) bool { return counts.ConsecutiveFailures >= Failures },
		IsExcluded:  func(err error) bool { return errors.As(err, new(noVerdictError)) },
		IsSuccessful: func(err error) bool {
			failed := b.Failed(err)
			if !failed {
				b.report(false)
			}
			return !failed
		},
		OnStateChange: func(_ string, _, to gobreaker.State) {
			if to == gobreaker.StateOpen {
				b.report(true)
			}
		},
	})
	return b
}

// report calls OnChange if the state changed.
func (b *Breaker[T]) report(open bool) {
	if b.failing.Swap(open) != open && b.OnChange != nil {
		b.OnChange(open)
	}
}

// Do calls the API, or returns ErrOpen if the breaker is open. The context must be the context of the call. A failure
// does not count if the caller canceled the call, or had less time left than Enough.
func (b *Breaker[T]) Do(ctx context.Context, call func() (T, error)) (T, error) {
	deadline, bounded := ctx.Deadline()
	hurried := bounded && time.Until(deadline) < Enough
	result, err := b.gate.Execute(func() (T, error) {
		result, err := call()
		if b.Failed(err) && (hurried || errors.Is(ctx.Err(), context.Canceled)) {
			err = noVerdictError{err}
		}
		return result, err
	})
	if errors.Is(err, gobreaker.ErrOpenState) || errors.Is(err, gobreaker.ErrTooManyRequests) {
		return result, ErrOpen
	}
	return result, err
}

// Failing reports whether the breaker opened because of failures and the API has not responded since.
func (b *Breaker[T]) Failing() bool { return b.failing.Load() }
