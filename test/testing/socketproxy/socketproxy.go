// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package socketproxy has tests make a unix socket sick: slow, dumb, mad or gone, and well again.
package socketproxy

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// Mode is how a Proxy behaves.
type Mode int

// The modes of a Proxy.
const (
	Pass    Mode = iota // every byte goes through
	Slow                // answers are SlowBy late
	Silent              // connections are taken, and nothing is ever answered
	Garbage             // answers are bytes that mean nothing
	Refuse              // the socket exists, and no process listens
	Gone                // the socket is not there
)

// SlowBy is how late answers are in mode Slow.
const SlowBy = 3 * time.Second

// Proxy stands before a unix socket.
type Proxy struct {
	Socket string // in front

	behind   func() (net.Conn, error)
	ended    chan struct{}
	running  sync.WaitGroup
	mu       sync.Mutex
	mode     Mode
	silenced int               // how often
	listener *net.UnixListener // nil: it does not listen, or is in memory
	conns    map[net.Conn]bool
	accepted int
}

// New starts a proxy before a socket, with a socket in a directory of the test's. It ends with the test.
func New(t testing.TB, behind string) *Proxy {
	t.Helper()
	return At(t, filepath.Join(scratch.Dir(t), "front.sock"), behind)
}

// At starts a proxy with one socket in front of another. It begins with mode Pass, and ends with the test.
func At(t testing.TB, front, behind string) *Proxy {
	t.Helper()
	p := newProxy(t, func() (net.Conn, error) { return net.Dial("unix", behind) })
	p.Socket = front
	if err := p.listen(); err != nil {
		t.Fatal(err)
	}
	return p
}

// InMemory starts a proxy without a socket, which Dial connects to. Time need not be real for it (testing/synctest).
func InMemory(t testing.TB, behind func() (net.Conn, error)) *Proxy {
	t.Helper()
	return newProxy(t, behind)
}

func newProxy(t testing.TB, behind func() (net.Conn, error)) *Proxy {
	t.Helper()
	p := &Proxy{behind: behind, ended: make(chan struct{}), conns: map[net.Conn]bool{}}
	t.Cleanup(func() {
		close(p.ended)
		p.silence(Gone)
		p.running.Wait()
	})
	return p
}

// Dial connects to the proxy without its socket.
func (p *Proxy) Dial(context.Context, string) (net.Conn, error) {
	p.mu.Lock()
	mode := p.mode
	silenced := p.silenced
	p.mu.Unlock()
	switch mode {
	case Refuse:
		return nil, syscall.ECONNREFUSED
	case Gone:
		return nil, syscall.ENOENT
	}
	near, far := net.Pipe()
	p.connect(silenced, far)
	return near, nil
}

// Close is mode Gone for ever.
func (p *Proxy) Close() { p.silence(Gone) }

// Set changes the mode, for connections that exist as well. Where the mode does not listen, they are cut.
func (p *Proxy) Set(t testing.TB, mode Mode) {
	t.Helper()
	if mode == Refuse || mode == Gone {
		p.silence(mode)
		return
	}
	p.mu.Lock()
	p.mode = mode
	listening := p.listener != nil || p.Socket == ""
	p.mu.Unlock()
	if listening {
		return
	}
	if err := p.listen(); err != nil {
		t.Fatal(err)
	}
}

// Accepted counts the connections that were made so far.
func (p *Proxy) Accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// Open counts the connections that are open.
func (p *Proxy) Open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns) / 2
}

func (p *Proxy) listen() error {
	if err := os.Remove(p.Socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: p.Socket, Net: "unix"})
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.listener = listener
	silenced := p.silenced
	p.mu.Unlock()
	p.running.Go(func() {
		for {
			front, err := listener.Accept()
			if err != nil {
				return // closed by silence
			}
			p.connect(silenced, front)
		}
	})
	return nil
}

func (p *Proxy) silence(mode Mode) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mode = mode
	p.silenced++
	if p.listener != nil {
		p.listener.SetUnlinkOnClose(mode == Gone)
		_ = p.listener.Close() // nothing is lost with it
		p.listener = nil
	}
	for c := range p.conns {
		_ = c.Close() // nothing is lost with it
	}
}

// connect carries the bytes of one connection both ways until either side ends it. It is cut if the proxy was silenced
// since it was made.
func (p *Proxy) connect(silenced int, front net.Conn) {
	back, err := p.behind()
	if err != nil {
		_ = front.Close() // the caller sees that the daemon is gone
		return
	}
	p.mu.Lock()
	p.accepted++
	p.conns[front] = true
	p.conns[back] = true
	if p.silenced != silenced {
		_ = front.Close()
		_ = back.Close()
	}
	p.mu.Unlock()
	var both sync.WaitGroup
	carry := func(to, from net.Conn, change func([]byte) []byte) {
		buffer := make([]byte, 64<<10)
		for {
			n, err := from.Read(buffer)
			if n > 0 {
				if _, err := to.Write(change(buffer[:n])); err != nil {
					break
				}
			}
			if err != nil {
				break
			}
		}
		_ = to.Close()
		_ = from.Close() // nothing is lost with them
	}
	both.Go(func() { carry(back, front, func(request []byte) []byte { return request }) })
	both.Go(func() { carry(front, back, p.answer) })
	p.running.Go(func() {
		both.Wait()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.conns, front)
		delete(p.conns, back)
	})
}

// answer returns what is answered in place of some bytes.
func (p *Proxy) answer(honest []byte) []byte {
	p.mu.Lock()
	mode := p.mode
	p.mu.Unlock()
	switch mode {
	case Slow:
		select {
		case <-time.After(SlowBy):
		case <-p.ended:
		}
	case Silent:
		return nil
	case Garbage:
		mad := make([]byte, len(honest))
		for i := range mad {
			mad[i] = byte(i*151 + 0xa5)
		}
		return mad
	}
	return honest
}
