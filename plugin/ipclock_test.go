// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/proto"

	"github.com/rdma-spec/rdma-spec/plugin/breaker"
	"github.com/rdma-spec/rdma-spec/plugin/nritest"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec/storedspectest"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/socketproxy"
)

// withContainerd is a plugin between NRI's runtime side and a containerd's API, which a proxy can make sick.
func withContainerd(t *testing.T, budget time.Duration) (*nritest.Runtime, *running,
	*storedspectest.Server, *socketproxy.Proxy) {
	t.Helper()
	server := storedspectest.NewServer(t)
	proxy := socketproxy.New(t, server.Socket)
	specs := storedspec.New(storedspec.Options{Address: proxy.Socket, Budget: budget})
	t.Cleanup(specs.Close)
	runtime, p := registered(t, Options{Policy: mustPolicy(t, "repair: {mode: off}"), StoredSpecs: specs})
	return runtime, p, server, proxy
}

// Through NRI and containerd's API, both over their real sockets: all have the capability, each by one write.
func TestManyContainersGetIPCLock(t *testing.T) {
	const count, clients = 200, 16
	runtime, p, server, _ := withContainerd(t, await.Patience) // it is not about time
	ids := make(chan string, count)
	for i := range count {
		id := fmt.Sprintf("container-%d", i)
		server.Put("k8s.io", id, storedspectest.TrainingSpec())
		ids <- id
	}
	close(ids)
	server.Put("k8s.io", "unrelated", storedspectest.TrainingSpec())
	holder := verbsContainer(t, p.root)
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for id := range ids {
				ctr := proto.Clone(holder).(*api.Container)
				ctr.Id = id
				if _, err := runtime.Create(t.Context(), pod, ctr); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if _, err := runtime.Create(t.Context(), pod, &api.Container{Id: "unrelated", Name: "main"}); err != nil {
		t.Fatal(err)
	}
	for i := range count {
		id := fmt.Sprintf("container-%d", i)
		if n := strings.Count(string(server.Spec("k8s.io", id)), "CAP_IPC_LOCK"); n != 5 {
			t.Errorf("%s has CAP_IPC_LOCK %d times, want once in each of five sets", id, n)
		}
		if n := server.Updates(id); n != 1 {
			t.Errorf("%s was written %d times", id, n)
		}
	}
	if n := server.Gets("unrelated") + server.Updates("unrelated"); n != 0 {
		t.Errorf("containerd was asked %d times about a container that has nothing to do with RDMA", n)
	}
}

// A sick containerd delays an RDMA container by the budget, others by one such request that is ahead of them, and after
// three failures nobody.
func TestSickContainerdHoldsUpFew(t *testing.T) {
	for name, mode := range map[string]socketproxy.Mode{
		"slow": socketproxy.Slow, "silent": socketproxy.Silent, "garbage": socketproxy.Garbage,
		"refusing": socketproxy.Refuse,
	} {
		t.Run(name, func(t *testing.T) {
			runtime, p, server, proxy := withContainerd(t, 300*time.Millisecond)
			proxy.Set(t, mode)
			holder := verbsContainer(t, p.root)
			server.Put("k8s.io", holder.Id, storedspectest.TrainingSpec())
			create := func(ctr *api.Container) time.Duration {
				start := time.Now()
				if _, err := runtime.Create(t.Context(), pod, ctr); err != nil {
					t.Errorf("creation: %v", err)
				}
				return time.Since(start)
			}
			// The least of three, since a busy machine holds up everybody now and then.
			quickest, quickestBehind, quickestAfter := await.Patience, await.Patience, await.Patience
			for range breaker.Failures {
				behind := make(chan time.Duration, 1)
				go func() { behind <- create(&api.Container{Id: "unrelated", Name: "main"}) }()
				quickest = min(quickest, create(holder))
				quickestBehind = min(quickestBehind, <-behind)
			}
			for range 3 {
				quickestAfter = min(quickestAfter, create(holder))
			}
			const budget = 300 * time.Millisecond
			if quickest > 2*budget || quickestBehind > 2*budget {
				t.Errorf("creation of an RDMA container took %s, of an unrelated one behind it %s; the budget is %s",
					quickest, quickestBehind, budget)
			}
			if quickestAfter > budget/2 {
				t.Errorf("after three failures an RDMA container still takes %s", quickestAfter)
			}
			if n := strings.Count(p.log.String(), "not confirmed"); n != breaker.Failures+3 {
				t.Errorf("%d warnings for %d containers", n, breaker.Failures+3)
			}
		})
	}
}
