// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"

	"github.com/rdma-spec/rdma-spec/plugin/nritest"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/loopback"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/output"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// slow is a collector that waits until it is let go.
type slow struct{ asked, goOn chan struct{} }

func (s slow) Describe(chan<- *prometheus.Desc) {}

func (s slow) Collect(chan<- prometheus.Metric) {
	close(s.asked)
	<-s.goOn
}

// askSlowly asks a server for metrics, which it collects until s lets it go on, and returns what ends the server, and the
// status of the answer, 0 for none.
func askSlowly(t *testing.T) (s slow, stop func(), answered chan int) {
	t.Helper()
	s = slow{make(chan struct{}), make(chan struct{})}
	answered = make(chan int)
	address := loopback.Address()
	stop, err := serveHTTP(address, idlePlugin(), silent(), s)
	must.Succeed(t, err)
	go func() {
		answer, err := http.Get("http://" + address + "/metrics")
		if err != nil {
			answered <- 0
			return
		}
		defer answer.Body.Close() //nolint:errcheck // nothing is read
		answered <- answer.StatusCode
	}()
	<-s.asked
	return s, stop, answered
}

// counted counts how often it is collected.
type counted struct {
	slow
	times *atomic.Int64
}

func (c counted) Collect(to chan<- prometheus.Metric) {
	c.times.Add(1)
	c.slow.Collect(to)
}

// However many ask at the same time, the plugin works for one of them, and all get its answer.
func TestMetricsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := counted{slow{make(chan struct{}), make(chan struct{})}, &atomic.Int64{}}
		server, listener := newServer(idlePlugin(), silent(), c), make(pipes)
		ended := make(chan error)
		go func() { ended <- server.Serve(listener) }()
		defer func() {
			_ = server.Close()
			if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
				t.Error(err)
			}
		}()
		clients := []net.Conn{listener.dial(t), listener.dial(t), listener.dial(t)}
		synctest.Wait()
		close(c.goOn)
		for _, client := range clients {
			answer, err := http.ReadResponse(bufio.NewReader(client), nil)
			must.Succeed(t, err)
			text, err := io.ReadAll(answer.Body)
			must.Succeed(t, err)
			_ = answer.Body.Close() // it was read to the end
			if answer.StatusCode != http.StatusOK || !strings.Contains(string(text), "\nnri_rdma_connected 0\n") ||
				!strings.HasPrefix(answer.Header.Get("Content-Type"), "text/plain; version=0.0.4") {
				t.Errorf("status %d, %s:\n%s", answer.StatusCode, answer.Header, text)
			}
			_ = client.Close()
		}
		if n := c.times.Load(); n != 1 {
			t.Errorf("the metrics were collected %d times", n)
		}
	})
}

// Who is still being answered does not keep the plugin from its end.
func TestServeHTTP_endCutsOffRequests(t *testing.T) {
	s, stop, answered := askSlowly(t)
	defer close(s.goOn)
	stop()
	if got := await.Receive(t, await.Timeout, "cut off", answered); got != 0 {
		t.Errorf("it was answered with %d", got)
	}
}

// pipes is a listener whose connections hold nothing: who does not read keeps the other side from writing.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if conn, ok := <-p; ok {
		return conn, nil
	}
	return nil, net.ErrClosed
}

// Close is called once, by the server.
func (p pipes) Close() error {
	close(p)
	return nil
}

func (pipes) Addr() net.Addr { return &net.UnixAddr{} }

// connect returns the client's end of a connection once the server has the other one.
func (p pipes) connect(ctx context.Context) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	client, server := net.Pipe()
	select {
	case p <- server:
		return client, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// dial connects, and sends a request for metrics.
func (p pipes) dial(t *testing.T) net.Conn {
	t.Helper()
	client, err := p.connect(t.Context())
	must.Succeed(t, err)
	if _, err := io.WriteString(client, "GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	return client
}

// Whoever asks and does not read, or stays and does not ask again, would keep the metrics from everybody.
func TestSlowClientsAreCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, listener := newServer(idlePlugin(), silent()), make(pipes)
		ended := make(chan error)
		go func() { ended <- server.Serve(listener) }()
		defer func() {
			_ = server.Close()
			if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
				t.Error(err)
			}
		}()
		deaf := listener.dial(t)
		time.Sleep(time.Minute)
		idle := listener.dial(t)
		answer, err := http.ReadResponse(bufio.NewReader(idle), nil)
		if err != nil || answer.StatusCode != http.StatusOK {
			t.Fatalf("beside one that does not read: %v, %v", answer, err)
		}
		defer func() { _ = answer.Body.Close() }() // its status was wanted
		go func() { _, _ = io.Copy(io.Discard, idle) }()
		time.Sleep(10 * time.Minute)
		for name, conn := range map[string]net.Conn{"deaf": deaf, "idle": idle} {
			if _, err := io.WriteString(conn, "G"); !errors.Is(err, io.ErrClosedPipe) {
				t.Errorf("the %s client is still connected: %v", name, err)
			}
		}
	})
}

