// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdma-spec/rdma-spec/plugin"
	"github.com/rdma-spec/rdma-spec/plugin/inventory"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/race"
)

// crowd is how many others have a connection while the kubelet probes.
const crowd = 1500

const readyzHeader = "GET /readyz HTTP/1.1\r\nHost: node\r\n"

// Those of a crowd, each with a connection, until they are cut off.
var behaviours = map[string]func(conn net.Conn){
	"say nothing": listen,
	"never end their header": func(conn net.Conn) {
		for _, err := io.WriteString(conn, readyzHeader); err == nil; _, err = io.WriteString(conn, "X: x\r\n") {
			time.Sleep(100 * time.Millisecond)
		}
	},
	"ask once": func(conn net.Conn) {
		_, _ = io.WriteString(conn, readyzHeader+"\r\n") // who is cut off listens in vain
		listen(conn)
	},
	"ask again and again": func(conn net.Conn) {
		go askOn(conn)
		listen(conn)
	},
	"do not read": askOn,
	"read drop by drop": func(conn net.Conn) {
		go askOn(conn)
		for _, err := conn.Read(make([]byte, 1)); err == nil; _, err = conn.Read(make([]byte, 1)) {
			time.Sleep(100 * time.Millisecond)
		}
	},
}

func listen(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) } // until it is cut off

func askOn(conn net.Conn) {
	const request = readyzHeader + "\r\n"
	for _, err := io.WriteString(conn, request); err == nil; _, err = io.WriteString(conn, request) {
		time.Sleep(20 * time.Millisecond)
	}
}

// idlePlugin is one that no runtime has asked yet.
func idlePlugin() *plugin.Plugin {
	return plugin.New(plugin.Options{Name: "rdma", Index: "90", Inventory: inventory.New("/", silent()), Log: silent()})
}

// probe asks as a kubelet does: with a connection of its own, and waits so long for an answer.
func probe(dial func(ctx context.Context, network, address string) (net.Conn, error), address string,
	within time.Duration) error {
	client := http.Client{Timeout: within, Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
	answer, err := client.Get("http://" + address + "/healthz")
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		err = errors.New(answer.Status)
	}
	return errors.Join(err, answer.Body.Close())
}

// Whatever 1,500 others do, each again as soon as it is cut off, each probe is answered within a second.
func TestConnections_answersProbesInCrowd(t *testing.T) {
	for they, behave := range behaviours {
		t.Run(they, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server, listener := newServer(idlePlugin(), silent()), make(pipes)
				var all sync.WaitGroup
				all.Go(func() { _ = server.Serve(listener) }) // until it is closed
				ctx, cancel := context.WithCancel(t.Context())
				dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return listener.connect(ctx) }
				others := crowd
				if race.Detector {
					others /= 10 // it only slows them down
				}
				for range others {
					all.Go(func() {
						for conn, err := listener.connect(ctx); err == nil; conn, err = listener.connect(ctx) {
							behave(conn)
							_ = conn.Close() // it was cut off
						}
					})
				}
				time.Sleep(300 * time.Millisecond) // until each of them has had its turn
				for i := range 3 {
					if err := probe(dial, "node", time.Second); err != nil {
						t.Errorf("probe %d: %v", i+1, err)
					}
				}
				cancel()
				synctest.Wait()
				_ = server.Close() // of a listener that does not fail
				all.Wait()
				time.Sleep(time.Second) // what others began ends as well
			})
		})
	}
}

// The one that waits longest for a request is closed, one with a request only where all have one, a young one never.
func TestConnections_closeOne(t *testing.T) {
	const idle, active = http.StateIdle, http.StateActive
	all := func(state http.ConnState) (states []http.ConnState) {
		return slices.Repeat([]http.ConnState{state}, connectionsMost)
	}
	for name, test := range map[string]struct {
		states []http.ConnState // of the connections, which change one after another
		again  []int            // become active and idle once more
		young  int              // are accepted much later than the others
		want   int
	}{
		"all are new":           {nil, nil, 0, 0},
		"all are idle":          {all(idle), nil, 0, 0},
		"all are active":        {all(active), nil, 0, 0},
		"some were used since":  {all(idle), []int{0, 1, 2}, 0, 3},
		"the oldest are active": {append([]http.ConnState{active, active}, all(idle)[2:]...), nil, 0, 2},
		"the newest is idle":    {append(all(active)[1:], idle), nil, 0, connectionsMost - 1},
		"idle ones are young":   {append([]http.ConnState{active, active}, all(idle)[2:]...), nil, connectionsMost - 2, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				listener := make(pipes, 1)
				c := limitConnections(&http.Server{}, listener)
				accept := func() (client, conn net.Conn) {
					client, err := listener.connect(t.Context())
					must.Succeed(t, err)
					conn, err = c.Accept()
					must.Succeed(t, err)
					c.changed(conn, http.StateNew)
					return client, conn
				}
				var conns, clients []net.Conn
				var accepted []time.Time
				for i := range connectionsMost {
					if i == connectionsMost-test.young {
						time.Sleep(2 * connectionLeast)
					}
					client, conn := accept()
					conns, clients, accepted = append(conns, conn), append(clients, client), append(accepted, time.Now())
					time.Sleep(time.Microsecond)
				}
				for i, state := range test.states {
					c.changed(conns[i], state)
					time.Sleep(time.Microsecond)
				}
				for _, i := range test.again {
					c.changed(conns[i], active)
					c.changed(conns[i], idle)
				}
				accept()
				if lasted := time.Since(accepted[test.want]); lasted < connectionLeast {
					t.Errorf("one is closed after %s", lasted)
				}
				for i, client := range clients {
					_ = client.SetReadDeadline(time.Now()) // of a pipe
					if _, err := client.Read(make([]byte, 1)); errors.Is(err, io.EOF) != (i == test.want) {
						t.Errorf("connection %d: %v", i, err)
					}
				}
			})
		})
	}
}

// TestConnectionsThatHang: what a server does for connections that were closed is bounded as well.
func TestConnectionsThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, listener := newServer(idlePlugin(), silent()), make(pipes)
		var hanging atomic.Int64
		goOn := make(chan struct{})
		server.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			hanging.Add(1)
			<-goOn
			hanging.Add(-1)
		})
		var all sync.WaitGroup
		all.Go(func() { _ = server.Serve(listener) }) // until it is closed
		ctx, cancel := context.WithCancel(t.Context())
		for range crowd {
			all.Go(func() {
				if conn, err := listener.connect(ctx); err == nil {
					behaviours["ask once"](conn)
				}
			})
		}
		time.Sleep(time.Minute)
		if n := hanging.Load(); n != 2*connectionsMost {
			t.Errorf("%d requests hang, want %d", n, 2*connectionsMost)
		}
		close(goOn)
		time.Sleep(time.Minute)
		if n := hanging.Load(); n != 0 {
			t.Errorf("%d requests hang still", n)
		}
		cancel()
		synctest.Wait()
		_ = server.Close() // of a listener that does not fail
		all.Wait()
	})
}
