// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Owner is the owner's side of the handover: this process has the connection, and other processes can wait for the
// connection. An Owner is safe for concurrent use.
type Owner struct {
	lock
	locked   *os.File
	listener *net.UnixListener

	mu      sync.Mutex
	offer   json.RawMessage // nil before the first offer
	waiting []*waiting
	given   bool // another process has the lock
	closed  bool
}

// waiting is the owner's record of a waiter.
type waiting struct {
	*net.UnixConn
	accepted chan struct{} // closed when the waiter has taken the connection
	gone     chan struct{} // closed when the waiter has stopped sending
}

// becomeOwner makes the holder of the lock the owner. The new owner listens in place of the previous owner.
func (l lock) becomeOwner(locked *os.File) (*Owner, error) {
	fresh := fmt.Sprintf("%s.%d", l.socket, os.Getpid())
	_ = os.Remove(fresh) // left by an earlier process with the same PID
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: fresh, Net: "unix"})
	if err != nil {
		return nil, err
	}
	listener.SetUnlinkOnClose(false) // when the listener closes, the path belongs to the next owner
	// Package atomicfile is not needed, because a socket has no content, and does not survive a reboot.
	if err := errors.Join(os.Chmod(fresh, 0o600), os.Rename(fresh, l.socket)); err != nil {
		_ = listener.Close() // the listener cannot be used
		_ = os.Remove(fresh)
		return nil, err
	}
	o := &Owner{lock: l, locked: locked, listener: listener}
	go o.accept()
	return o, nil
}

func (o *Owner) accept() {
	for {
		c, err := o.listener.AcceptUnix()
		if err != nil {
			return
		}
		go o.welcome(c)
	}
}

// welcome accepts or refuses a waiter.
func (o *Owner) welcome(c *net.UnixConn) {
	_ = c.SetReadDeadline(time.Now().Add(o.greetWithin)) // on failure, the read fails, too
	hello, _, err := receive(c)
	_ = c.SetReadDeadline(time.Time{})
	if err == nil {
		err = trusted(c)
	}
	if err == nil && hello.Protocol != protocol {
		err = fmt.Errorf("the waiting process uses protocol %d, not %d", hello.Protocol, protocol)
	}
	if err != nil {
		_ = send(c, message{Refused: err.Error()}) // on failure, the waiter sees the end of the connection
		_ = c.Close()
		return
	}
	w := &waiting{UnixConn: c, accepted: make(chan struct{}), gone: make(chan struct{})}
	o.mu.Lock()
	o.waiting = append(o.waiting, w)
	if o.closed {
		_ = w.Close() // the waiter connected before the owner closed
	} else {
		o.sendOffer(w)
	}
	o.mu.Unlock()
	if n, _ := c.Read(make([]byte, 1)); n == 1 {
		close(w.accepted)
		_, _ = c.Read(make([]byte, 1)) // returns when either side closes the connection
	}
	close(w.gone)
	o.mu.Lock()
	o.waiting = slices.DeleteFunc(o.waiting, func(other *waiting) bool { return other == w })
	o.mu.Unlock()
}

// sendOffer sends the current offer to a waiter. The caller must hold the mutex.
func (o *Owner) sendOffer(w *waiting) {
	if o.offer != nil && send(w.UnixConn, message{Offer: o.offer}) != nil {
		_ = w.Close() // the waiter can reconnect
	}
}

// Offer sends the offer to all current waiters, and later to each new waiter. If the Owner is nil, Offer does nothing.
func (o *Owner) Offer(offer any) error {
	if o == nil {
		return nil
	}
	text, err := json.Marshal(offer)
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.offer = text
	for _, w := range o.waiting {
		o.sendOffer(w)
	}
	return nil
}

// Give passes the connection and the lock to a waiter, and returns when the waiter listens in place of this process. No
// process may be reading from the connection. The argument patience is the time limit for the waiter to take the
// connection. The time is limited because the runtime's next request waits during the handover. If Give returns an
// error, this process still has the connection and the lock.
func (o *Owner) Give(connection *net.UnixConn, state json.RawMessage, patience time.Duration) error {
	if o == nil {
		return errors.New("no other process can take over this process's connection")
	}
	o.mu.Lock()
	all := slices.Clone(o.waiting)
	o.mu.Unlock()
	err := errors.New("no process is waiting for the connection")
	for _, w := range all {
		if err = o.handTo(w, connection, state, patience); err == nil {
			break
		}
		_ = w.Close() // the waiter can reconnect
	}
	o.mu.Lock()
	o.given = err == nil
	o.mu.Unlock()
	return err
}

func (o *Owner) handTo(w *waiting, connection *net.UnixConn, state json.RawMessage, patience time.Duration) error {
	late := time.Now().Add(patience)
	if err := withDescriptor(connection, func(fd int) error {
		return sendWith(w.UnixConn, late, message{State: state}, fd, int(o.locked.Fd()))
	}); err != nil {
		return fmt.Errorf("the waiting process did not receive the state: %w", err)
	}
	err := errors.New("the waiting process exited before it took over the connection")
	select {
	case <-w.accepted:
	case <-w.gone:
	case <-time.After(time.Until(late)):
		err = fmt.Errorf("the waiting process did not take over the connection within %s", patience)
		_ = w.CloseRead() // the waiter can no longer take the connection, but might have just taken it
		<-w.gone
	}
	select {
	case <-w.accepted:
	default:
		return err
	}
	select {
	case <-w.gone:
	case <-time.After(patience):
	}
	return nil
}

// Close ends the ownership. The waiters notice the end of the ownership, and one waiter becomes the owner.
func (o *Owner) Close() {
	if o == nil {
		return
	}
	_ = o.listener.Close() // even on failure, no more waiters are accepted
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	if !o.given { // unlock explicitly, because a hung process might have a copy of the descriptor
		_ = unix.Flock(int(o.locked.Fd()), unix.LOCK_UN) // on failure, closing the descriptor releases the lock
	}
	_ = o.locked.Close()
	for _, w := range o.waiting {
		_ = w.Close() // the waiter notices the end of the connection
	}
}
