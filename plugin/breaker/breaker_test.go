// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package breaker

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

var (
	errSick    = errors.New("sick")
	errUnknown = errors.New("no such container") // an answer
	errGivenUp = errors.New("given up by the caller")
)

// A breaker, call by call: what the API would say, and what the caller and whoever wants to know of rests are told.
func TestBreaker(t *testing.T) {
	wait, reset := errors.New("wait"), errors.New("reset") // no calls, but what happens between them
	for name, test := range map[string]struct {
		calls, want []error
		rests       []bool
	}{
		"a healthy API":              {[]error{nil, errUnknown, nil}, []error{nil, errUnknown, nil}, nil},
		"two failures":               {[]error{errSick, errSick, nil, errSick, errSick}, []error{errSick, errSick, nil, errSick, errSick}, nil},
		"three failures":             {[]error{errSick, errSick, errSick, nil, nil}, []error{errSick, errSick, errSick, ErrResting, ErrResting}, []bool{true}},
		"well after a rest":          {[]error{errSick, errSick, errSick, wait, nil, nil}, []error{errSick, errSick, errSick, nil, nil}, []bool{true, false}},
		"an answer ends it, too":     {[]error{errSick, errSick, errSick, wait, errUnknown}, []error{errSick, errSick, errSick, errUnknown}, []bool{true, false}},
		"sick after a rest":          {[]error{errSick, errSick, errSick, wait, errSick, nil}, []error{errSick, errSick, errSick, errSick, ErrResting}, []bool{true}},
		"given up by the caller":     {[]error{errSick, errSick, errGivenUp, errSick}, []error{errSick, errSick, errGivenUp, errSick}, []bool{true}},
		"another API, and well":      {[]error{errSick, errSick, errSick, reset, nil}, []error{errSick, errSick, errSick, nil}, []bool{true, false}},
		"another API, sick as well":  {[]error{errSick, errSick, errSick, reset, errSick, errSick, errSick, nil}, []error{errSick, errSick, errSick, errSick, errSick, errSick, ErrResting}, []bool{true}},
		"another API, nothing known": {[]error{errSick, errSick, errSick, reset, errGivenUp}, []error{errSick, errSick, errSick, errGivenUp}, []bool{true}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var got []error
				var rests []bool
				b := New[int](Options{
					Failed:   func(err error) bool { return errors.Is(err, errSick) },
					Excluded: func(err error) bool { return errors.Is(err, errGivenUp) },
					OnRest:   func(resting bool) { rests = append(rests, resting) },
				})
				for _, outcome := range test.calls {
					switch {
					case errors.Is(outcome, wait):
						time.Sleep(DefaultRest - time.Millisecond)
						if _, err := b.Do(func() (int, error) { return 0, nil }); !errors.Is(err, ErrResting) || !b.Resting() {
							t.Errorf("before the rest is over: %v", err)
						}
						time.Sleep(2 * time.Millisecond)
					case errors.Is(outcome, reset):
						b.Reset()
						if b.Resting() {
							t.Error("it rests although it was reset")
						}
					default:
						_, err := b.Do(func() (int, error) { return 0, outcome })
						got = append(got, err)
					}
				}
				same := cmp.Comparer(errors.Is)
				if diff := cmp.Diff(test.want, got, same); diff != "" {
					t.Errorf("outcomes (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(test.rests, rests); diff != "" {
					t.Errorf("rests (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// After a rest one caller tries, and the others go on without the API.
func TestOneTries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New[int](Options{Failed: func(err error) bool { return err != nil }})
		for range Failures {
			_, _ = b.Do(func() (int, error) { return 0, errSick }) // what it is for
		}
		time.Sleep(DefaultRest + time.Millisecond)
		_, err := b.Do(func() (int, error) {
			if _, err := b.Do(func() (int, error) { return 0, nil }); !errors.Is(err, ErrResting) {
				t.Errorf("a second caller: %v", err)
			}
			return 0, nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}
