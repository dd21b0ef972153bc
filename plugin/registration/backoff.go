// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/sirupsen/logrus"
)

const (
	// A failed connection is retried after dialAgain at first, later after up to dialRarely, which is cheap. A runtime
	// creates its socket a moment before it listens.
	dialAgain  = 10 * time.Millisecond
	dialRarely = time.Second
	// A failed registration is retried after registerAgain at first, later after up to registerRarely: the runtime handles
	// each one, and containers wait for it.
	registerAgain  = 100 * time.Millisecond
	registerRarely = 30 * time.Second
	// A plugin that the runtime dropped registers again at once, then after dropAgain, later after up to registerRarely.
	// After it was registered for stable, it starts over.
	dropAgain = time.Second
	stable    = 10 * time.Minute
	// unlistedEnough is how many registrations in a row may end the connection before the plugin pauses for pauseFor,
	// since containers wait for each registration.
	unlistedEnough = 2
	pauseFor       = 5 * time.Minute
)

// droppedError means that a connection ended over which the plugin was registered.
type droppedError struct{ after time.Duration }

func (e *droppedError) Error() string { return "the runtime closed the connection" }

// backoffs decide when to retry after each kind of end.
type backoffs struct {
	dialing, registering, dropping *backoff.ExponentialBackOff
	dropped                        bool // the plugin has been dropped before

	// Since the plugin was last registered:
	unlisted int            // how often the registration itself ended the connection
	file     socketFile     // of the last connection
	suspect  *unlistedError // why the last connection ended, until it is known whether the runtime is still running
	listing  bool           // the last of these ends came while the runtime listed its containers
	renewed  bool           // a new socket has already ended a pause early
}

func newBackoffs() backoffs {
	return backoffs{
		dialing:     newBackoff(dialAgain, dialRarely),
		registering: newBackoff(registerAgain, registerRarely),
		dropping:    newBackoff(dropAgain, registerRarely),
	}
}

// newBackoff returns intervals that double, from about least to at most longest. Each interval varies randomly by up to
// half its length.
func newBackoff(least, longest time.Duration) *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval = least
	b.Multiplier = 2
	b.RandomizationFactor = 0.5
	b.MaxInterval = longest * 2 / 3
	return b
}

// delayAfter returns how long to wait after a connection ended with this error; 0 means not at all.
func (b *backoffs) delayAfter(err error) time.Duration {
	var dial *net.OpError
	var drop *droppedError
	var unlisted *unlistedError
	switch {
	case errors.As(err, &dial) && dial.Op == "dial", errors.As(err, new(*rivalError)):
		return b.dialing.NextBackOff()
	case errors.As(err, &drop):
		b.dialing.Reset()
		b.registering.Reset()
		b.unlisted = 0
		b.renewed = false
		if drop.after >= stable || !b.dropped {
			b.dropped = true
			b.dropping.Reset()
			return 0
		}
		return b.dropping.NextBackOff()
	case errors.As(err, &unlisted) && unlisted.proven:
		b.listing = unlisted.listing
		b.unlisted++
		if b.unlisted >= unlistedEnough {
			return pauseFor
		}
	case unlisted != nil:
		b.suspect = unlisted
	}
	b.dialing.Reset()
	return b.registering.NextBackOff()
}

// problems logs what is wrong with the connection, and what to do about it. It logs each problem once until the plugin
// is registered again. Only one goroutine may use it.
type problems struct {
	log    logrus.FieldLogger
	logged map[string]bool
}

// report logs why a connection ended and, if the plugin pauses for minutes, for how long.
func (p *problems) report(err error, rest, requestTimeout time.Duration) {
	log := p.log
	var what string
	var refused *refusedError
	var drop *droppedError
	var unlisted *unlistedError
	switch {
	case errors.As(err, &refused):
		log = p.log.WithField("runtime", "refused")
		what = "not registered: " + refused.Error()
	case errors.As(err, new(*rivalError)):
		return // stayOut logs this
	case errors.As(err, &unlisted) && rest == pauseFor:
		what = fmt.Sprintf("not registered: %d times in a row, %v: %s. No container is created during an attempt, "+
			"so the plugin tries again only after %s, or when the runtime restarts", unlistedEnough, unlisted,
			unlisted.causes(requestTimeout), rest)
	case errors.Is(err, fs.ErrNotExist):
		what = "no NRI socket: waiting for the runtime; if it is running, enable NRI in its configuration (for " +
			"containerd 1.7, see deploy/containerd)"
	case errors.Is(err, fs.ErrPermission):
		what = "no permission to connect to the NRI socket: run as root; if SELinux or AppArmor is enabled, allow " +
			"the plugin to use the socket"
	case errors.As(err, &drop):
		what = drop.Error() + ": trying again"
		clear(p.logged)
	default:
		what = fmt.Sprintf("not connected: %v: trying again", err)
	}
	if p.logged[what] {
		return
	}
	p.logged[what] = true
	log.Warn(what)
}
