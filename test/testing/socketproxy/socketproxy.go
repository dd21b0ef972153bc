// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package socketproxy provides a proxy for a Unix socket, with which a test can delay, garble, or drop a daemon's
// answers, and restore them later.
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
	Pass    Mode = iota // passes on all bytes
	Slow                // delays answers by SlowBy
	Silent              // accepts connections, but never answers
	Garbage             // answers with meaningless bytes
	Refuse              // the socket exists, but no process listens at it
	Gone                // the socket does not exist
)

// SlowBy is the delay of answers in mode Slow.
const SlowBy = 3 * time.Second

// Proxy is a proxy in front of a daemon's Unix socket.
type Proxy struct {
	Socket string // the path at which the proxy listens

	behind   func() (net.Conn, error)
	ended    chan struct{}
	running  sync.WaitGroup
	mu       sync.Mutex
	mode     Mode
	silenced int               // how often the proxy was silenced
	listener *net.UnixListener // nil if the proxy does not listen, or has no socket
	conns    map[net.Conn]bool
	accepted int
}

// New starts a proxy in front of a socket. The proxy's own socket is in a temporary directory. The proxy ends with the
// test.
func New(t testing.TB, behind string) *Proxy {
	t.Helper()
	return At(t, filepath.Join(scratch.Dir(t), "front.sock"), behind)
}

// At starts a proxy that listens at the socket front and connects to the socket behind. It starts in mode Pass, and
// ends with the test.
func At(t testing.TB, front, behind string) *Proxy {
	t.Helper()
	p := newProxy(t, func() (net.Conn, error) { return net.Dial("unix", behind) })
	p.Socket = front
	if err := p.listen(); err != nil {
		t.Fatal(err)
	}
	return p
}

// InMemory starts a proxy without a socket, to which only Dial connects. It works in a bubble of testing/synctest.
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

// Dial connects to the proxy without using its socket.
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

// Close sets mode Gone for good.
func (p *Proxy) Close() { p.silence(Gone) }

// Set changes the mode, also for existing connections. In a mode in which the proxy does not listen, it closes them.
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

// Accepted returns how many connections were made so far.
func (p *Proxy) Accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// Open returns how many connections are open.
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
				return // silence closed the listener
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

// connect passes on the bytes of one connection in both directions until either side ends it. If the proxy was silenced
// after the connection was made, connect closes the connection.
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

// answer returns what the client gets instead of the daemon's bytes.
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
