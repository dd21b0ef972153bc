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

// Owner is the process that has the connection, for those that wait behind it. It is safe for concurrent use.
type Owner struct {
	lock
	locked   *os.File
	listener *net.UnixListener

	mu      sync.Mutex
	offer   json.RawMessage // nil before the first one
	waiting []*waiting
	given   bool // the lock is another process's
	closed  bool
}

// waiting is a process that waits.
type waiting struct {
	*net.UnixConn
	accepted chan struct{} // closed when it has taken the connection
	gone     chan struct{} // closed when it says nothing more
}

// own makes the holder of the lock the owner: it listens instead of the owner before it.
func (l lock) own(locked *os.File) (*Owner, error) {
	fresh := fmt.Sprintf("%s.%d", l.socket, os.Getpid())
	_ = os.Remove(fresh) // of a process that had the same number
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: fresh, Net: "unix"})
	if err != nil {
		return nil, err
	}
	listener.SetUnlinkOnClose(false) // by then it is the next owner's
	// A socket has no content, and does not outlast a boot: atomicfile is for files.
	if err := errors.Join(os.Chmod(fresh, 0o600), os.Rename(fresh, l.socket)); err != nil {
		_ = listener.Close() // it is of no use
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

// welcome lets a process wait.
func (o *Owner) welcome(c *net.UnixConn) {
	_ = c.SetReadDeadline(time.Now().Add(o.greetWithin)) // if it fails, so does the read
	hello, _, err := receive(c)
	_ = c.SetReadDeadline(time.Time{})
	if err == nil {
		err = trusted(c)
	}
	if err == nil && hello.Protocol != protocol {
		err = fmt.Errorf("it speaks protocol %d, not %d", hello.Protocol, protocol)
	}
	if err != nil {
		_ = send(c, message{Refused: err.Error()}) // else it sees the end
		_ = c.Close()
		return
	}
	w := &waiting{UnixConn: c, accepted: make(chan struct{}), gone: make(chan struct{})}
	o.mu.Lock()
	o.waiting = append(o.waiting, w)
	if o.closed {
		_ = w.Close() // it had come before the end
	} else {
		o.tell(w)
	}
	o.mu.Unlock()
	if n, _ := c.Read(make([]byte, 1)); n == 1 {
		close(w.accepted)
		_, _ = c.Read(make([]byte, 1)) // its end, or ours
	}
	close(w.gone)
	o.mu.Lock()
	o.waiting = slices.DeleteFunc(o.waiting, func(other *waiting) bool { return other == w })
	o.mu.Unlock()
}

// tell tells a process that waits the offer. The lock must be held.
func (o *Owner) tell(w *waiting) {
	if o.offer != nil && send(w.UnixConn, message{Offer: o.offer}) != nil {
		_ = w.Close() // it can come back
	}
}

// Offer tells those that wait what they have to know, now and when they come. A nil Owner tells nobody.
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
		o.tell(w)
	}
	return nil
}

// Give gives the connection and the lock to a process that waits, and returns when that listens instead of this one.
// No process may be reading from the connection. The other process has to take it within the patience: the runtime's
// next request waits meanwhile. With an error, both are still this process's.
func (o *Owner) Give(connection *net.UnixConn, state json.RawMessage, patience time.Duration) error {
	if o == nil {
		return errors.New("this process cannot accept waiting processes")
	}
	o.mu.Lock()
	all := slices.Clone(o.waiting)
	o.mu.Unlock()
	err := errors.New("no process is waiting")
	for _, w := range all {
		if err = o.handTo(w, connection, state, patience); err == nil {
			break
		}
		_ = w.Close() // it can come back
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
		return fmt.Errorf("the waiting process does not listen: %w", err)
	}
	err := errors.New("the waiting process ended before it took the connection")
	select {
	case <-w.accepted:
	case <-w.gone:
	case <-time.After(time.Until(late)):
		err = fmt.Errorf("the waiting process did not take the connection within %s", patience)
		_ = w.CloseRead() // from here on it cannot take it any more, but it may have just before
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

// Close ends the ownership: those that wait see that, and one of them becomes the owner.
func (o *Owner) Close() {
	if o == nil {
		return
	}
	_ = o.listener.Close() // whatever it says, nobody is accepted any more
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	if !o.given { // also where a process that hangs has a copy of the lock
		_ = unix.Flock(int(o.locked.Fd()), unix.LOCK_UN) // if it fails, closing the lock does it
	}
	_ = o.locked.Close()
	for _, w := range o.waiting {
		_ = w.Close() // it sees the end
	}
}
