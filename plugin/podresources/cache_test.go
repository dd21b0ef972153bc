// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package podresources

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/rdma-spec/rdma-spec/plugin/breaker"
)

// An answer is used for two minutes, and the client keeps 1024 of them: those that were used last.
func TestAnswersAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		listener := bufconn.Listen(1 << 16)
		k := &kubelet{get: knows(pod("ml", "trainer", map[string][]string{"main": {"rdma/a"}}))}
		serveOn(t, listener, k)
		c := New(Options{})
		c.dial = listener.DialContext
		asked := func(sandbox string) bool {
			t.Helper()
			before := k.gets.Load()
			if names, _, err := c.Names(context.Background(), sandbox, "ml", "trainer", "main"); err != nil || len(names) != 1 {
				t.Fatalf("%v, %v", names, err)
			}
			return k.gets.Load() != before
		}
		if !asked("first") || asked("first") {
			t.Error("the kubelet must be asked once")
		}
		time.Sleep(keptFor - time.Second)
		if asked("first") {
			t.Error("an answer is forgotten before its time")
		}
		time.Sleep(time.Second + time.Nanosecond)
		if !asked("first") {
			t.Error("an answer is used after its time")
		}
		for i := range keptMost {
			if !asked(fmt.Sprint(i)) {
				t.Fatalf("sandbox %d has another one's answer", i)
			}
		}
		if !asked("first") {
			t.Errorf("more than %d answers are kept", keptMost)
		}
		if asked(fmt.Sprint(keptMost-1)) || asked("1") {
			t.Errorf("less than %d answers are kept", keptMost)
		}
	})
}

// A pod's author decides how many containers it has. An answer about very many takes much memory, and is not kept.
func TestLargeAnswersAreNotKept(t *testing.T) {
	for count, asked := range map[int]int64{keptContainers: 1, keptContainers + 1: 2} {
		containers := map[string][]string{}
		for i := range count {
			containers[fmt.Sprint("c", i)] = []string{"rdma/a"}
		}
		synctest.Test(t, func(t *testing.T) {
			listener := bufconn.Listen(1 << 16)
			k := &kubelet{get: knows(pod("ml", "trainer", containers))}
			serveOn(t, listener, k)
			c := New(Options{})
			c.dial = listener.DialContext
			for range 2 {
				if names, known, err := c.Names(context.Background(), "sandbox", "ml", "trainer", "c0"); err != nil ||
					!known || len(names) != 1 {
					t.Fatalf("%v, %t, %v", names, known, err)
				}
			}
			if got := k.gets.Load(); got != asked {
				t.Errorf("%d containers: the kubelet was asked %d times, want %d", count, got, asked)
			}
		})
	}
}

// Clients share neither a breaker nor answers: failures that a pass over all containers sees keep no container's
// creation from asking.
func TestClientsShareNothing(t *testing.T) {
	trainer := knows(pod("ml", "trainer", map[string][]string{"main": {"rdma/a"}}))
	socket := newSocket(t)
	serve(t, socket, &kubelet{get: func(ctx context.Context, namespace, pod string) (*podresources.PodResources, error) {
		if pod == "sick" {
			return nil, status.Error(codes.Internal, "out of order")
		}
		return trainer(ctx, namespace, pod)
	}})
	background, creations := New(Options{Socket: socket, Budget: aLongTime}),
		New(Options{Socket: socket, Budget: aLongTime})
	for range breaker.Failures {
		if _, _, err := background.Names(context.Background(), "", "ml", "sick", "main"); err == nil {
			t.Fatal("a look-up of the sick pod succeeds")
		}
	}
	if !background.Failing() || creations.Failing() {
		t.Errorf("open: %t and %t, want only the first", background.Failing(), creations.Failing())
	}
	if _, _, err := creations.Names(context.Background(), "", "ml", "trainer", "main"); err != nil {
		t.Error(err)
	}
}
