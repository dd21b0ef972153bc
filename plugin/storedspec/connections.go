// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package storedspec

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/rdma-spec/rdma-spec/plugin/localrpc"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec/places"
)

// idleAfter is the time after which an unused connection is closed. RDMA containers are created in bursts that are
// hours apart.
const idleAfter = time.Minute

// connections keeps a connection to each socket as long as the connection works. A failed connection is replaced
// instead of reused, because gRPC would keep trying to reach a containerd that has exited. gRPC's backoff would also
// delay calls after containerd has restarted.
type connections struct {
	dial func(ctx context.Context, socket string) (net.Conn, error)

	mu       sync.Mutex
	bySocket map[string]*grpc.ClientConn
}

// get returns the connection to a socket. A new connection is established at its first call.
func (c *connections) get(socket string) (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if conn := c.bySocket[socket]; conn != nil {
		return conn, nil
	}
	conn, err := localrpc.NewClient(func(ctx context.Context) (net.Conn, error) { return c.dial(ctx, socket) },
		grpc.WithIdleTimeout(idleAfter))
	if err == nil {
		c.bySocket[socket] = conn
	}
	return conn, err
}

// replace makes later calls use a new connection to a socket. The failed connection stays open until its calls have
// ended, so that the failure of one call does not end the other calls.
func (c *connections) replace(socket string, failed *grpc.ClientConn, longestCall time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bySocket[socket] == failed {
		delete(c.bySocket, socket)
		time.AfterFunc(longestCall, func() { _ = failed.Close() }) // no data is lost
	}
}

// close closes all connections in the background, because gRPC takes seconds to close a connection if the other side
// does not read.
func (c *connections) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.bySocket {
		go func() { _ = conn.Close() }() // no data is lost
	}
	clear(c.bySocket)
}

// findSockets returns the paths of containerd's sockets that exist. If an address (/path or unix:///path) is set,
// findSockets checks only the address. If no address is set, findSockets checks all usual places below a root
// directory, which is "/" on a live node. If no socket exists, the error is ErrNoSocket and lists the places.
func findSockets(address, root string) (sockets []string, err error) {
	candidates := places.Sockets(root, places.Containerds...)
	if address != "" {
		candidates = []string{strings.TrimPrefix(address, "unix://")}
	}
	sockets = places.Present(candidates)
	if sockets == nil {
		return nil, fmt.Errorf("%w at %s: set --containerd-address, or, if this program runs in a container, mount "+
			"the socket's directory", ErrNoSocket, strings.Join(candidates, ", "))
	}
	return sockets, nil
}
