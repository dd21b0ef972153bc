// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package breaker leaves an API alone while it is sick, so that no container waits for it: after three failures in a row it is not
// asked for a while, and then by one caller first. It knows nothing of what is asked, and sets no time limit to a call.
package breaker

import (
	"errors"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"
)

const (
	// Failures is how many failures in a row begin a rest.
	Failures = 3
	// DefaultRest is how long an API is left alone where Options say nothing.
	DefaultRest = 10 * time.Second
)

// ErrResting means that the API was not asked.
var ErrResting = errors.New("it is left alone because it failed three times in a row")

// Options say what a failure is, and who wants to know of a rest.
type Options struct {
	Rest time.Duration // how long the API is left alone; 0: DefaultRest
	// Failed says whether the outcome of a call, nil included, is a fault of the API.
	Failed func(err error) bool
	// Excluded says whether an outcome says nothing of the API; nil: none does.
	Excluded func(err error) bool
	// OnRest, if given, is told when a rest begins, and when the API has answered again.
	OnRest func(resting bool)
}

// Breaker stands before an API. It is safe for concurrent use.
type Breaker[T any] struct {
	Options
	mu   sync.Mutex
	gate *gobreaker.CircuitBreaker[T]
	told bool // that a rest has begun
}

// New makes a Breaker that lets everybody through.
func New[T any](o Options) *Breaker[T] {
	b := &Breaker[T]{Options: o}
	if b.Rest == 0 {
		b.Rest = DefaultRest
	}
	b.Reset()
	return b
}

// Reset ends a rest, and forgets the failures: the API is another one now.
func (b *Breaker[T]) Reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gate = gobreaker.NewCircuitBreaker[T](gobreaker.Settings{
		MaxRequests:  1,
		Timeout:      b.Rest,
		ReadyToTrip:  func(counts gobreaker.Counts) bool { return counts.ConsecutiveFailures >= Failures },
		IsSuccessful: func(err error) bool { return !b.Failed(err) },
		IsExcluded:   b.Excluded,
	})
}

// Do calls the API, unless it is to be left alone: then it gives ErrResting.
func (b *Breaker[T]) Do(call func() (T, error)) (T, error) {
	b.mu.Lock()
	gate := b.gate
	b.mu.Unlock()
	result, err := gate.Execute(call)
	if errors.Is(err, gobreaker.ErrOpenState) || errors.Is(err, gobreaker.ErrTooManyRequests) {
		return result, ErrResting
	}
	b.tell(err)
	return result, err
}

// tell tells of a rest that has begun or ended with the outcome of a call.
func (b *Breaker[T]) tell(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	resting := b.gate.State() == gobreaker.StateOpen
	answered := !b.Failed(err) && (b.Excluded == nil || !b.Excluded(err))
	if resting == b.told || !resting && !answered {
		return
	}
	b.told = resting
	if b.OnRest != nil {
		b.OnRest(resting)
	}
}

// Resting says whether callers get ErrResting now.
func (b *Breaker[T]) Resting() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.gate.State() == gobreaker.StateOpen
}
