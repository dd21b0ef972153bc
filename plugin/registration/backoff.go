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
	// After a failed connection attempt, the first retry is after dialAgain, because a runtime creates its socket a moment
	// before the runtime listens. Later intervals increase up to dialRarely, which is short, because an attempt is cheap.
	dialAgain  = 10 * time.Millisecond
	dialRarely = time.Second
	// After a failed registration, the first retry is after registerAgain. Later intervals increase up to registerRarely,
	// which is long, because containers wait while the runtime handles a registration.
	registerAgain  = 100 * time.Millisecond
	registerRarely = 30 * time.Second
	// After the runtime drops the plugin for the first time, the plugin re-registers immediately. After later drops, the
	// plugin re-registers after dropAgain at first, and then after intervals up to registerRarely. If the plugin was
	// registered for at least stable, the next drop counts as the first.
	dropAgain = time.Second
	stable    = 10 * time.Minute
	// unlistedEnough is the number of registrations in a row that must end the connection for the plugin to pause for
	// pauseFor. The plugin pauses because containers wait for each registration.
	unlistedEnough = 2
	pauseFor       = 5 * time.Minute
)

// droppedError means that a connection ended while the plugin was registered over that connection.
type droppedError struct{ after time.Duration }

func (e *droppedError) Error() string { return "the runtime closed the connection" }

// backoffs determines the delay before a retry, depending on how a connection ended.
type backoffs struct {
	dialing, registering, dropping *backoff.ExponentialBackOff
	dropped                        bool // the runtime has dropped the plugin before

	// The following fields refer to the time since the plugin's last registration.
	unlisted int            // how often the registration itself ended the connection
	file     socketFile     // the socket's file for the last connection
	suspect  *unlistedError // why the last connection ended; nil after it is clear whether the runtime is still running
	listing  bool           // the runtime was listing its containers when a registration last ended the connection
	renewed  bool           // a new socket has already ended a pause early
}

func newBackoffs() backoffs {
	return backoffs{
		dialing:     newBackoff(dialAgain, dialRarely),
		registering: newBackoff(registerAgain, registerRarely),
		dropping:    newBackoff(dropAgain, registerRarely),
	}
}

// newBackoff returns a backoff with intervals that double from about least to at most longest. Each interval varies
// randomly by up to half its length.
func newBackoff(least, longest time.Duration) *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval = least
	b.Multiplier = 2
	b.RandomizationFactor = 0.5
	b.MaxInterval = longest * 2 / 3
	return b
}

// delayAfter returns how long to wait before a retry after a connection ended with the given error; 0 means no wait.
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

// problems logs problems with the connection, and how to fix them. Each problem is logged only once until the plugin
// has re-registered. Only one goroutine may use a problems value.
type problems struct {
	log    logrus.FieldLogger
	logged map[string]bool
}

// report logs why a connection ended. If the plugin pauses, report also logs the duration of the pause.
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
		return // stayOut logs this error
	case errors.As(err, &unlisted) && rest == pauseFor:
		what = fmt.Sprintf("not registered after %d attempts in a row: %v. %s. The runtime creates no containers during an "+
			"attempt. The next attempt is in %s, or when the runtime restarts", unlistedEnough, unlisted,
			unlisted.causes(requestTimeout), rest)
	case errors.Is(err, fs.ErrNotExist):
		what = "no NRI socket: waiting for the runtime. If the runtime is running, turn NRI on in the " +
			"runtime's configuration (for containerd 1.7, see deploy/containerd)"
	case errors.Is(err, fs.ErrPermission):
		what = "no permission to connect to the NRI socket: run the plugin as root. If SELinux or AppArmor is enabled, " +
			"allow the plugin to use the socket"
	case errors.As(err, &drop):
		what = drop.Error() + ": reconnecting"
		clear(p.logged)
	default:
		what = fmt.Sprintf("not connected, retrying: %v", err)
	}
	if p.logged[what] {
		return
	}
	p.logged[what] = true
	log.Warn(what)
}
