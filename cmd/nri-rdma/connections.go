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
	// connectionsMost is the maximum number of open connections. This maximum limits the memory for connections, which
	// need 20 KB each. If handlers hang, the server can also be handling the same number of closed connections.
	connectionsMost = 64
	// connectionLeast is the minimum time that a connection stays open, so that the client has time to send a request. If
	// 1,500 clients reconnect as soon as the server disconnects them, a new client waits 1500/64 times connectionLeast.
	connectionLeast = 10 * time.Millisecond
)

// connections is the listener of an HTTP server that anybody can connect to. To accept a new client at the limit, the
// listener closes an existing connection. Only one goroutine may call Accept.
type connections struct {
	net.Listener
	places chan struct{} // contains one value for each connection that the server handles, open or closed

	mu   sync.Mutex
	open []connection // in the order of acceptance
}

type connection struct {
	conn     net.Conn
	accepted time.Time
	active   bool      // true while the server handles a request; false while it waits for a request
	since    time.Time // time of the last change of active
}

// limitedServer is an HTTP server with a limited number of connections.
type limitedServer struct{ *http.Server }

// Serve calls http.Server's Serve with a listener that limits the number of connections.
func (s limitedServer) Serve(listener net.Listener) error {
	return s.Server.Serve(limitConnections(s.Server, listener))
}

// limitConnections returns a listener that limits the number of concurrent connections of a server.
func limitConnections(server *http.Server, listener net.Listener) *connections {
	c := &connections{Listener: listener, places: make(chan struct{}, 2*connectionsMost)}
	server.ConnState = c.changed
	return c
}

// Accept waits for a free place, and accepts a connection. If too many connections are open, Accept closes an existing
// connection.
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

// untilRoom returns the time until closeOne may close a connection. The time includes an extra tenth of
// connectionLeast, so that closeOne can choose between several connections that were accepted one after the other.
func (c *connections) untilRoom() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.open) < connectionsMost {
		return 0
	}
	return time.Until(c.open[0].accepted.Add(connectionLeast + connectionLeast/10))
}

// closeOne closes the connection that has waited longest for a request. If all connections are active, closeOne closes
// the connection that has been active longest. At least one connection must have been open for connectionLeast.
func (c *connections) closeOne() {
	longest := 0
	for n := range c.open {
		if time.Since(c.open[n].accepted) >= connectionLeast && c.open[n].before(c.open[longest]) {
			longest = n
		}
	}
	_ = c.open[longest].conn.Close() // the client loses only a response
	c.open = slices.Delete(c.open, longest, longest+1)
}

// before reports whether closeOne closes this connection before the other connection.
func (c connection) before(other connection) bool {
	if c.active != other.active {
		return !c.active
	}
	return c.since.Before(other.since)
}

// changed is the server's ConnState callback.
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
