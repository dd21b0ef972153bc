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
	// A connection that failed is tried again after dialAgain at first, and after dialRarely at last, which costs nobody
	// anything. A runtime makes its socket a moment before it listens.
	dialAgain  = 10 * time.Millisecond
	dialRarely = time.Second
	// A registration that failed is tried again after registerAgain at first, and after registerRarely at last: the
	// runtime handles each one, and containers wait for it.
	registerAgain  = 100 * time.Millisecond
	registerRarely = 30 * time.Second
	// A plugin that the runtime has dropped registers again at once, then after dropAgain, and after registerRarely at
	// last. One that stayed registered for stable begins again.
	dropAgain = time.Second
	stable    = 10 * time.Minute
	// unlistedEnough is how often in a row the registration may have ended a runtime or its patience before the plugin
	// leaves the runtime in peace for pauseFor: containers wait for each registration.
	unlistedEnough = 2
	pauseFor       = 5 * time.Minute
)

// droppedError means that a connection has ended over which the plugin was registered.
type droppedError struct{ after time.Duration }

func (e *droppedError) Error() string { return "the runtime closed the connection" }

// pace says when to try again.
type pace struct {
	dialing, registering, dropping *backoff.ExponentialBackOff
	dropped                        bool // within the last while

	// Since the plugin was last registered:
	unlisted int            // how often the registration itself was what ended the connection
	file     socketFile     // of the last connection
	suspect  *unlistedError // how that has ended, until it shows whether the runtime that ended it is still there
	listing  bool           // the last of the unlisted ends came while the runtime listed its containers
	renewed  bool           // a new socket has ended a pause
}

func newPace() pace {
	return pace{
		dialing: between(dialAgain, dialRarely), registering: between(registerAgain, registerRarely),
		dropping: between(dropAgain, registerRarely),
	}
}

// between gives times that double, from about a least one to a longest one, with jitter of half of each.
func between(least, longest time.Duration) *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.Multiplier, b.RandomizationFactor, b.MaxInterval = least, 2, 0.5, longest*2/3
	return b
}

// after returns the time to wait after an end.
func (p *pace) after(err error) time.Duration {
	var dial *net.OpError
	var drop *droppedError
	var unlisted *unlistedError
	switch {
	case errors.As(err, &dial) && dial.Op == "dial", errors.As(err, new(*rivalError)):
		return p.dialing.NextBackOff()
	case errors.As(err, &drop):
		p.dialing.Reset()
		p.registering.Reset()
		p.unlisted, p.renewed = 0, false
		if drop.after >= stable || !p.dropped {
			p.dropped = true
			p.dropping.Reset()
			return 0
		}
		return p.dropping.NextBackOff()
	case errors.As(err, &unlisted) && unlisted.proven:
		p.listing = unlisted.listing
		if p.unlisted++; p.unlisted >= unlistedEnough {
			return pauseFor
		}
	case unlisted != nil:
		p.suspect = unlisted
	}
	p.dialing.Reset()
	return p.registering.NextBackOff()
}

// problems logs what is wrong with the connection and what to do about it: each problem once, until the plugin has
// registered again. It is for one goroutine.
type problems struct {
	log    logrus.FieldLogger
	logged map[string]bool
}

// report logs why a connection has ended, and how long the plugin leaves the runtime in peace, if that is minutes.
func (p *problems) report(err error, rest, requestTimeout time.Duration) {
	log, what := p.log, ""
	var refused *refusedError
	var drop *droppedError
	var unlisted *unlistedError
	switch {
	case errors.As(err, &refused):
		log, what = p.log.WithField("runtime", "refused"), "not registered: "+refused.Error()
	case errors.As(err, new(*rivalError)):
		return // who waits for its place says so
	case errors.As(err, &unlisted) && rest == pauseFor:
		what = fmt.Sprintf("not registered: %d times in a row, %v: %s; so that this does not hold up the node again and "+
			"again, the plugin tries again only in %s, or when the runtime has started anew", unlistedEnough, unlisted,
			unlisted.causes(requestTimeout), rest)
	case errors.Is(err, fs.ErrNotExist):
		what = "no NRI socket: waiting for the runtime; if it runs, turn NRI on in its configuration (deploy/containerd " +
			"has it for containerd 1.7)"
	case errors.Is(err, fs.ErrPermission):
		what = "no permission to connect to the NRI socket: run as root, and where SELinux or AppArmor is on, let the " +
			"plugin use it"
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
