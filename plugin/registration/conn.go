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

// conn is the socket of a connection to the runtime. conn counts the messages in both directions. The counts show since
// when the runtime has been waiting for a response, and where reading can stop without losing data. The counts are
// necessary because ttrpc writes a response some time after the plugin returns the response, and does not report the
// time of the write.
type conn struct {
	*net.UnixConn
	closed chan struct{} // closed when either side has ended the connection
	ended  sync.Once     // ensures that closed is closed only once

	mu                sync.Mutex
	requests, answers messages
	since             time.Time     // when the runtime began to wait for a response; zero if the runtime is not waiting
	stopping          bool          // the reader stops at the end of the current message
	paused            bool          // the reader has stopped
	idle              chan struct{} // closed when the reader has stopped and every request has been answered
}

func newConn(socket *net.UnixConn) *conn {
	return &conn{UnixConn: socket, closed: make(chan struct{}), idle: make(chan struct{})}
}

// hasEnded records that the connection ended.
func (c *conn) hasEnded() { c.ended.Do(func() { close(c.closed) }) }

// Read reads from the connection. NRI's reader requests exactly the rest of a frame, so no data is read ahead.
func (c *conn) Read(b []byte) (int, error) {
	for {
		if c.pauseAtBoundary() {
			<-c.closed
			return 0, net.ErrClosed
		}
		n, err := c.UnixConn.Read(b)
		if n == 0 && errors.Is(err, os.ErrDeadlineExceeded) { // stop interrupted the read, possibly within a message
			_ = c.SetReadDeadline(time.Time{}) // on failure, the next Read fails, too
			continue
		}
		c.mu.Lock()
		c.requests.add(b[:n])
		c.update()
		c.mu.Unlock()
		if err != nil {
			c.hasEnded()
		}
		return n, err
	}
}

// pauseAtBoundary reports whether the reader has reached the end of a message and must stop.
func (c *conn) pauseAtBoundary() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paused = c.stopping && c.requests.atBoundary()
	c.update()
	return c.paused
}

// Write writes to the connection.
func (c *conn) Write(b []byte) (int, error) {
	n, err := c.UnixConn.Write(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answers.add(b[:n])
	c.update()
	return n, err
}

// Close closes this process's copy of the socket.
func (c *conn) Close() error {
	c.hasEnded()
	return c.UnixConn.Close()
}

// update updates since and idle after a transfer of bytes. The caller must hold mu.
func (c *conn) update() {
	if c.requests.complete > c.answers.complete {
		if c.since.IsZero() {
			c.since = time.Now()
		}
		return
	}
	c.since = time.Time{}
	if !c.paused || !c.answers.atBoundary() {
		return
	}
	select {
	case <-c.idle:
	default:
		close(c.idle)
	}
}

// waiting returns how long the runtime has been waiting for a response; 0 if the runtime is not waiting.
func (c *conn) waiting() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.since.IsZero() {
		return 0
	}
	return time.Since(c.since)
}

// stop permanently stops reading at the end of a message, and reports whether the plugin answered every received
// request in time. After stop has returned true, the unread data in the socket starts at the beginning of a message.
func (c *conn) stop(within time.Duration) bool {
	c.mu.Lock()
	c.stopping = true
	c.mu.Unlock()
	_ = c.SetReadDeadline(time.Unix(1, 0)) // interrupts the reader; fails only if the connection has ended
	select {
	case <-c.idle:
		return true
	case <-c.closed:
	case <-time.After(within):
	}
	return false
}

const (
	// readWithin is the time limit for the runtime to read responses from the socket.
	readWithin = 500 * time.Millisecond
	// handOn is the time that the runtime's ttrpc has to pass on a response after reading the response. ttrpc can lose a
	// response that arrives just before the connection ends.
	handOn = 50 * time.Millisecond
)

// awaitDelivery waits until the runtime has read every response, or until the time limit is exceeded.
func (c *conn) awaitDelivery() {
	socket, err := c.SyscallConn()
	if err != nil {
		return
	}
	unread := func() (bytes int) {
		_ = socket.Control(func(fd uintptr) { bytes, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }) // 0 if closed
		return bytes
	}
	deadline := time.Now().Add(readWithin)
	for unread() > 0 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(handOn)
}

// messages counts the messages of the plugin's service in one direction of a connection.
//
// NRI sends data in frames (containerd/nri, pkg/net/multiplex). A frame starts with the number of a logical connection
// and the length of the payload, 4 bytes each. The payloads of the plugin's logical connection form a stream of
// messages (containerd/ttrpc, channel.go). A message starts with a header of 10 bytes. The first 4 bytes of the header
// contain the length of the message's body.
type messages struct {
	complete       int
	frame, message section
}

// atBoundary reports whether all messages are complete.
func (m *messages) atBoundary() bool { return m.frame.atBoundary() && m.message.atBoundary() }

// add counts the messages that end within the given bytes.
func (m *messages) add(b []byte) {
	for len(b) > 0 {
		var body []byte
		body, b, _ = m.frame.consume(b, 8, 4)
		ours := binary.BigEndian.Uint32(m.frame.header[:]) == uint32(multiplex.PluginServiceConn)
		for ours && len(body) > 0 {
			var complete bool
			_, body, complete = m.message.consume(body, 10, 0)
			if complete {
				m.complete++
			}
		}
	}
}

// section contains a header, which can be incomplete, and the number of remaining bytes of the body.
type section struct {
	header    [10]byte
	passed    int
	remaining uint32
}

func (s *section) atBoundary() bool { return s.passed == 0 && s.remaining == 0 }

// consume consumes the section's bytes. The argument size is the size of the header, and the argument length is the
// offset of the body's length within the header. consume returns the bytes of the body, the bytes after the section,
// and whether the section is complete.
func (s *section) consume(b []byte, size, length int) (body, rest []byte, complete bool) {
	if s.remaining == 0 {
		n := copy(s.header[s.passed:size], b)
		b = b[n:]
		s.passed += n
		if s.passed < size {
			return nil, nil, false
		}
		s.passed = 0
		s.remaining = binary.BigEndian.Uint32(s.header[length:])
	}
	n := min(uint32(len(b)), s.remaining)
	s.remaining -= n
	return b[:n], b[n:], s.remaining == 0
}