// A header that never ends is not kept.
func TestNewServer_boundsHeaders(t *testing.T) {
	served := httptest.NewUnstartedServer(nil)
	served.Config = newServer(idlePlugin(), silent()).Server
	served.Start()
	defer served.Close()
	conn, err := net.Dial("tcp", served.Listener.Addr().String())
	must.Succeed(t, err)
	defer func() { _ = conn.Close() }() // its answer was wanted
	if _, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\nEndless: "+
		strings.Repeat("x", 16<<10)); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || answer.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Fatalf("%v, %v", answer, err)
	}
	_ = answer.Body.Close() // its status was wanted
}

// Registered, but without /sys/dev, every container would look like one without RDMA devices.
func TestServe_notReadyWithoutSysDev(t *testing.T) {
	runtime := nritest.New(t, "containerd", "v2.4.2")
	runtime.Start(t)
	address := loopback.Address()
	running(t, options{socket: runtime.Socket, root: hcatest.V100Node().Files().Without("sys/dev").Root(t), http: address})
	awaitRegistered(t, address)
	if why := awaitStatus(t, address, "/readyz", http.StatusServiceUnavailable); !strings.Contains(why,
		"mount the node's /sys/dev") {
		t.Errorf("not ready, since %q", why)
	}
}

// What net/http itself complains about is in the plugin's log, in its format.
func TestNewServer_logsNetHTTPErrors(t *testing.T) {
	var out output.Buffer
	log := silent()
	log.SetOutput(&out)
	log.SetFormatter(&logrus.JSONFormatter{})
	newServer(idlePlugin(), log).ErrorLog.Printf("http: Accept error: %v", syscall.EMFILE)
	if got := out.String(); !strings.Contains(got, `"level":"warning","msg":"http: Accept error: too many open files"`) {
		t.Errorf("the log: %s", got)
	}
}

// The socket of a process before is replaced, and another file is not.
func TestServesAtASocketAlone(t *testing.T) {
	path := filepath.Join(scratch.Dir(t), "metrics.sock")
	scratch.File(t, path, "an administrator's", 0o600)
	_, err := serveHTTP(inUnix+path, idlePlugin(), silent())
	if err == nil || !strings.Contains(err.Error(), "address already in use") || scratch.Read(t, path) != "an administrator's" {
		t.Errorf("a file at the address: %v", err)
	}
	must.Succeed(t, os.Remove(path))
	before, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	must.Succeed(t, err)
	before.SetUnlinkOnClose(false)
	must.Succeed(t, before.Close())
	stop, err := serveHTTP(inUnix+path, idlePlugin(), silent())
	must.Succeed(t, err)
	stop()
}

// Of two processes in one network, each says whether it is ready, and the registered one has the address for metrics.
func TestAskReady_twoInOneNetwork(t *testing.T) {
	runtime, dir, sockets := nritest.New(t, "containerd", "v2.4.2"), scratch.Dir(t), scratch.Dir(t)
	root, address := hcatest.V100(t), loopback.Address()
	process := func(name string) (end func()) {
		return running(t, options{socket: runtime.Socket, root: root, handover: dir,
			http: inUnix + filepath.Join(sockets, name), metrics: address})
	}
	says := func(name string) (said string, status int) {
		var out strings.Builder
		status = askReady(filepath.Join(sockets, name), &out)
		return out.String(), status
	}
	if said, status := says("nobody"); status != 1 || !strings.Contains(said, "no such file") {
		t.Errorf("nobody is ready: %d, %s", status, said)
	}
	endFirst := process("first")
	await.That(t, await.Timeout, "not registered", func() bool {
		said, status := says("first")
		return status == 1 && said == "not registered with the runtime\n"
	})
	runtime.Start(t)
	ready := func(name, want string) {
		t.Helper()
		await.That(t, await.Timeout, name+" is "+want, func() bool {
			said, status := says(name)
			return status == 0 && said == want+"\n"
		})
	}
	ready("first", "registered")
	awaitStatus(t, address, "/metrics", http.StatusOK)
	endSecond := process("second")
	ready("second", "waiting behind a registered plugin")
	endFirst()
	ready("second", "registered")
	if metrics := awaitStatus(t, address, "/metrics", http.StatusOK); !strings.Contains(metrics, "\nnri_rdma_connected 1") {
		t.Errorf("the metrics are another one's:\n%s", metrics)
	}
	if n := runtime.Connections(); n != 1 {
		t.Errorf("%d connections", n)
	}
	endSecond()
}
