// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package nritest

import (
	"io"
	"net"
	"sync"
)

// proxy hands connections from one socket on to another, and ends them all at once when it is closed.
type proxy struct {
	listener net.Listener
	mu       sync.Mutex
	conns    []net.Conn
	closed   bool
}

func listen(socket, to string) (*proxy, error) {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	p := &proxy{listener: listener}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			onward, err := net.Dial("unix", to)
			if err != nil || !p.keep(conn, onward) {
				_ = conn.Close() // nothing is lost with it
				continue
			}
			go pipe(conn, onward)
			go pipe(onward, conn)
		}
	}()
	return p, nil
}

// keep remembers connections; false says that the proxy is closed already.
func (p *proxy) keep(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns = append(p.conns, conns...)
	return !p.closed
}

func pipe(to, from net.Conn) {
	_, _ = io.Copy(to, from) // ends when either side does
	_ = to.Close()
	_ = from.Close()
}

func (p *proxy) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, c := range p.conns {
		_ = c.Close() // it may have ended already
	}
}
