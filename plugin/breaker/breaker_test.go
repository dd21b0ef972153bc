// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package breaker

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/test/testing/expect"
)

var (
	errSick    = errors.New("sick")
	errUnknown = errors.New("no such container") // an answer
	errGivenUp = errors.New("given up by the caller")
	errHurried = errors.New("no answer in the little time that was left")
)

// left returns how much time a call has.
func left(outcome error) time.Duration {
	if errors.Is(outcome, errHurried) {
		return Enough - 1
	}
	return Enough
}

// A breaker, call by call: what the API would say, what the caller gets, and what OnChange is called with.
func TestBreaker(t *testing.T) {
	wait := errors.New("wait") // no call, but what happens between them
	for name, test := range map[string]struct {
		calls, want []error
		changes     []bool
	}{
		"a healthy API": {[]error{nil, errUnknown, nil}, []error{nil, errUnknown, nil}, nil},
		"two failures": {[]error{errSick, errSick, nil, errSick, errSick}, []error{errSick, errSick, nil,
			errSick, errSick}, nil},
		"three failures": {[]error{errSick, errSick, errSick, nil, nil}, []error{errSick, errSick, errSick, ErrOpen,
			ErrOpen}, []bool{true}},
		"well when it is tried": {[]error{errSick, errSick, errSick, wait, nil, nil}, []error{errSick, errSick, errSick, nil,
			nil}, []bool{true, false}},
		"an answer ends it, too": {[]error{errSick, errSick, errSick, wait, errUnknown}, []error{errSick, errSick, errSick,
			errUnknown}, []bool{true, false}},
		"sick when it is tried": {[]error{errSick, errSick, errSick, wait, errSick, nil}, []error{errSick, errSick, errSick,
			errSick, ErrOpen}, []bool{true}},
		"too little time": {[]error{errSick, errSick, errHurried, errHurried, errSick}, []error{errSick, errSick,
			errHurried, errHurried, errSick}, []bool{true}},
		"given up by the caller": {[]error{errSick, errSick, errGivenUp, errSick}, []error{errSick, errSick, errGivenUp,
			errSick}, []bool{true}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var got []error
				var changes []bool
				b := New[int](Options{
					Failed:   func(err error) bool { return err != nil && !errors.Is(err, errUnknown) },
					OnChange: func(open bool) { changes = append(changes, open) },
				})
				for _, outcome := range test.calls {
					switch {
					case errors.Is(outcome, wait):
						time.Sleep(OpenFor - time.Millisecond)
						if _, err := b.Do(t.Context(), func() (int, error) { return 0, nil }); !errors.Is(err, ErrOpen) {
							t.Errorf("before the time is over: %v", err)
						}
						time.Sleep(2 * time.Millisecond)
						if !b.Failing() {
							t.Error("it counts as answering before it was asked")
						}
					default:
						ctx, cancel := context.WithTimeout(t.Context(), left(outcome))
						_, err := b.Do(ctx, func() (int, error) {
							if errors.Is(outcome, errGivenUp) {
								cancel()
							}
							return 0, outcome
						})
						cancel()
						got = append(got, err)
					}
				}
				if failing := len(changes) > 0 && changes[len(changes)-1]; b.Failing() != failing {
					t.Errorf("failing: %t", b.Failing())
				}
				same := cmp.Comparer(func(a, b error) bool { return errors.Is(a, b) || errors.Is(b, a) })
				expect.Equal(t, "outcomes", test.want, got, same)
				expect.Equal(t, "OnChange", test.changes, changes)
			})
		})
	}
}

// When the time is over, one caller tries the API. The others go on without it.
func TestBreaker_oneCallerTries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New[int](Options{Failed: func(err error) bool { return err != nil }})
		for range Failures {
			_, _ = b.Do(t.Context(), func() (int, error) { return 0, errSick }) // what it is for
		}
		time.Sleep(OpenFor + time.Millisecond)
		_, err := b.Do(t.Context(), func() (int, error) {
			if _, err := b.Do(t.Context(), func() (int, error) { return 0, nil }); !errors.Is(err, ErrOpen) {
				t.Errorf("a second caller: %v", err)
			}
			return 0, nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}
