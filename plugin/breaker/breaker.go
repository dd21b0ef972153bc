// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package breaker keeps callers from an API that fails, so that no container waits for it: three failures in a row open the
// breaker, and ten seconds later one caller tries the API. The package knows nothing of what callers ask, and sets no time limit
// for a call.
package breaker

import (
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
)

// ErrOpen means that the API was not asked.
var ErrOpen = errors.New("not asked, because it failed three times in a row")

// Options say which outcomes are failures, and what is called when the state changes.
type Options struct {
	// Failed reports whether the outcome of a call, nil included, is a fault of the API.
	Failed func(err error) bool
	// Excluded reports whether an outcome says nothing about the API. If it is nil, every outcome counts.
	Excluded func(err error) bool
	// OnChange, if given, is called when the breaker opens, and when the API has answered again. It must not use the breaker.
	OnChange func(open bool)
}

// Breaker guards an API. It is safe for concurrent use. Breakers share nothing.
type Breaker[T any] struct {
	Options
	gate    atomic.Pointer[gobreaker.CircuitBreaker[T]]
	failing atomic.Bool // OnChange was last called with true
}

// New makes a closed Breaker: every call goes through.
func New[T any](o Options) *Breaker[T] {
	b := &Breaker[T]{Options: o}
	b.Reset()
	return b
}

// Reset closes the breaker and forgets the failures: the API is another one now.
func (b *Breaker[T]) Reset() {
	b.gate.Store(gobreaker.NewCircuitBreaker[T](gobreaker.Settings{
		MaxRequests: 1,
		Timeout:     OpenFor,
		ReadyToTrip: func(counts gobreaker.Counts) bool { return counts.ConsecutiveFailures >= Failures },
		IsExcluded:  b.Excluded,
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
	}))
}

// report calls OnChange if the state is another one. A breaker that was reset is closed, but only an answer is reported.
func (b *Breaker[T]) report(open bool) {
	if b.failing.Swap(open) != open && b.OnChange != nil {
		b.OnChange(open)
	}
}

// Do calls the API, unless the breaker is open: then it returns ErrOpen.
func (b *Breaker[T]) Do(call func() (T, error)) (T, error) {
	result, err := b.gate.Load().Execute(call)
	if errors.Is(err, gobreaker.ErrOpenState) || errors.Is(err, gobreaker.ErrTooManyRequests) {
		return result, ErrOpen
	}
	return result, err
}

// Failing reports whether the API has failed so often that the breaker opened, and has not answered since.
func (b *Breaker[T]) Failing() bool { return b.failing.Load() }
