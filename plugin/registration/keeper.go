// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// keeper keeps the plugin registered. After a connection ends, the keeper reconnects with a backoff. The keeper does
// not depend on the messages on a connection, and uses only the process's own clock.
//
// If the runtime is able to register the plugin, the keeper guarantees that the plugin is unregistered for at most
// registerRarely, however often runtimes restart. The guarantee does not apply to runtimes that exit while they list
// their containers to the plugin.
type keeper struct {
	backoffs
	join    func(context.Context) *inheritance // waits for the lock; returns nil if this process must register
	release func(cause error)                  // passes the lock to another process, which might register
	dial    func(context.Context) (net.Conn, error)
	serve   func(context.Context, net.Conn, *inheritance) error // returns when the connection ends
	socket  func() socketFile                                   // returns the current file of the runtime's socket
	changed func() <-chan struct{}                              // signals that the socket's file might have changed
	report  func(end error, rest time.Duration)
	paused  *atomic.Bool
}

// socketFile identifies the file of a socket. When a runtime starts, it creates a new file at the same path. The zero
// socketFile means that no file exists.
type socketFile struct {
	device, inode uint64
	made          unix.Timespec // distinguishes successive files with the same inode number
}

func socketAt(path string) socketFile {
	var s unix.Stat_t
	if unix.Stat(path, &s) != nil {
		return socketFile{}
	}
	return socketFile{s.Dev, s.Ino, s.Mtim}
}

// keepRegistered keeps the plugin registered until the context is done.
func (k *keeper) keepRegistered(ctx context.Context) {
	from := k.join(ctx)
	for from != nil || ctx.Err() == nil { // even if the context is done, hand over an inherited connection
		err := k.connect(ctx, from)
		from = nil
		if ctx.Err() != nil {
			return
		}
		rest := k.delayAfter(err)
		k.report(err, rest)
		if rest != pauseFor && !errors.As(err, new(*refusedError)) && !errors.As(err, new(*rivalError)) {
			k.rest(ctx, rest)
			continue
		}
		k.release(err)
		if rest == pauseFor {
			k.pause(ctx)
		} else {
			k.rest(ctx, rest)
		}
		from = k.join(ctx)
	}
}

// connect serves an inherited or a new connection until the connection ends.
func (k *keeper) connect(ctx context.Context, from *inheritance) error {
	if from != nil {
		return k.serve(ctx, from.socket, from)
	}
	select {
	case <-k.changed(): // discard the notification: dial uses the current socket
	default:
	}
	file := k.socket()
	conn, err := k.dial(ctx)
	suspect := k.suspect
	k.suspect = nil
	switch {
	case err != nil:
		return err
	case suspect != nil && k.file == k.socket(): // the runtime that closed the last connection is still running
		_ = conn.Close() // no data was sent
		suspect.proven = true
		return suspect
	}
	k.file = file
	return k.serve(ctx, conn, nil)
}

// rest waits until the given time has passed, or until the runtime might have started.
func (k *keeper) rest(ctx context.Context, rest time.Duration) {
	select {
	case <-ctx.Done():
	case <-k.changed():
		k.dialing.Reset()
	case <-time.After(rest):
	}
}

// pause waits for pauseFor before the next registration. A new socket ends the pause early, because a new runtime might
// be able to register the plugin. If the new runtime also exits while it lists its containers, later new sockets do not
// end the pause.
func (k *keeper) pause(ctx context.Context) {
	k.paused.Store(true)
	defer k.paused.Store(false)
	for range pauseFor / registerRarely {
		select {
		case <-ctx.Done():
			return
		case <-time.After(registerRarely):
		}
		twice := k.listing && k.renewed
		if !twice && k.socket() != k.file {
			k.renewed = true
			return
		}
	}
}
