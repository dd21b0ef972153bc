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

// Waiter is the waiter's side of the handover: this process waits behind the owner. Only one goroutine may use a
// Waiter.
type Waiter struct {
	lock
	owner *net.UnixConn
	given []*os.File // descriptors from the state message: the connection and the lock
}

// Join makes this process the owner, or a waiter behind the owner. If Join returns no error, exactly one of the other
// two results is not nil. If the directory does not exist, Join creates the directory. Join restricts access to the
// directory to this process's user.
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
			owner, err := l.becomeOwner(locked)
			if err != nil {
				_ = locked.Close() // this process did not become the owner
			}
			return owner, nil, err
		}
		waiter, err := l.wait()
		if err == nil {
			return nil, waiter, nil
		}
		within := l.greetWithin
		if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) {
			within = listenWithin // the owner is not listening yet, or has just exited
		}
		if time.Since(began) > within {
			return nil, nil, fmt.Errorf("%w (lock file %s): %w", ErrHangs, l.file, err)
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
		_ = c.Close() // no message was exchanged
		return nil, err
	}
	_ = c.SetReadDeadline(time.Now().Add(l.greetWithin)) // for the first offer; on failure, Next fails, too
	return &Waiter{lock: l, owner: c}, nil
}

// News is a message from the owner to a waiter.
type News struct {
	Kind Kind
	Text json.RawMessage
}

// Kind is the kind of a message from the owner.
type Kind int

// The owner sends two kinds of messages.
const (
	Offer Kind = iota // the information that this process needs to replace the owner
	State             // the owner's state, sent with the connection; call Accept or Close next
)

// Next waits for the owner's next message. If the owner refuses to pass its connection to this process, the error is
// ErrRefused. If the owner does not send its first message in time, the error is ErrHangs. Any other error means that
// the owner has exited or that the context is done. After such an error, call Join again.
func (w *Waiter) Next(ctx context.Context) (News, error) {
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = w.owner.SetReadDeadline(time.Unix(1, 0)) // on failure, the owner has already exited
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
		return News{}, fmt.Errorf("the message has %d descriptors, not 2", len(w.given))
	}
	return News{State, received.State}, nil
}

// Accept makes this process the owner, and returns the connection. If Accept returns both an error and a connection,
// this process has the connection, but no other process can wait for the connection.
func (w *Waiter) Accept() (*Owner, *net.UnixConn, error) {
	if _, err := w.owner.Write([]byte{1}); err != nil {
		return nil, nil, fmt.Errorf("the previous process kept the connection, or exited: %w", err)
	}
	connection := w.given[0]
	locked := w.given[1]
	if err := unix.Flock(int(locked.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil { // the lock was released
		return nil, nil, fmt.Errorf("another process holds the lock: %w", err)
	}
	w.given = nil
	socket, err := SocketOf(connection)
	if err != nil {
		_ = locked.Close() // this process is not the owner
		return nil, nil, err
	}
	owner, err := w.becomeOwner(locked)
	return owner, socket, err
}

// Close stops waiting. After Accept, Close also notifies the previous owner that the previous owner can exit.
func (w *Waiter) Close() {
	_ = w.owner.Close() // the owner notices the end of the connection
	for _, file := range w.given {
		_ = file.Close() // the owner has its own copies
	}
}
