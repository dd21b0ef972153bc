// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package breaker keeps callers from an API that fails, so that no container waits for it: three failures in a row open
// the breaker, and ten seconds later one caller tries the API. The package knows nothing of what callers ask, and sets
// no time limit for a call: its context does.
package breaker

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"
)

const (
	// Failures is how many failures in a row open a breaker.
	Failures = 3
	// OpenFor is how long a breaker stays open before one caller tries the API.
	OpenFor = 10 * time.Second
	// Enough is how long an API must have had for an answer that counts: with less, its caller's time was spent elsewhere.
	Enough = 100 * time.Millisecond
)

// ErrOpen means that the API was not asked.
var ErrOpen = errors.New("not called, because it failed three times in a row")

// noVerdictError is the error of a call that says nothing about the API.
type noVerdictError struct{ error }

// Unwrap returns what the call says.
func (e noVerdictError) Unwrap() error { return e.error }

// Options say which outcomes are failures, and what is called when the state changes.
type Options struct {
	// Failed reports whether the outcome of a call, nil included, is a fault of the API.
	Failed func(err error) bool
	// OnChange, if given, is called when the breaker opens, and when the API has answered again. It must not use the
	// breaker.
	OnChange func(open bool)
}

// Breaker guards an API. It is safe for concurrent use. Breakers share nothing.
type Breaker[T any] struct {
	Options
	gate    *gobreaker.CircuitBreaker[T]
	failing atomic.Bool // OnChange was last called with true
}

// New makes a closed Breaker: every call goes through.
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

// report calls OnChange if the state is another one.
func (b *Breaker[T]) report(open bool) {
	if b.failing.Swap(open) != open && b.OnChange != nil {
		b.OnChange(open)
	}
}

// Do calls the API, unless the breaker is open: then it returns ErrOpen. The context is the call's. A failure counts
// for nothing if the caller gave up, or had not Enough time left for the call.
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

// Failing reports whether the API has failed so often that the breaker opened, and has not answered since.
func (b *Breaker[T]) Failing() bool { return b.failing.Load() }
