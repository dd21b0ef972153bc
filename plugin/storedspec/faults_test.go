// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package storedspec

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rdma-spec/rdma-spec/plugin/storedspec/storedspectest"
	"github.com/rdma-spec/rdma-spec/test/await"
	"github.com/rdma-spec/rdma-spec/test/socketproxy"
)

const (
	// testPatience is how long a test waits for what should happen at once.
	testPatience = 10 * time.Second
	// lateness is what a busy machine may add to the fastest of three calls.
	lateness = 200 * time.Millisecond
	// patienceOfNRI is when a runtime gives a plugin up: no call may take as long, however busy the machine is.
	patienceOfNRI = 2 * time.Second
)

// rests records what OnRest is told.
type rests struct {
	mu   sync.Mutex
	told []bool
}

func (r *rests) tell(resting bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = append(r.told, resting)
}

func (r *rests) all() []bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.told
}

// A sick containerd delays a container by the budget at most, after three failures by nothing, and is used again when it is well.
func TestSickContainerd(t *testing.T) {
	tests := []struct {
		name  string
		mode  socketproxy.Mode
		waits bool // each failure takes the whole budget
		want  string
	}{
		{"slow", socketproxy.Slow, true, "containerd did not answer within 300ms"},
		{"silent", socketproxy.Silent, true, "containerd did not answer within 300ms"},
		{"garbage", socketproxy.Garbage, false, ""}, // said by gRPC, and not always the same
		{"refusing", socketproxy.Refuse, false, "connection refused"},
		{"gone", socketproxy.Gone, false, "no socket of containerd at "},
	}
	for _, test := range tests {
		for _, before := range []string{"from the start", "after a good call"} {
			t.Run(test.name+" "+before, func(t *testing.T) {
				t.Parallel()
				server := storedspectest.NewServer(t)
				for _, id := range []string{"first", "train"} {
					server.Put("k8s.io", id, storedspectest.TrainingSpec())
				}
				proxy := socketproxy.New(t, server.Socket)
				var rests rests
				const rest = time.Second
				client := newClient(t, Options{Address: proxy.Socket, Rest: rest, OnRest: rests.tell})
				if before == "after a good call" {
					if changed, err := client.Apply(t.Context(), "first", ipcLock); !changed || err != nil {
						t.Fatalf("Apply gives %v, %v", changed, err)
					}
				}
				client.Budget = DefaultBudget
				proxy.Set(t, test.mode)
				var took []time.Duration
				for n := range 3 {
					start := time.Now()
					changed, err := client.Apply(t.Context(), "train", ipcLock)
					took = append(took, time.Since(start))
					if changed || err == nil || errors.Is(err, ErrResting) || !strings.Contains(err.Error(), test.want) {
						t.Fatalf("call %d: Apply gives %v, %v", n+1, changed, err)
					}
				}
				opened := time.Now()
				fastest, slowest := slices.Min(took), slices.Max(took)
				if fastest > DefaultBudget+lateness || slowest >= patienceOfNRI || test.waits && fastest < DefaultBudget {
					t.Errorf("the calls took %s, with a budget of %s", took, DefaultBudget)
				}
				if !client.Resting() {
					t.Error("three failures in a row, and the breaker is not open")
				}
				connections, gets := proxy.Accepted(), server.Gets("train")
				calls := 0
				for ; time.Since(opened) < rest/5; calls++ {
					if _, err := client.Apply(t.Context(), "train", ipcLock); !errors.Is(err, ErrResting) {
						t.Fatalf("call %d while the breaker is open: Apply gives %v", calls+1, err)
					}
				}
				if calls < 20 {
					t.Errorf("%d calls in %s while the breaker is open: they wait for something", calls, rest/5)
				}
				if proxy.Accepted() != connections || server.Gets("train") != gets {
					t.Error("containerd was asked while the breaker was open")
				}

				proxy.Set(t, socketproxy.Pass)
				client.Budget = testPatience
				await.That(t, testPatience, "recovery", func() bool {
					changed, err := client.Apply(t.Context(), "train", ipcLock)
					return changed && err == nil
				})
				if client.Resting() {
					t.Error("containerd answered, and the breaker is open")
				}
				if diff := cmp.Diff([]bool{true, false}, rests.all()); diff != "" {
					t.Errorf("OnRest (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// While nobody knows whether containerd is well again, one call finds out. The others wait for nothing.
func TestOneCallTries(t *testing.T) {
	proxy := socketproxy.New(t, storedspectest.NewServer(t).Socket)
	proxy.Set(t, socketproxy.Silent)
	client := newClient(t, Options{Address: proxy.Socket, Budget: 100 * time.Millisecond, Rest: 50 * time.Millisecond})
	for range 3 {
		if _, err := client.Apply(t.Context(), "train", ipcLock); errors.Is(err, ErrResting) {
			t.Fatal(err)
		}
	}
	client.Budget = testPatience // the trial lasts until the others are back
	await.That(t, testPatience, "the end of the rest", func() bool { return !client.Resting() })
	ctx, giveUp := context.WithCancel(t.Context())
	trial := make(chan error, 1)
	connections := proxy.Accepted()
	go func() {
		_, err := client.Apply(ctx, "train", ipcLock)
		trial <- err
	}()
	await.That(t, testPatience, "the trial's connection", func() bool { return proxy.Accepted() == connections+1 })
	for range 20 {
		if _, err := client.Apply(t.Context(), "train", ipcLock); !errors.Is(err, ErrResting) {
			t.Errorf("beside the trial: Apply gives %v", err)
		}
	}
	giveUp()
	if err := <-trial; errors.Is(err, ErrResting) || !errors.Is(err, context.Canceled) {
		t.Errorf("the trial gives %v", err)
	}
}

func TestBudgetBelowTheCallersDeadline(t *testing.T) {
	proxy := socketproxy.New(t, storedspectest.NewServer(t).Socket)
	proxy.Set(t, socketproxy.Silent)
	client := newClient(t, Options{Address: proxy.Socket})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if _, err := client.Apply(ctx, "train", ipcLock); err == nil || ctx.Err() != nil {
		t.Errorf("Apply gives %v, and the caller's context %v: nothing is left to answer in", err, ctx.Err())
	}
}

// What callers give up says nothing of containerd.
func TestGivenUpCallsAreNoFailures(t *testing.T) {
	server := storedspectest.NewServer(t)
	server.Put("k8s.io", "train", storedspectest.TrainingSpec())
	client := newClient(t, Options{Address: server.Socket})
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for range 5 {
		if _, err := client.Apply(gone, "train", ipcLock); !errors.Is(err, context.Canceled) {
			t.Errorf("Apply gives %v", err)
		}
	}
	if changed, err := client.Apply(t.Context(), "train", ipcLock); !changed || err != nil {
		t.Errorf("Apply gives %v, %v", changed, err)
	}
}

// A containerd that restarts cuts the connection; the first call after it is as good as any.
func TestRestartedContainerd(t *testing.T) {
	server := storedspectest.NewServer(t)
	for _, id := range []string{"before", "after"} {
		server.Put("k8s.io", id, storedspectest.TrainingSpec())
	}
	proxy := socketproxy.New(t, server.Socket)
	client := newClient(t, Options{Address: proxy.Socket})
	if changed, err := client.Apply(t.Context(), "before", ipcLock); !changed || err != nil {
		t.Fatalf("Apply gives %v, %v", changed, err)
	}
	for _, down := range []socketproxy.Mode{socketproxy.Refuse, socketproxy.Gone} {
		proxy.Set(t, down)
		if _, err := client.Apply(t.Context(), "after", ipcLock); err == nil {
			t.Error("Apply succeeds without containerd")
		}
		proxy.Set(t, socketproxy.Pass)
		if _, err := client.Apply(t.Context(), "after", ipcLock); err != nil {
			t.Errorf("the first call after it is back: Apply gives %v", err)
		}
	}
	proxy.Set(t, socketproxy.Gone)
	proxy.Set(t, socketproxy.Pass)
	if _, err := client.Apply(t.Context(), "after", ipcLock); err != nil {
		t.Errorf("the first call after a restart that nobody noticed: Apply gives %v", err)
	}
}

// A failed connection is let go of as soon as nobody uses it, and nobody knocks in the background.
func TestFailedConnectionsAreClosed(t *testing.T) {
	server := storedspectest.NewServer(t)
	server.Put("k8s.io", "train", storedspectest.TrainingSpec())
	proxy := socketproxy.New(t, server.Socket)
	client := newClient(t, Options{Address: proxy.Socket, Budget: 50 * time.Millisecond})
	proxy.Set(t, socketproxy.Silent)
	if _, err := client.Apply(t.Context(), "train", ipcLock); err == nil {
		t.Fatal("Apply succeeds")
	}
	await.That(t, testPatience, "the end of the connection that failed", func() bool { return proxy.Open() == 0 })
	proxy.Set(t, socketproxy.Pass)
	client.Budget = testPatience
	if _, err := client.Apply(t.Context(), "train", ipcLock); err != nil {
		t.Fatal(err)
	}
	if n := proxy.Open(); n != 1 {
		t.Errorf("%d connections are open", n)
	}
	client.Close()
	await.That(t, testPatience, "the end of the connection", func() bool { return proxy.Open() == 0 })
	if n := proxy.Accepted(); n != 2 {
		t.Errorf("%d connections were made", n)
	}
}

// A call that fails takes the connection from those that come after it, not from those that use it.
func TestFailedCallCutsNobodyOff(t *testing.T) {
	server := storedspectest.NewServer(t)
	server.Put("k8s.io", "patient", storedspectest.TrainingSpec())
	asked, answer := make(chan struct{}), make(chan struct{})
	server.BeforeGet = func(id string, _ int) error {
		if id == "failing" {
			return status.Error(codes.Internal, "broken")
		}
		close(asked)
		<-answer
		return nil
	}
	proxy := socketproxy.New(t, server.Socket)
	client := newClient(t, Options{Address: proxy.Socket})
	patient := make(chan error, 1)
	go func() {
		_, err := client.Apply(context.Background(), "patient", ipcLock)
		patient <- err
	}()
	<-asked
	if _, err := client.Apply(t.Context(), "failing", ipcLock); err == nil || !strings.Contains(err.Error(), "containerd: broken") {
		t.Errorf("the failing call gives %v", err)
	}
	if n := proxy.Open(); n != 1 {
		t.Errorf("%d connections are open, want that of the other call", n)
	}
	close(answer)
	if err := <-patient; err != nil {
		t.Errorf("the other call gives %v", err)
	}
	await.That(t, testPatience, "the end of the connection", func() bool { return proxy.Open() == 0 })
}
