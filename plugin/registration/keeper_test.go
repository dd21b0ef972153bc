// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/chance"
)

// imagined is a simulated runtime from one start to its end, in the time of a synctest bubble. The tested keeper is the
// real one.
type imagined struct {
	net.Conn // the plugin's end of a connection
	file     socketFile
	refuses  error         // the error with which it ends each connection over which it could register the plugin; nil means that it registers the plugin
	takes    chan struct{} // closed when it can register plugins, because no container is being stopped
	since    time.Time     // when it became able to register plugins
	ended    chan struct{} // closed when it ends
}

func (*imagined) Close() error { return nil }

// history runs one runtime after the other, and records what happens to the plugin.
type history struct {
	keeper
	now                        atomic.Pointer[imagined] // nil while no runtime is running
	files                      uint64
	change                     chan struct{}
	ends                       error // why a connection ends before the plugin is registered
	registrations, connections int
	longest                    time.Duration // the longest time that a runtime that would register the plugin was without it
	pauses, paused             atomic.Bool
}

func newHistory() *history {
	h := &history{change: make(chan struct{}, 1), ends: &unlistedError{}}
	h.keeper = keeper{
		backoffs: newBackoffs(),
		join:     func(context.Context) *inheritance { return nil },
		release:  func(error) {},
		report:   func(_ error, rest time.Duration) { h.pauses.CompareAndSwap(false, rest == pauseFor) },
		dial: func(context.Context) (net.Conn, error) {
			if r := h.now.Load(); r != nil {
				return r, nil
			}
			return nil, &net.OpError{Op: "dial", Err: unix.ECONNREFUSED}
		},
		serve: func(ctx context.Context, conn net.Conn, _ *inheritance) error {
			h.connections++
			return h.serve(ctx, conn.(*imagined))
		},
		socket: func() socketFile {
			if r := h.now.Load(); r != nil {
				return r.file
			}
			return socketFile{}
		},
		changed: func() <-chan struct{} { return h.change },
		paused:  &h.paused,
	}
	return h
}

func (h *history) serve(ctx context.Context, r *imagined) error {
	select {
	case <-ctx.Done():
		return nil
	case <-r.ended:
		return h.end()
	case <-r.takes:
	}
	if r.refuses != nil {
		return h.end()
	}
	h.registrations++
	began := time.Now()
	h.without(began.Sub(r.since))
	select {
	case <-ctx.Done():
		return nil
	case <-r.ended:
		r.since = time.Time{}
		return &droppedError{time.Since(began)}
	}
}

// end returns an error for a connection that ends before the plugin is registered. It is a new error each time.
func (h *history) end() error {
	var e *unlistedError
	if !errors.As(h.ends, &e) {
		return h.ends
	}
	return &unlistedError{listing: e.listing, proven: e.proven}
}

func (h *history) without(time time.Duration) { h.longest = max(h.longest, time) }

// start starts a runtime. If noticed is false, the plugin gets no event about the new socket, as on a node without free
// inotify instances.
func (h *history) start(refuses error, noticed bool) *imagined {
	h.files++
	r := &imagined{file: socketFile{inode: h.files}, refuses: refuses, takes: make(chan struct{}),
		ended: make(chan struct{})}
	h.now.Store(r)
	h.notice(noticed)
	return r
}

func (h *history) notice(noticed bool) {
	if noticed {
		select {
		case h.change <- struct{}{}:
		default:
		}
	}
}

// lives makes a runtime stop a container, then run, each for a time, and then end.
func (h *history) lives(r *imagined, stops, runs time.Duration, noticed bool) {
	time.Sleep(stops)
	if runs > 0 {
		r.since = time.Now()
		close(r.takes)
		time.Sleep(runs)
	}
	synctest.Wait()
	h.now.Store(nil)
	close(r.ended)
	h.notice(noticed)
	synctest.Wait()
	if !r.since.IsZero() && r.refuses == nil { // otherwise, it never had the plugin
		h.without(time.Since(r.since))
	}
}

// The keeper guarantees that in any sequence of runtimes that start, stop containers, refuse the plugin, and end, a
// runtime that would register the plugin is without it for at most registerRarely, unless runtimes end while they list
// their containers.
func TestKeeper_NeverLongUnregistered(t *testing.T) {
	random := chance.New(t)
	const histories = 1000
	registrations, paused := 0, 0
	for range histories {
		synctest.Test(t, func(t *testing.T) {
			h := newHistory()
			end := await.Beside(t, h.keepRegistered)
			noticed, refusals := random.IntN(2) == 0, random.IntN(2)
			longest := pick(random, time.Second, time.Minute, 5*time.Minute)
			some := func() time.Duration { return pick(random, 0, 0, time.Millisecond, longest) }
			h.ends = pick[error](random, errEarly, &unlistedError{}, &refusedError{errEarly})
			for range 1 + random.IntN(30) {
				var refuses error
				if random.IntN(2) < refusals {
					refuses = errEarly
				}
				h.lives(h.start(refuses, noticed), some(), some(), noticed)
				time.Sleep(some())
			}
			end()
			if h.longest > registerRarely {
				t.Errorf("a runtime that would register the plugin is without it for %s", h.longest)
			}
			if refusals == 0 && h.pauses.Load() {
				t.Error("a pause, and no runtime has refused the plugin")
			}
			registrations += h.registrations
			if h.pauses.Load() {
				paused++
			}
		})
	}
	if registrations < histories || paused < histories/20 {
		t.Errorf("%d registrations, pauses in %d of %d histories: the test shows nothing", registrations, paused, histories)
	}
}

// pick returns one of the values or, for durations, a random duration up to one of them.
func pick[T any](random *rand.Rand, values ...T) T {
	value := values[random.IntN(len(values))]
	if d, ok := any(&value).(*time.Duration); ok && *d > 0 {
		*d = time.Duration(random.Int64N(int64(*d)))
	}
	return value
}

// A runtime creates its socket a moment before it listens, and no event says when it listens. The plugin connects soon
// afterwards.
func TestKeeper_NobodyListensYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHistory()
		end := await.Beside(t, h.keepRegistered)
		time.Sleep(time.Minute) // connections are refused
		h.start(nil, false)
		time.Sleep(dialRarely)
		synctest.Wait()
		if h.connections != 1 {
			t.Errorf("%d connections %s after the runtime listened, want one", h.connections, dialRarely)
		}
		end()
	})
}

// A pause ends after registerRarely if another runtime listens. But if the plugin also ended that runtime while it
// listed its containers, the pause continues, whatever starts.
func TestKeeper_PauseEndsAtNewSocket(t *testing.T) {
	for name, test := range map[string]struct {
		end  unlistedError
		want []int // number of connections within the first, second, ... half minute
	}{
		"hangs up":           {unlistedError{}, []int{2, 1, 1, 1, 1}},
		"ends while listing": {unlistedError{listing: true, proven: true}, []int{2, 1, 0, 0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHistory()
				h.ends = &test.end
				end := await.Beside(t, h.keepRegistered)
				for i, want := range test.want {
					before := h.connections
					r := h.start(errEarly, true)
					close(r.takes)
					time.Sleep(registerRarely)
					synctest.Wait()
					if got := h.connections - before; got != want {
						t.Errorf("runtime %d: %d connections, want %d", i+1, got, want)
					}
				}
				end()
			})
		})
	}
}
