// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	// connectionsMost bounds the memory that connections take: 20 KB each.
	connectionsMost = 64
	// connectionLeast is how long a connection lasts at least, so that whoever connects has the time to ask. Behind 1,500
	// others that connect again as soon as they are closed, it is accepted within 1500/64 of this.
	connectionLeast = 10 * time.Millisecond
)

// connections are those of an HTTP server that anybody can connect to. There is always room for one more, since another
// one is closed for it.
type connections struct {
	mu     sync.Mutex
	open   map[net.Conn]connection
	ending int // how many were closed that the server still works for
}

type connection struct {
	accepted time.Time
	active   bool      // the server answers a request; otherwise it waits for one
	since    time.Time // when active became what it is
}

// changed is the server's ConnState. The server accepts the next connection once the call for a new one has returned.
func (c *connections) changed(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, open := c.open[conn]
	switch {
	case state == http.StateNew:
		for len(c.open) == connectionsMost && !c.closeOne() {
			c.mu.Unlock()
			time.Sleep(connectionLeast / 10) // by then several are old enough, of which closeOne chooses
			c.mu.Lock()
		}
		c.open[conn] = connection{accepted: time.Now(), since: time.Now()}
	case state == http.StateClosed && open:
		delete(c.open, conn)
	case state == http.StateClosed:
		c.ending--
	case open:
		c.open[conn] = connection{now.accepted, state == http.StateActive, time.Now()}
	}
}

// closeOne closes the connection that has been without a request longest or, if all are active, the one that has been
// active longest. It reports false if all are too young, and if too many of those that it closed have not ended: a
// handler that hangs holds memory too.
func (c *connections) closeOne() bool {
	var longest net.Conn
	for conn, this := range c.open {
		if time.Since(this.accepted) < connectionLeast {
			continue
		}
		that := c.open[longest]
		if longest == nil || that.active && !this.active ||
			that.active == this.active && this.since.Before(that.since) {
			longest = conn
		}
	}
	if longest == nil || c.ending == connectionsMost {
		return false
	}
	delete(c.open, longest)
	c.ending++
	_ = longest.Close() // nobody waits for what is lost
	return true
}
