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

// Waiter is a process that waits behind the owner of a place. It is for one goroutine.
type Waiter struct {
	place
	owner *net.UnixConn
	given []*os.File // what came with the state: the connection and the lock
}

// Join makes this process the owner of a place, or lets it wait behind the one that is: one of both results is not nil.
// The folder is made where there is none, and must be closed to everybody else.
func Join(ctx context.Context, folder, name string) (*Owner, *Waiter, error) {
	p, err := at(folder, name)
	if err != nil {
		return nil, nil, err
	}
	for began := time.Now(); ; {
		lock, err := p.tryLock()
		if err != nil {
			return nil, nil, err
		}
		if lock != nil {
			owner, err := p.own(lock)
			if err != nil {
				_ = lock.Close() // it is not used
			}
			return owner, nil, err
		}
		waiter, err := p.wait()
		if err == nil {
			return nil, waiter, nil
		}
		within := greetWithin
		if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) {
			within = listenWithin // it does not listen yet, or has just ended
		}
		if time.Since(began) > within {
			return nil, nil, fmt.Errorf("%w, which holds %s: %w", ErrHangs, p.lock, err)
		}
		select {
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-time.After(joinAgain):
		}
	}
}

func (p place) wait() (*Waiter, error) {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: p.socket, Net: "unix"})
	if err != nil {
		return nil, err
	}
	if err := errors.Join(trusted(c), say(c, word{Protocol: protocol})); err != nil {
		_ = c.Close() // nothing was agreed on
		return nil, err
	}
	_ = c.SetReadDeadline(time.Now().Add(greetWithin)) // of the first offer; if it fails, so does Next
	return &Waiter{place: p, owner: c}, nil
}

// News is what the owner says to a process that waits.
type News struct {
	Kind Kind
	Text json.RawMessage
}

// Kind is the kind of News.
type Kind int

const (
	Offer Kind = iota // what this process has to know to go on in the owner's place
	State             // the connection comes with it: Accept must follow, or Close
)

// Next waits for the owner's next word. The error is ErrRefused where the owner gives the connection to other processes
// alone, and ErrHangs where it does not greet this one; any other one means that the owner or the context is gone: Join
// again.
func (w *Waiter) Next(ctx context.Context) (News, error) {
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = w.owner.SetReadDeadline(time.Unix(1, 0)) // if it fails, the owner is gone
		close(interrupted)
	})
	said, files, err := hear(w.owner)
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
	case said.Refused != "":
		return News{}, fmt.Errorf("%w: %s", ErrRefused, said.Refused)
	case said.State == nil:
		return News{Offer, said.Offer}, nil
	case len(w.given) != 2:
		return News{}, fmt.Errorf("%d descriptors instead of 2", len(w.given))
	}
	return News{State, said.State}, nil
}

// Accept makes this process the owner, with the connection. Where an error comes with a connection, this process has
// it, but later ones cannot wait for it.
func (w *Waiter) Accept() (*Owner, *net.UnixConn, error) {
	if _, err := w.owner.Write([]byte{1}); err != nil {
		return nil, nil, fmt.Errorf("the process before has taken it back, or has ended: %w", err)
	}
	connection, lock := w.given[0], w.given[1]
	w.given = nil
	socket, err := SocketOf(connection)
	if err != nil {
		_ = lock.Close() // there is nothing to own
		return nil, nil, err
	}
	owner, err := w.own(lock)
	return owner, socket, err
}

// Close ends the waiting. After Accept it tells the process that had the connection that it may end.
func (w *Waiter) Close() {
	_ = w.owner.Close() // it sees that
	for _, file := range w.given {
		_ = file.Close() // they are the owner's
	}
}
