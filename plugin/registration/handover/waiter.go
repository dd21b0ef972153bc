// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
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
	for enough := time.Now().Add(greetWithin); ; {
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
		if time.Now().After(enough) {
			return nil, nil, fmt.Errorf("another process holds %s and does not answer: %w", p.lock, err)
		}
		select { // the owner does not listen yet, or has just ended
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

// Next waits for the owner's next word: an offer, or the state that comes with the connection. Then Take must follow,
// or Close. The error is ErrRefused where the owner gives it to other processes alone; any other one means that the
// owner or the context is gone: Join again.
func (w *Waiter) Next(ctx context.Context) (offer, state json.RawMessage, err error) {
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
		return nil, nil, ctx.Err()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, nil, fmt.Errorf("%w: it does not answer", ErrRefused)
	case err != nil:
		return nil, nil, err
	case said.Refused != "":
		return nil, nil, fmt.Errorf("%w: %s", ErrRefused, said.Refused)
	case said.State != nil && len(w.given) != 2:
		return nil, nil, fmt.Errorf("%d descriptors instead of 2", len(w.given))
	}
	return said.Offer, said.State, nil
}

// Take makes this process the owner, with the connection. Where an error comes with a connection, this process has it,
// but later ones cannot wait for it.
func (w *Waiter) Take() (*Owner, *net.UnixConn, error) {
	if _, err := w.owner.Write([]byte{1}); err != nil {
		// The owner has taken it back and says so, or has died with it given away.
		for {
			said, _, err := hear(w.owner)
			if err != nil {
				break
			}
			if said.Refused != "" {
				return nil, nil, fmt.Errorf("%w: %s", ErrRefused, said.Refused)
			}
		}
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

// Close ends the waiting. After Take it tells the process that had the connection that it may end.
func (w *Waiter) Close() {
	_ = w.owner.Close() // it sees that
	for _, file := range w.given {
		_ = file.Close() // they are the owner's
	}
}
