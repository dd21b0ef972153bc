// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package storedspec

import (
	"context"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

const (
	// idleAfter is when a connection that nobody uses is closed. RDMA containers come in bursts, with hours in between.
	idleAfter = time.Minute
	// largestAnswer is what containerd's own client takes.
	largestAnswer = 16 << 20
)

// links keeps one connection to containerd as long as it works. A connection that failed is never mended but thrown away with its
// backoff and its reconnecting: nobody knocks at a containerd that is gone, and one that comes back is reached by the next call.
type links struct {
	address, root string // as Find takes them
	dial          func(ctx context.Context, socket string) (net.Conn, error)

	mu      sync.Mutex
	current *link
}

// link is one connection. It is closed when it has been retired and its last user has given it back, so that nobody's call
// ends because another's failed.
type link struct {
	*grpc.ClientConn
	users   int
	retired bool
}

// take gives the connection, a new one where there is none. It must be given back.
func (l *links) take() (*link, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current == nil {
		socket, err := Find(l.address, l.root)
		if err != nil {
			return nil, err
		}
		conn, err := l.newConn(socket)
		if err != nil {
			return nil, err
		}
		l.current = &link{ClientConn: conn}
	}
	l.current.users++
	return l.current, nil
}

// give gives a connection back, and says whether it failed.
func (l *links) give(used *link, failed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	used.users--
	if failed {
		l.retire(used)
	}
	used.closeIfDone()
}

func (l *links) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if unused := l.current; unused != nil {
		l.retire(unused)
		unused.closeIfDone()
	}
}

func (l *links) retire(used *link) {
	used.retired = true
	if l.current == used {
		l.current = nil
	}
}

// closeIfDone closes a connection in the background: where the other side is deaf, gRPC takes seconds to give up its goodbye.
func (l *link) closeIfDone() {
	if l.retired && l.users == 0 {
		go func() { _ = l.Close() }() // nothing is lost with it
	}
}

func dialUnix(ctx context.Context, socket string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "unix", socket)
}

// newConn prepares a connection; it is made by the first call.
func (l *links) newConn(socket string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///containerd",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return l.dial(ctx, socket)
		}),
		grpc.WithNoProxy(),
		grpc.WithTransportCredentials(insecure.NewCredentials()), // a unix socket
		grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(idleAfter),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(largestAnswer), grpc.MaxCallSendMsgSize(largestAnswer)),
	)
}
