// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	// connectionsMost limits the memory that open connections need: 20 KB each. While their handlers hang, the server may
	// work for as many closed connections.
	connectionsMost = 64
	// connectionLeast is how long each connection stays open at least, so that its client has time to send a request. If
	// 1,500 clients connect again as soon as they are disconnected, a new client waits for 1500/64 of this.
	connectionLeast = 10 * time.Millisecond
)

// connections is the listener of an HTTP server that anybody can connect to. It always has room for another client,
// because it closes the connection of another one. Only one goroutine may call Accept.
type connections struct {
	net.Listener
	places chan struct{} // contains one value for each connection that the server works for, open or closed

	mu   sync.Mutex
	open []connection // in the order in which they were accepted
}

type connection struct {
	conn     net.Conn
	accepted time.Time
	active   bool      // the server handles a request; otherwise it waits for one
	since    time.Time // when active changed
}

// limitedServer is an HTTP server whose number of connections is limited.
type limitedServer struct{ *http.Server }

// Serve is http.Server's Serve, with a limit on the listener's connections.
func (s limitedServer) Serve(listener net.Listener) error {
	return s.Server.Serve(limitConnections(s.Server, listener))
}

// limitConnections returns the listener for a server that limits how many connections the server has at once.
func limitConnections(server *http.Server, listener net.Listener) *connections {
	c := &connections{Listener: listener, places: make(chan struct{}, 2*connectionsMost)}
	server.ConnState = c.changed
	return c
}

// Accept waits until the server has a place, and accepts a connection. If too many are open, it then closes one.
func (c *connections) Accept() (net.Conn, error) {
	c.places <- struct{}{}
	conn, err := c.Listener.Accept()
	if err != nil {
		<-c.places
		return nil, err
	}
	time.Sleep(c.untilRoom())
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.open) == connectionsMost {
		c.closeOne()
	}
	now := time.Now()
	c.open = append(c.open, connection{conn: conn, accepted: now, since: now})
	return conn, nil
}

// untilRoom returns how long it takes until there are connections that closeOne may close. It adds a tenth, so that
// closeOne can choose between several connections that were accepted one after the other.
func (c *connections) untilRoom() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.open) < connectionsMost {
		return 0
	}
	return time.Until(c.open[0].accepted.Add(connectionLeast + connectionLeast/10))
}

// closeOne closes the connection that has waited longest for a request. If all are active, it closes the one that has
// been active longest. One of the open connections must have lasted for connectionLeast.
func (c *connections) closeOne() {
	longest := 0
	for n := range c.open {
		if time.Since(c.open[n].accepted) >= connectionLeast && c.open[n].before(c.open[longest]) {
			longest = n
		}
	}
	_ = c.open[longest].conn.Close() // the client loses only an answer
	c.open = slices.Delete(c.open, longest, longest+1)
}

// before reports whether a connection is closed before another one.
func (c connection) before(other connection) bool {
	if c.active != other.active {
		return !c.active
	}
	return c.since.Before(other.since)
}

// changed is the ConnState of the server.
func (c *connections) changed(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := slices.IndexFunc(c.open, func(open connection) bool { return open.conn == conn })
	switch {
	case state == http.StateClosed:
		if n >= 0 {
			c.open = slices.Delete(c.open, n, n+1)
		}
		<-c.places
	case n >= 0 && state != http.StateNew:
		c.open[n].active = state == http.StateActive
		c.open[n].since = time.Now()
	}
}
