// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Waiter is a process that waits behind the owner. It is for one goroutine.
type Waiter struct {
	lock
	owner *net.UnixConn
	given []*os.File // what came with the state: the connection and the lock
}

// Join makes this process the owner, or lets it wait behind the one that is: one of both results is not nil. The
// directory is made where there is none, and must be closed to everybody else.
func Join(ctx context.Context, directory, name string) (*Owner, *Waiter, error) {
	l, err := newLock(directory, name)
	if err != nil {
		return nil, nil, err
	}
	return l.join(ctx)
}

func (l lock) join(ctx context.Context) (*Owner, *Waiter, error) {
	began := time.Now()
	for {
		locked, err := l.try()
		if err != nil {
			return nil, nil, err
		}
		if locked != nil {
			owner, err := l.own(locked)
			if err != nil {
				_ = locked.Close() // it is not used
			}
			return owner, nil, err
		}
		waiter, err := l.wait()
		if err == nil {
			return nil, waiter, nil
		}
		within := l.greetWithin
		if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) {
			within = listenWithin // it does not listen yet, or has just ended
		}
		if time.Since(began) > within {
			return nil, nil, fmt.Errorf("%w, which holds %s: %w", ErrHangs, l.file, err)
		}
		select {
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-time.After(joinAgain):
		}
	}
}

func (l lock) wait() (*Waiter, error) {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: l.socket, Net: "unix"})
	if err != nil {
		return nil, err
	}
	if err := errors.Join(trusted(c), send(c, message{Protocol: protocol})); err != nil {
		_ = c.Close() // nothing was agreed on
		return nil, err
	}
	_ = c.SetReadDeadline(time.Now().Add(l.greetWithin)) // of the first offer; if it fails, so does Next
	return &Waiter{lock: l, owner: c}, nil
}

// News is what the owner sends to a process that waits.
type News struct {
	Kind Kind
	Text json.RawMessage
}

// Kind is the kind of News.
type Kind int

// The kinds of News.
const (
	Offer Kind = iota // what this process has to know to replace the owner
	State             // the connection comes with it: Accept must follow, or Close
)

// Next waits for the owner's next message. The error is ErrRefused where the owner gives the connection to other
// processes alone, and ErrHangs where it does not greet this one; any other one means that the owner or the context is
// gone: Join again.
func (w *Waiter) Next(ctx context.Context) (News, error) {
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = w.owner.SetReadDeadline(time.Unix(1, 0)) // if it fails, the owner is gone
		close(interrupted)
	})
	received, files, err := receive(w.owner)
	if !stop() {
		<-interrupted
	}
	_ = w.owner.SetReadDeadline(time.Time{})
	w.given = append(w.given, files...)
	switch {
	case err != nil && ctx.Err() != nil:
		return News{}, ctx.Err()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return News{}, ErrHangs
	case err != nil:
		return News{}, err
	case received.Refused != "":
		return News{}, fmt.Errorf("%w: %s", ErrRefused, received.Refused)
	case received.State == nil:
		return News{Offer, received.Offer}, nil
	case len(w.given) != 2:
		return News{}, fmt.Errorf("%d descriptors instead of 2", len(w.given))
	}
	return News{State, received.State}, nil
}

// Accept makes this process the owner, with the connection. Where an error comes with a connection, this process has
// it, but later ones cannot wait for it.
func (w *Waiter) Accept() (*Owner, *net.UnixConn, error) {
	if _, err := w.owner.Write([]byte{1}); err != nil {
		return nil, nil, fmt.Errorf("the previous process kept the connection, or has ended: %w", err)
	}
	connection := w.given[0]
	locked := w.given[1]
	if err := unix.Flock(int(locked.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil { // it was unlocked meanwhile
		return nil, nil, fmt.Errorf("another process has the lock: %w", err)
	}
	w.given = nil
	socket, err := SocketOf(connection)
	if err != nil {
		_ = locked.Close() // there is nothing to own
		return nil, nil, err
	}
	owner, err := w.own(locked)
	return owner, socket, err
}

// Close ends the waiting. After Accept it tells the process that had the connection that it may end.
func (w *Waiter) Close() {
	_ = w.owner.Close() // it sees that
	for _, file := range w.given {
		_ = file.Close() // they are the owner's
	}
}
