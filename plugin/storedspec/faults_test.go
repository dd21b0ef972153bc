// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package storedspec

import (
	"context"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rdma-spec/rdma-spec/plugin/breaker"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec/storedspectest"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/expect"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/socketproxy"
)

// testPatience is the budget in tests that do not test the budget.
const testPatience = await.Timeout

// aBudget is the budget in tests that do.
const aBudget = 300 * time.Millisecond

// inMemory returns a client of a containerd that stores the container train. They are connected without a socket, so
// the test can use simulated time. The proxy can delay, garble, or drop containerd's answers.
func inMemory(t *testing.T, o Options) (*Client, *storedspectest.Server, *socketproxy.Proxy) {
	t.Helper()
	client, byPlace := severalContainerds(t, o, docker)
	client.Address = client.Root + docker
	byPlace[docker].Put("k8s.io", "train", storedspectest.TrainingSpec())
	return client, byPlace[docker].Server, byPlace[docker].Proxy
}

// timed applies a grant, and measures how long that takes.
func timed(ctx context.Context, c *Client) (changed bool, took time.Duration, err error) {
	start := time.Now()
	found, err := c.Confirm(ctx, "train", ipcLock)
	return found.Wrote, time.Since(start), err
}

// A containerd that fails delays a container by at most the budget and, after three failures, not at all. When it works
// again, it is used again.
func TestConfirm_sickContainerd(t *testing.T) {
	for _, test := range []struct {
		name string
		mode socketproxy.Mode
		took time.Duration // the duration of each failure
		want string
	}{
		{"slow", socketproxy.Slow, aBudget, " did not respond within 300ms"},
		{"silent", socketproxy.Silent, aBudget, " did not respond within 300ms"},
		{"garbage", socketproxy.Garbage, 0, ""}, // gRPC's error text varies
		{"refusing", socketproxy.Refuse, 0, "connection refused"},
	} {
		for _, before := range []string{"from the start", "after a good call"} {
			t.Run(test.name+" "+before, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var changes []bool
					client, server, proxy := inMemory(t, Options{Budget: aBudget,
						OnChange: func(open bool) { changes = append(changes, open) }})
					server.Put("k8s.io", "first", storedspectest.TrainingSpec())
					if before == "after a good call" {
						expectEdit(t, client, "first")
					}
					proxy.Set(t, test.mode)
					for n := range breaker.Failures {
						changed, took, err := timed(t.Context(), client)
						if changed || err == nil || errors.Is(err, breaker.ErrOpen) || !strings.Contains(err.Error(), test.want) {
							t.Fatalf("call %d: Confirm gives %v, %v", n+1, changed, err)
						}
						if took != test.took {
							t.Errorf("call %d took %s, want %s", n+1, took, test.took)
						}
					}
					if !client.Failing() {
						t.Error("three failures in a row, and the breaker is not open")
					}
					connections, gets := proxy.Accepted(), server.Gets("train")
					for range 10 {
						if _, took, err := timed(t.Context(), client); !errors.Is(err, breaker.ErrOpen) || took > 0 {
							t.Fatalf("while the breaker is open Confirm gives %v after %s", err, took)
						}
					}
					if proxy.Accepted() != connections || server.Gets("train") != gets {
						t.Error("containerd was asked while the breaker was open")
					}

					proxy.Set(t, socketproxy.Pass)
					time.Sleep(breaker.OpenFor + time.Millisecond)
					expectEdit(t, client, "train")
					if client.Failing() {
						t.Error("containerd is well, and the breaker is open")
					}
					expect.Equal(t, "OnChange", []bool{true, false}, changes)
				})
			})
		}
	}
}

// A missing socket is not a failure of containerd, because an administrator may not mount it on purpose. Each call
// looks for it again.
func TestConfirm_noSocket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, _, _ := inMemory(t, Options{})
		must.Succeed(t, os.Remove(client.Address))
		for range 2 * breaker.Failures {
			if _, err := client.Confirm(t.Context(), "train", ipcLock); !errors.Is(err, ErrNoSocket) || client.Failing() {
				t.Fatalf("Confirm gives %v; the breaker is open: %t", err, client.Failing())
			}
		}
		must.Succeed(t, syscall.Mknod(client.Address, syscall.S_IFSOCK|0o600, 0))
		expectEdit(t, client, "train")
	})
}

