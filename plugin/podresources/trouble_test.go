// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package podresources

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/rdma-spec/rdma-spec/plugin/breaker"
	"github.com/rdma-spec/rdma-spec/plugin/localrpc"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
)

// aBudget is a budget for tests that are about it.
const aBudget = 300 * time.Millisecond

// aLongTime is a budget for tests that are not about the budget.
const aLongTime = await.Timeout

// timed asks about the pod trainer, and says how long it took.
func timed(c *Client, sandbox string) (names []string, took time.Duration, err error) {
	start := time.Now()
	names, _, err = c.Names(context.Background(), sandbox, "ml", "trainer", "main")
	return names, time.Since(start), err
}

// TestNames_budget: whatever the kubelet does, a look-up takes no longer than its budget, and after three in a row that
// failed the kubelet is not asked for a while. Time is not real here, and neither are connections, so that it can be
// taken at its word.
func TestNames_budget(t *testing.T) {
	answers := func(err error) *kubelet {
		return &kubelet{get: func(context.Context, string, string) (*podresources.PodResources, error) { return nil, err }}
	}
	hangs := &kubelet{get: func(ctx context.Context, _, _ string) (*podresources.PodResources, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	for name, tt := range map[string]struct {
		dial    func() (net.Conn, error) // nil: as usual
		kubelet *kubelet
		fails   string
		waits   bool // the whole budget
	}{
		"accepts and never answers": {
			dial:  func() (net.Conn, error) { conn, _ := net.Pipe(); return conn, nil },
			fails: "the kubelet did not respond in time", waits: true,
		},
		"does not accept": {
			dial:  func() (net.Conn, error) { return nil, syscall.ECONNREFUSED },
			fails: "the kubelet cannot be reached", waits: true,
		},
		"takes the question and never answers": {kubelet: hangs, fails: "the kubelet did not respond in " +
			"time", waits: true},
		"is asked too often all the time": {
			kubelet: answers(status.Error(codes.ResourceExhausted, "rejected by limit")),
			fails:   "the kubelet refuses the request, because there are too many requests", waits: true,
		},
		"fails": {kubelet: answers(status.Error(codes.Internal, "out of order")), fails: "out of order"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				listener := bufconn.Listen(1 << 16)
				if tt.kubelet != nil {
					serveOn(t, listener, tt.kubelet)
				}
				c := New(Options{Budget: aBudget})
				var dialled atomic.Int64 // gRPC dials in the background, even after a call has failed
				c.dial = func(ctx context.Context) (net.Conn, error) {
					dialled.Add(1)
					if tt.dial != nil {
						return tt.dial()
					}
					return listener.DialContext(ctx)
				}
				for i := range breaker.Failures {
					_, took, err := timed(c, fmt.Sprint("s", i))
					if err == nil || !strings.Contains(err.Error(), tt.fails) {
						t.Errorf("look-up %d: %v", i, err)
					}
					if took > aBudget || tt.waits && took < aBudget {
						t.Errorf("look-up %d took %s, the budget is %s", i, took, aBudget)
					}
				}
				synctest.Wait()
				before := dialled.Load()
				for range 10 {
					_, took, err := timed(c, "s9")
					if err == nil || !strings.Contains(err.Error(), "3 lookups in a row failed") || took > 0 || !c.Failing() {
						t.Errorf("after three failures: %v, after %s", err, took)
					}
				}
				if dialled.Load() != before {
					t.Error("the kubelet was asked although it failed three times")
				}
			})
		})
	}
}

// TestNames_retriesRejected: a kubelet that rejects some questions is asked again.
func TestNames_retriesRejected(t *testing.T) {
	trainer := pod("ml", "trainer", map[string][]string{"main": {"rdma/a"}})
	for name, method := range map[string]codes.Code{"ResourceExhausted": codes.ResourceExhausted,
		"Unavailable": codes.Unavailable} {
		t.Run(name, func(t *testing.T) {
			left := 3
			k := &kubelet{list: func() ([]*podresources.PodResources, error) {
				if left--; left >= 0 {
					return nil, status.Error(method, "rejected by limit")
				}
				return []*podresources.PodResources{trainer}, nil
			}}
			got, _, err := timed(clientOf(t, k), "s1")
			if err != nil || len(got) != 1 {
				t.Errorf("got %v, %v", got, err)
			}
			if n := k.lists.Load(); n != 4 {
				t.Errorf("asked %d times", n)
			}
		})
	}
}

// TestNames_largeList: a pod is found in a list that is longer than the 4 MiB that gRPC usually takes.
func TestNames_largeList(t *testing.T) {
	k := &kubelet{list: func() ([]*podresources.PodResources, error) {
		return []*podresources.PodResources{pod("ml", strings.Repeat("x", 5<<20), nil),
			pod("ml", "trainer", map[string][]string{"main": {"rdma/a"}})}, nil
	}}
	if got, _, err := timed(clientOf(t, k), "s1"); err != nil || len(got) != 1 {
		t.Errorf("%v, %v", got, err)
	}
}

// TestNames_tooLargeAnswer: an answer over the bound is refused at once and not asked for again.
func TestNames_tooLargeAnswer(t *testing.T) {
	k := &kubelet{get: func(context.Context, string, string) (*podresources.PodResources, error) {
		return pod("ml", strings.Repeat("x", localrpc.MaxMessage), nil), nil
	}}
	_, took, err := timed(clientOf(t, k), "s1")
	if err == nil || !strings.Contains(err.Error(), "larger than max") {
		t.Error(err)
	}
	if n := k.gets.Load(); n != 1 || took > aLongTime/2 {
		t.Errorf("asked %d times, took %s", n, took)
	}
}

// TestNames_kubeletRestarts: a kubelet that comes back is found, both in the next look-up and in one that has begun.
func TestNames_kubeletRestarts(t *testing.T) {
	trainer := pod("ml", "trainer", map[string][]string{"main": {"rdma/a"}})
	k := &kubelet{get: knows(trainer)}
	socket := newSocket(t)
	stop := serve(t, socket, k)
	c := New(Options{Socket: socket, Budget: aLongTime})
	if _, _, err := timed(c, "s1"); err != nil {
		t.Fatal(err)
	}
	stop()
	if _, _, err := timed(c, "s1"); err != nil {
		t.Errorf("what is known of a pod is not used while the kubelet is away: %v", err)
	}
	var failed atomic.Int64
	dial := c.dial
	c.dial = func(ctx context.Context) (net.Conn, error) {
		conn, err := dial(ctx)
		if err != nil {
			failed.Add(1)
		}
		return conn, err
	}
	result := make(chan error)
	go func() {
		_, _, err := timed(c, "s2")
		result <- err
	}()
	await.That(t, aLongTime/2, "tried and tried again", func() bool { return failed.Load() > 1 })
	serve(t, socket, k)
	if err := <-result; err != nil {
		t.Errorf("a look-up that began while the kubelet was away: %v", err)
	}
	if _, _, err := timed(c, "s3"); err != nil {
		t.Errorf("a look-up after the kubelet came back: %v", err)
	}
}
