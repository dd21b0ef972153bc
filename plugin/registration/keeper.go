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

// keeper keeps the plugin registered: it connects, and reconnects with backoffs after each end. It is independent of
// the messages on a connection, and uses only the process's own clock.
//
// It guarantees that no pattern of restarts leaves a runtime that would register the plugin without it for longer than
// registerRarely, unless runtimes end while they list their containers to the plugin.
type keeper struct {
	backoffs
	join    func(context.Context) *inheritance // waits for the lock; nil means that this process has to register
	release func(cause error)                  // passes the lock to another process, which may be able to register
	dial    func(context.Context) (net.Conn, error)
	serve   func(context.Context, net.Conn, *inheritance) error // returns when the connection ends
	socket  func() socketFile                                   // returns the current file of the runtime's socket
	changed func() <-chan struct{}                              // receives when the file of the socket may have changed
	report  func(end error, rest time.Duration)
	paused  *atomic.Bool
}

// socketFile identifies one of the files that have existed at a path, because a runtime creates a new socket when it
// starts. The zero socketFile means that no file exists.
type socketFile struct {
	device, inode uint64
	made          unix.Timespec // distinguishes files that have the same inode number one after the other
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
	for from != nil || ctx.Err() == nil { // an inherited connection is handed over again, even if the context is done
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

// connect serves a connection until it ends: an inherited or a new one.
func (k *keeper) connect(ctx context.Context, from *inheritance) error {
	if from != nil {
		return k.serve(ctx, from.socket, from)
	}
	select {
	case <-k.changed(): // dial sees the current socket anyway
	default:
	}
	file := k.socket()
	conn, err := k.dial(ctx)
	suspect := k.suspect
	k.suspect = nil
	switch {
	case err != nil:
		return err
	case suspect != nil && k.file == k.socket(): // the runtime is still the one that closed the last connection
		_ = conn.Close() // nothing was sent
		suspect.proven = true
		return suspect
	}
	k.file = file
	return k.serve(ctx, conn, nil)
}

// rest waits for the given time, or until the runtime may have started.
func (k *keeper) rest(ctx context.Context, rest time.Duration) {
	select {
	case <-ctx.Done():
	case <-k.changed():
		k.dialing.Reset()
	case <-time.After(rest):
	}
}

// pause waits for pauseFor before the next registration. A new socket ends the pause early, as the keeper guarantees,
// since the new runtime may work. But if that runtime also ends while it lists its containers, later new sockets do not
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
