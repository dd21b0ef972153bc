// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/sirupsen/logrus"

	"github.com/rdma-spec/rdma-spec/plugin/inventory"
	"github.com/rdma-spec/rdma-spec/plugin/nritest"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/chance"
	"github.com/rdma-spec/rdma-spec/test/testing/child"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/race"
)

// asPlugin names, in the environment, the socket with which this test program registers as a plugin instead of running
// tests.
const asPlugin = "NRI_RDMA_TEST_SOCKET"

// asValidator has it be a validator.
const asValidator = "NRI_RDMA_TEST_VALIDATE"

func TestMain(m *testing.M) {
	if socket := os.Getenv(asPlugin); socket != "" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		hcas := inventory.New(os.Getenv("NRI_RDMA_TEST_ROOT"), quiet())
		go hcas.Run(ctx)
		o := Options{Name: "rdma", Index: "90", Socket: socket, Inventory: hcas, Log: quiet(),
			Validate: os.Getenv(asValidator) != ""}
		err := New(o).Run(ctx)
		stop()
		if err != nil {
			os.Exit(1)
		}
		return
	}
	logrus.SetLevel(logrus.PanicLevel) // ttrpc's own words, on connections that tests cut
	os.Exit(m.Run())
}

// footprint is what a leak would show in.
type footprint struct {
	goroutines, descriptors int
	heap                    uint64
}

func measure(t *testing.T) footprint {
	t.Helper()
	runtime.GC()
	runtime.GC() // what the first one finalises, and what pools keep for one round
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return footprint{runtime.NumGoroutine(), openDescriptors(t), m.HeapAlloc}
}

// Each creation may leave next to nothing: two thousand of each kind that leave 50 bytes, a goroutine or a descriptor
// each are noticed.
func TestCreateContainer_LeavesNothing(t *testing.T) {
	nri, p := registered(t, Options{Policy: mustPolicy(t, "{}"), Log: quiet()})
	unrelated, holder := &api.Container{Id: "unrelated", Name: "main"}, verbsContainer(t, p.root)
	create := func(n int) {
		for i := range n {
			holder.Id = fmt.Sprintf("container-%d", i)
			for _, ctr := range []*api.Container{unrelated, holder} {
				if _, err := nri.Create(t.Context(), pod, ctr); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	const creations = 2_000
	create(creations / 4)
	before := measure(t)
	create(creations)
	await.Success(t, await.Timeout, "as it was before", func() error { // requests may be under way to their end
		after := measure(t)
		if after.goroutines > before.goroutines+2 || after.descriptors > before.descriptors+2 ||
			int64(after.heap)-int64(before.heap) > 2*creations*50 {
			return fmt.Errorf("before %+v, after %+v", before, after)
		}
		return nil
	})
}

// A plugin that is killed at any moment fails no container but those whose creation it was killed over, and is asked
// again as soon as it is back. With a validator beside it, no RDMA container is created without it. test/nri kills
// plugins that are alone.
func TestRun_KilledUnderLoad(t *testing.T) {
	const kills = 20 // containers are created without a pause: a plugin that serves is killed over one nearly every time
	random := chance.New(t)
	nri, root := started(t), hcatest.V100(t)
	registeredWith(t, nri, Options{Inventory: inventoryOf(t, root), Policy: mustPolicy(t, "{}"), Log: quiet(),
		Validate: true})
	holder, unrelated := verbsContainer(t, root), &api.Container{Id: "unrelated", Name: "main"}
	ctx, stop := context.WithCancel(t.Context())
	var adjusted, refused, failed atomic.Int64
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			got, err := nri.Create(ctx, pod, holder)
			switch {
			case ctx.Err() != nil:
			case err != nil && strings.Contains(err.Error(), "would start without memlock unlimited"):
				refused.Add(1)
			case err != nil || len(got.GetRlimits()) == 0 || got.GetRlimits()[0].GetSoft() != math.MaxUint64:
				failed.Add(1)
				t.Logf("creation: %v, %v", got.GetRlimits(), err)
			default:
				adjusted.Add(1)
			}
			if _, err := nri.Create(ctx, pod, unrelated); err != nil && ctx.Err() == nil {
				failed.Add(1)
				t.Logf("creation of an unrelated container: %v", err)
			}
		}
	}()
	for i := range kills {
		before := refused.Load()
		await.That(t, await.Timeout, "a container meets no plugin", func() bool { return refused.Load() > before })
		served := adjusted.Load()
		plugin := startProcess(t, nri, root)
		// Half of them die once they serve, the other half on the way there, where the race detector would see what
		// SkipHangUp says.
		if i%2 == 0 || race.Detector {
			await.That(t, await.Timeout, "a container meets the plugin", func() bool { return adjusted.Load() > served })
		}
		moment := time.NewTimer(time.Duration(random.Int64N(int64(20 * time.Millisecond))))
		<-moment.C
		must.Succeed(t, plugin.Process.Signal(syscall.SIGKILL))
		_ = plugin.Wait() // killed
	}
	stop()
	<-ended
	t.Logf("%d kills: %d containers adjusted, %d refused", kills, adjusted.Load(), refused.Load())
	if failed.Load() > 0 {
		t.Errorf("%d creations failed because of the plugin, or were done without it", failed.Load())
	}
}

// startProcess runs a plugin in a process of its own, with variables added to its environment.
func startProcess(t *testing.T, nri *nritest.Runtime, root string, env ...string) *exec.Cmd {
	t.Helper()
	plugin := exec.Command(os.Args[0])
	plugin.Env = slices.Concat(os.Environ(), []string{asPlugin + "=" + nri.Socket, "NRI_RDMA_TEST_ROOT=" + root}, env)
	must.Succeed(t, child.Start(plugin))
	return plugin
}

// A validator that hangs costs one creation, after the time that the runtime waits for it; one that dies costs none
// that begins later.
func TestValidate_Killed(t *testing.T) {
	for name, with := range map[string]syscall.Signal{"hangs": syscall.SIGSTOP, "dies": syscall.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			nritest.LosePatience(t)
			nri := started(t)
			validator := startProcess(t, nri, hcatest.V100(t), asValidator+"=1")
			t.Cleanup(func() {
				_ = validator.Process.Kill() // it may be dead
				_ = validator.Wait()
			})
			await.That(t, await.Timeout, "registered", func() bool { return nri.Synchronised() == 1 })
			if with == syscall.SIGSTOP {
				must.Succeed(t, child.Freeze(validator.Process.Pid))
			} else {
				must.Succeed(t, validator.Process.Signal(with))
				_ = validator.Wait() // killed
			}
			failed := 0
			await.That(t, await.Timeout, "containers are created", func() bool {
				_, err := nri.Create(t.Context(), pod, &api.Container{Id: "unrelated", Name: "main"})
				if err != nil {
					failed++
					t.Logf("creation: %v", err)
				}
				return err == nil
			})
			if failed > 1 {
				t.Errorf("%d creations failed, want one at most", failed)
			}
			if with == syscall.SIGSTOP && failed == 0 {
				t.Error("none failed: the validator was not asked")
			}
		})
	}
}
