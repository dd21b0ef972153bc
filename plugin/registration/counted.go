// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"encoding/binary"
	"net"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/net/multiplex"
)

// countedConn counts the requests and the answers that pass over a connection. ttrpc writes an answer some time after the plugin has
// returned it, and does not report when.
type countedConn struct {
	net.Conn
	closed   chan struct{} // closed when the connection has ended, from either side
	answered chan struct{} // receives when every request has its answer
	once     sync.Once

	mu                sync.Mutex
	requests, answers messages
	since             time.Time // when the runtime began to wait; zero while it does not
	finished          bool      // later requests get no answer
}

func count(conn net.Conn) *countedConn {
	return &countedConn{Conn: conn, closed: make(chan struct{}), answered: make(chan struct{}, 1)}
}

// Read reads from the connection.
func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	c.requests.pass(b[:n])
	c.note()
	c.mu.Unlock()
	if err != nil {
		c.end()
	}
	return n, err
}

// Write writes to the connection.
func (c *countedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answers.pass(b[:n])
	c.note()
	return n, err
}

// Close closes the connection.
func (c *countedConn) Close() error {
	c.end()
	return c.Conn.Close()
}

func (c *countedConn) end() { c.once.Do(func() { close(c.closed) }) }

// note records since when the runtime waits, after bytes were read or written. The lock must be held.
func (c *countedConn) note() {
	switch waits := c.requests.complete > c.answers.complete; {
	case waits && c.since.IsZero():
		c.since = time.Now()
	case !waits && !c.since.IsZero():
		c.since = time.Time{}
		select {
		case c.answered <- struct{}{}:
		default: // the last one was not received yet
		}
	}
}

// waiting returns how long the runtime has been waiting for an answer; 0 if it waits for none.
func (c *countedConn) waiting() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.since.IsZero() {
		return 0
	}
	return time.Since(c.since)
}

// settle waits until every request has its answer, and returns how many requests there were; -1 if the connection or the patience ends.
func (c *countedConn) settle(enough <-chan time.Time) int {
	for {
		c.mu.Lock()
		requests, waits := c.requests.complete, !c.since.IsZero()
		c.mu.Unlock()
		if !waits {
			return requests
		}
		select {
		case <-c.answered:
		case <-c.closed:
			return -1
		case <-enough:
			return -1
		}
	}
}

// finish ends the answers if no more than a number of requests were read, and reports whether it did.
func (c *countedConn) finish(requests int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.finished = c.requests.complete == requests
	return c.finished
}

func (c *countedConn) isFinished() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.finished
}

// messages counts the messages of the plugin's service in one direction of a connection.
//
// NRI sends frames (containerd/nri, pkg/net/multiplex): the number of a logical connection and the length of what follows, 4 bytes
// each. On the plugin's logical connection that is a stream of messages (containerd/ttrpc, channel.go): 10 bytes, of which the first 4
// are the length of what follows them.
type messages struct {
	complete       int
	frame, message piece
	plugins        bool // the frame is of the plugin's logical connection
}

// piece is a header of which some bytes have passed, and the number of bytes that are left of what follows it.
type piece struct {
	header [10]byte
	passed int
	left   uint32
}

// take passes bytes of a header of a size, and reports whether that is complete.
func (p *piece) take(b *[]byte, size int) bool {
	n := copy(p.header[p.passed:size], *b)
	*b, p.passed = (*b)[n:], p.passed+n
	if p.passed < size {
		return false
	}
	p.passed = 0
	return true
}

func (m *messages) pass(b []byte) {
	for len(b) > 0 {
		if m.frame.left == 0 {
			if m.frame.take(&b, 8) {
				m.plugins = binary.BigEndian.Uint32(m.frame.header[:4]) == uint32(multiplex.PluginServiceConn)
				m.frame.left = binary.BigEndian.Uint32(m.frame.header[4:8])
			}
			continue
		}
		n := min(uint32(len(b)), m.frame.left)
		if m.plugins {
			m.passMessages(b[:n])
		}
		b, m.frame.left = b[n:], m.frame.left-n
	}
}

func (m *messages) passMessages(b []byte) {
	for len(b) > 0 {
		if m.message.left == 0 {
			if m.message.take(&b, 10) {
				if m.message.left = binary.BigEndian.Uint32(m.message.header[:4]); m.message.left == 0 {
					m.complete++
				}
			}
			continue
		}
		n := min(uint32(len(b)), m.message.left)
		if b, m.message.left = b[n:], m.message.left-n; m.message.left == 0 {
			m.complete++
		}
	}
}