func TestConfirm_budgetBelowDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, _, proxy := inMemory(t, Options{})
		proxy.Set(t, socketproxy.Silent)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if _, took, err := timed(ctx, client); err == nil || took != 1500*time.Millisecond {
			t.Errorf("Confirm gives %v after %s, want it to fail after three quarters of the caller's two seconds", err, took)
		}
	})
}

// A call that the caller cancels is not a failure of containerd.
func TestConfirm_canceledByCaller(t *testing.T) {
	_, client := training(t)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for range 5 {
		if _, err := client.Confirm(gone, "train", ipcLock); err == nil || errors.Is(err, breaker.ErrOpen) {
			t.Errorf("Confirm gives %v", err)
		}
	}
	expectEdit(t, client, "train")
}

// When containerd restarts, it closes the connection. The first call afterwards succeeds.
func TestConfirm_restartedContainerd(t *testing.T) {
	server := storedspectest.NewServer(t)
	for _, id := range []string{"before", "after"} {
		server.Put("k8s.io", id, storedspectest.TrainingSpec())
	}
	proxy := socketproxy.New(t, server.Socket)
	client := newClient(t, Options{Address: proxy.Socket})
	expectEdit(t, client, "before")
	for _, down := range []socketproxy.Mode{socketproxy.Refuse, socketproxy.Gone} {
		proxy.Set(t, down)
		if _, err := client.Confirm(t.Context(), "after", ipcLock); err == nil {
			t.Error("Apply succeeds without containerd")
		}
		proxy.Set(t, socketproxy.Pass)
		if _, err := client.Confirm(t.Context(), "after", ipcLock); err != nil {
			t.Errorf("the first call after it is back: Confirm gives %v", err)
		}
	}
	proxy.Set(t, socketproxy.Gone)
	proxy.Set(t, socketproxy.Pass)
	if _, err := client.Confirm(t.Context(), "after", ipcLock); err != nil {
		t.Errorf("the first call after a restart that nobody noticed: Confirm gives %v", err)
	}
}

// A failed connection is closed as soon as no call uses it, and nothing reconnects in the background.
func TestConnections_closesFailed(t *testing.T) {
	server := storedspectest.NewServer(t)
	server.Put("k8s.io", "train", storedspectest.TrainingSpec())
	proxy := socketproxy.New(t, server.Socket)
	client := newClient(t, Options{Address: proxy.Socket, Budget: 50 * time.Millisecond})
	proxy.Set(t, socketproxy.Silent)
	if _, err := client.Confirm(t.Context(), "train", ipcLock); err == nil {
		t.Fatal("Apply succeeds")
	}
	await.That(t, testPatience, "the end of the connection that failed", func() bool { return proxy.Open() == 0 })
	proxy.Set(t, socketproxy.Pass)
	client.Budget = testPatience
	expectEdit(t, client, "train")
	if n := proxy.Open(); n != 1 {
		t.Errorf("%d connections are open", n)
	}
	client.Close()
	await.That(t, testPatience, "the end of the connection", func() bool { return proxy.Open() == 0 })
	if n := proxy.Accepted(); n != 2 {
		t.Errorf("%d connections were made", n)
	}
}

// When a call fails, later calls use a new connection, but calls in progress keep the old one.
func TestConnections_failedCallKeepsOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server, proxy := inMemory(t, Options{Budget: aBudget})
		server.Put("k8s.io", "patient", storedspectest.TrainingSpec())
		server.BeforeGet = func(id string, _ int) error {
			if id == "failing" {
				return status.Error(codes.Internal, "broken")
			}
			time.Sleep(aBudget * 2 / 3)
			return nil
		}
		patient := make(chan error, 1)
		go func() {
			_, err := client.Confirm(context.Background(), "patient", ipcLock)
			patient <- err
		}()
		synctest.Wait()
		if _, err := client.Confirm(t.Context(), "failing", ipcLock); err == nil || !strings.HasSuffix(err.Error(),
			"containerd at "+client.Address+": broken") {
			t.Errorf("the failing call gives %v", err)
		}
		if n := proxy.Open(); n != 1 {
			t.Errorf("%d connections are open, want the one of the other call", n)
		}
		if err := <-patient; err != nil {
			t.Errorf("the other call gives %v", err)
		}
		time.Sleep(aBudget)
		synctest.Wait()
		if n := proxy.Open(); n != 0 {
			t.Errorf("%d connections are open, although one failed and nobody uses it", n)
		}
	})
}
