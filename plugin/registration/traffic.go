// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/net/multiplex"
	"golang.org/x/sys/unix"
)

// trunk is the connection to the runtime. It follows what passes: since when the runtime waits for an answer, and where
// it can stop so that nothing is lost. ttrpc writes an answer some time after the plugin has returned it, and does not
// report when.
type trunk struct {
	*net.UnixConn
	closed chan struct{} // when the connection has ended, from either side
	ended  sync.Once     // of closed

	mu                sync.Mutex
	requests, answers traffic
	since             time.Time     // when the runtime began to wait; zero while it does not
	stopping          bool          // nothing is read beyond the end of a message
	rests             bool          // the reader has stopped there
	idle              chan struct{} // closed when it rests, and every request has its answer
}

func newTrunk(socket *net.UnixConn) *trunk {
	return &trunk{UnixConn: socket, closed: make(chan struct{}), idle: make(chan struct{})}
}

// hasEnded records that the connection has ended.
func (t *trunk) hasEnded() { t.ended.Do(func() { close(t.closed) }) }

// Read reads from the connection. NRI's reader asks for exactly what a frame still has, so nothing is read ahead.
func (t *trunk) Read(b []byte) (int, error) {
	for {
		if t.rest() {
			<-t.closed
			return 0, net.ErrClosed
		}
		n, err := t.UnixConn.Read(b)
		if n == 0 && errors.Is(err, os.ErrDeadlineExceeded) { // stop has woken it, perhaps within a message
			_ = t.SetReadDeadline(time.Time{}) // if it fails, so does the next Read
			continue
		}
		t.mu.Lock()
		t.requests.pass(b[:n])
		t.note()
		t.mu.Unlock()
		if err != nil {
			t.hasEnded()
		}
		return n, err
	}
}

// rest reports whether the reader has to stop here.
func (t *trunk) rest() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rests = t.stopping && t.requests.between()
	t.note()
	return t.rests
}

// Write writes to the connection.
func (t *trunk) Write(b []byte) (int, error) {
	n, err := t.UnixConn.Write(b)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.answers.pass(b[:n])
	t.note()
	return n, err
}

// Close closes this process's copy of the socket.
func (t *trunk) Close() error {
	t.hasEnded()
	return t.UnixConn.Close()
}

// note draws the consequences of bytes that have passed. The lock must be held.
func (t *trunk) note() {
	switch waits := t.requests.complete > t.answers.complete; {
	case waits && t.since.IsZero():
		t.since = time.Now()
	case !waits:
		t.since = time.Time{}
		if t.rests && t.answers.between() {
			select {
			case <-t.idle:
			default:
				close(t.idle)
			}
		}
	}
}

// waiting returns how long the runtime has been waiting for an answer; 0 if it waits for none.
func (t *trunk) waiting() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.since.IsZero() {
		return 0
	}
	return time.Since(t.since)
}

// stop ends the reading for good, between two messages, and reports whether every request that was read got its answer
// in time. What the socket holds then begins with a message.
func (t *trunk) stop(within time.Duration) bool {
	t.mu.Lock()
	t.stopping = true
	t.mu.Unlock()
	_ = t.SetReadDeadline(time.Unix(1, 0)) // wakes the reader; if it fails, the connection has ended
	select {
	case <-t.idle:
		return true
	case <-t.closed:
	case <-time.After(within):
	}
	return false
}

const (
	// readWithin is how long the runtime may take to read answers that wait in the socket.
	readWithin = 500 * time.Millisecond
	// handOn is how long ttrpc may take to hand on an answer that it has read: one that arrives just before the end of the
	// connection can be lost to it.
	handOn = 50 * time.Millisecond
)

// delivered returns when the runtime has every answer, or does not read them.
func (t *trunk) delivered() {
	socket, err := t.SyscallConn()
	if err != nil {
		return
	}
	unread := func() (bytes int) {
		_ = socket.Control(func(fd uintptr) { bytes, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }) // 0 where it has ended
		return bytes
	}
	for enough := time.Now().Add(readWithin); unread() > 0 && time.Now().Before(enough); {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(handOn)
}

// traffic follows one direction of a connection, and counts the messages of the plugin's service.
//
// NRI sends frames (containerd/nri, pkg/net/multiplex): the number of a logical connection and the length of what
// follows, 4 bytes each. On the plugin's logical connection that is a stream of messages (containerd/ttrpc,
// channel.go): 10 bytes, of which the first 4 are the length of what follows them.
type traffic struct {
	complete       int
	frame, message piece
}

// between reports whether no message has begun that is not complete.
func (t *traffic) between() bool { return t.frame.between() && t.message.between() }

func (t *traffic) pass(b []byte) {
	for len(b) > 0 {
		var body []byte
		body, b, _ = t.frame.pass(b, 8, 4)
		ours := binary.BigEndian.Uint32(t.frame.header[:]) == uint32(multiplex.PluginServiceConn)
		for ours && len(body) > 0 {
			var complete bool
			if _, body, complete = t.message.pass(body, 10, 0); complete {
				t.complete++
			}
		}
	}
}

// piece is a header of which some bytes have passed, and the number of bytes that what follows it still has.
type piece struct {
	header    [10]byte
	passed    int
	remaining uint32
}

func (p *piece) between() bool { return p.passed == 0 && p.remaining == 0 }

// pass passes bytes as far as the piece goes. Its header has a size, and has the length of the body at an offset. pass
// returns the bytes of the body and those after the piece, and reports whether the piece is complete.
func (p *piece) pass(b []byte, size, length int) (body, rest []byte, complete bool) {
	if p.remaining == 0 {
		n := copy(p.header[p.passed:size], b)
		if b, p.passed = b[n:], p.passed+n; p.passed < size {
			return nil, nil, false
		}
		p.passed, p.remaining = 0, binary.BigEndian.Uint32(p.header[length:])
	}
	n := min(uint32(len(b)), p.remaining)
	p.remaining -= n
	return b[:n], b[n:], p.remaining == 0
}
