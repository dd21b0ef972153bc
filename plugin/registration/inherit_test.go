// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/rdma-spec/rdma-spec/plugin/nritest"
	"github.com/rdma-spec/rdma-spec/plugin/registration/handover"
	"github.com/rdma-spec/rdma-spec/plugin/registration/handover/handovertest"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

const longAgo = time.Hour

// registeredLongAgo changes the time of the registration to long ago.
func (r *running) registeredLongAgo() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.when = time.Now().Add(-longAgo)
}

// load makes a runtime create containers, four at a time, until stop is called. The plugin must adjust each of them.
// stop returns their number.
func load(t *testing.T, runtime *nritest.Runtime) (stop func() int64) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var creators sync.WaitGroup
	var count, without atomic.Int64
	large := strings.Repeat("x", 300<<10)
	for i := range 4 {
		creators.Go(func() {
			for j := 0; ctx.Err() == nil; j++ {
				ctr := &api.Container{Id: fmt.Sprint("container", i, "-", j)}
				if j%10 == 0 {
					ctr.Env = []string{large}
				}
				got, err := runtime.Create(t.Context(), &api.PodSandbox{Id: "pod"}, ctr)
				if err != nil {
					t.Error(err)
				}
				if len(got.GetEnv()) != 1 {
					without.Add(1)
				}
				count.Add(1)
			}
		})
	}
	return func() int64 {
		cancel()
		creators.Wait()
		if n := without.Load(); n > 0 {
			t.Errorf("%d of %d containers were created without the plugin", n, count.Load())
		}
		return count.Load()
	}
}

// Processes that replace each other under load pass on the connection and their state. The runtime sees one plugin that
// never disconnects.
func TestHandover(t *testing.T) {
	runtime, dir := started(t), scratch.Dir(t)
	process := registered(t, &adjuster{knows: "first"}, runtime, meetIn(dir))
	process.registeredLongAgo()
	stop := load(t, runtime)
	const handovers = 20
	for i := range handovers {
		p := &adjuster{}
		next := waiting(t, p, runtime, meetIn(dir))
		if next.Registered() {
			t.Fatal("it waits and is registered")
		}
		process.stop(t)
		await.That(t, await.Timeout, "serving", next.Registered)
		if next.Behind() || time.Since(next.When()) < longAgo || p.knows != "first" {
			t.Errorf("handover %d: it waits: %t; registered: %s; it knows %q", i, next.Behind(), next.When(), p.knows)
		}
		process = next
	}
	t.Logf("%d containers", stop())
	if n, m := runtime.Connections(), runtime.Synchronised(); n != 1 || m != 1 {
		t.Errorf("%d connections and %d registrations, want one", n, m)
	}
}

// A process is ready behind another one only while the other one is registered. If the runtime restarts, the process
// continues to wait.
func TestBehind_RegisteredOnly(t *testing.T) {
	runtime, dir := nritest.New(t, "containerd", "v2.4.2"), scratch.Dir(t)
	first := run(t, &adjuster{}, runtime.Socket, "rdma", meetIn(dir))
	first.awaitLine(t, "no NRI socket")
	second := run(t, &adjuster{}, runtime.Socket, "rdma", meetIn(dir))
	runtime.Start(t)
	for range 3 {
		await.That(t, await.Timeout, "waiting behind a registered one", second.Behind)
		runtime.Stop()
		await.That(t, await.Timeout, "waiting behind one that is not registered", func() bool { return !second.Behind() })
		runtime.Start(t)
	}
	await.That(t, await.Timeout, "waiting behind a registered one", second.Behind)
	first.stop(t)
	await.That(t, await.Timeout, "serving", second.Registered)
	if n := runtime.Connections(); n != 1 || strings.Contains(first.log.String(), "cannot notify") {
		t.Errorf("%d connections; the log:\n%s", n, first.log)
	}
}

// A process that needs something else from the runtime than the previous process registers as a second plugin.
func TestJoin_Unlike(t *testing.T) {
	for what, change := range map[string]func(*running){
		"index":          func(r *running) { r.Index = "80" },
		"failure policy": func(r *running) { r.KeepConnected = true },
		"deployment":     func(r *running) { r.Deployment = "DaemonSet.rdma-spec.other" },
		"events":         func(r *running) { r.plugin.(*adjuster).subscribes = api.EventMask(1 << (api.Event_STOP_CONTAINER - 1)) },
	} {
		t.Run(what, func(t *testing.T) {
			runtime, dir := started(t), scratch.Dir(t)
			mine := func(r *running) { r.Deployment = "DaemonSet.rdma-spec.nri-rdma" }
			registered(t, &adjuster{}, runtime, meetIn(dir), mine)
			second := registered(t, &adjuster{}, runtime, meetIn(dir), mine, change)
			if !strings.Contains(second.log.String(),
				"cannot take over the running process's connection: registering as a second plugin") {
				t.Errorf("the log does not say why it registers:\n%s", second.log)
			}
			if n := runtime.Connections(); n != 2 {
				t.Errorf("%d connections", n)
			}
		})
	}
}

// A process whose chart or version does not name its deployment can take over the connection, and can hand it over.
func TestJoin_UnknownDeployment(t *testing.T) {
	says := func(r *running) { r.Deployment = "DaemonSet.rdma-spec.nri-rdma" }
	silent := func(*running) {}
	runtime, dir := started(t), scratch.Dir(t)
	process := registered(t, &adjuster{}, runtime, meetIn(dir), silent)
	for _, option := range []func(*running){says, says, silent} {
		next := waiting(t, &adjuster{}, runtime, meetIn(dir), option)
		process.stop(t)
		await.That(t, await.Timeout, "serving", next.Registered)
		process = next
	}
	if n := runtime.Connections(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// A process that backs off leaves the free lock to any other process, and waits behind that. If no other process comes,
// it takes the lock after a while, or when it no longer backs off.
func TestBackOff(t *testing.T) {
	var backsOff atomic.Bool
	backsOff.Store(true)
	modest := func(r *running) { r.BacksOff, r.backOffFor = backsOff.Load, time.Hour }
	runtime, dir := started(t), scratch.Dir(t)
	first := run(t, &adjuster{}, runtime.Socket, "rdma", meetIn(dir), modest)
	first.awaitLine(t, "not registering for 1h0m0s, so that another process can")
	second := registered(t, &adjuster{}, runtime, meetIn(dir))
	await.That(t, await.Timeout, "waiting behind it", first.Behind)
	second.stop(t)
	await.That(t, await.Timeout, "given the connection, and taking it", first.Registered)
	third := run(t, &adjuster{}, runtime.Socket, "other", meetIn(dir), func(r *running) { r.BacksOff, r.backOffFor = backsOff.Load, time.Second })
	await.That(t, await.Timeout, "registered after a while", third.Registered)
	n, log := runtime.Connections(), third.log.String()
	if n != 2 || !strings.Contains(log, "not registering for ") || strings.Contains(log, "as a second plugin") {
		t.Errorf("%d connections; the log:\n%s", n, log)
	}
	first.stop(t)
	fourth := run(t, &adjuster{}, runtime.Socket, "rdma", meetIn(dir), modest)
	fourth.awaitLine(t, "not registering for ")
	backsOff.Store(false)
	await.That(t, await.Timeout, "registered once it no longer backs off", fourth.Registered)
}

// A process that ends while no other process waits ends the connection. If a process is killed, the process that waits
// behind it registers, because it inherits nothing.
func TestJoin_NothingLeft(t *testing.T) {
	runtime, dir := started(t), scratch.Dir(t)
	first := registered(t, &adjuster{knows: "first"}, runtime, meetIn(dir))
	first.stop(t)
	second := registered(t, &adjuster{knows: "second"}, runtime, meetIn(dir))
	p := &adjuster{}
	third := waiting(t, p, runtime, meetIn(dir))
	second.mu.Lock()
	owner := second.owner
	second.owner = nil // the second process then passes nothing on
	second.mu.Unlock()
	second.stop(t)
	if third.Registered() {
		t.Error("registered beside a process that has the lock")
	}
	owner.Close() // as the kernel does when a process is killed
	await.That(t, await.Timeout, "registered again", func() bool {
		return third.Registered() && runtime.Synchronised() == 3
	})
	if n := runtime.Connections(); n != 3 || p.knows != "" {
		t.Errorf("%d connections of three processes, and the third one was left %q", n, p.knows)
	}
}

// If a node has two runtimes, each with its own plugin, neither plugin takes over the other's connection, even if both
// use the same directory.
func TestJoin_TwoRuntimes(t *testing.T) {
	a, b, dir := started(t), started(t), scratch.Dir(t)
	first := registered(t, &adjuster{}, a, meetIn(dir))
	second := run(t, &adjuster{}, b.Socket, "rdma", meetIn(dir))
	await.That(t, await.Timeout, "registered with its own runtime", func() bool { return b.Synchronised() == 1 })
	first.stop(t)
	if n, m := a.Connections(), b.Connections(); n != 1 || m != 1 || !second.Registered() {
		t.Errorf("%d and %d connections, the second process is registered: %t", n, m, second.Registered())
	}
}

// If no other process can take over the connection, the log says what follows from that, and mentions no other process.
func TestJoin_NoLock(t *testing.T) {
	runtime := started(t)
	r := registered(t, &adjuster{}, runtime, meetIn(filepath.Join(os.DevNull, "none")))
	if log := r.log.String(); !strings.Contains(log, "no other process can take over this process's connection, so "+
		"the plugin re-registers during an upgrade") ||
		strings.Contains(log, "beside") {
		t.Errorf("the log:\n%s", log)
	}
}

// A process that cannot register, because the runtime or the plugin itself refuses, passes its lock to a waiting
// process, which may be able to, and then waits behind that one.
func TestRelease(t *testing.T) {
	for name, test := range map[string]struct {
		hangsUp bool
		first   adjuster
		why     string
	}{
		"refused": {false, adjuster{refuses: errors.New("too old a runtime")}, "too old a runtime"},
		"paused":  {true, adjuster{}, "the runtime closed the connection before listing its containers"},
	} {
		t.Run(name, func(t *testing.T) {
			runtime, dir := nritest.New(t, "containerd", "v2.4.2"), scratch.Dir(t)
			first := run(t, &test.first, runtime.Socket, "rdma", meetIn(dir))
			first.awaitLine(t, "no NRI socket")
			second := run(t, &adjuster{}, runtime.Socket, "rdma", meetIn(dir))
			second.awaitLine(t, "waiting behind a process that is not registered")
			if test.hangsUp {
				runtime.HangUp()
			}
			runtime.Start(t)
			second.awaitLine(t, "the previous process is releasing the lock so that this process can register: "+test.why)
			if test.hangsUp { // the second process also tries, and fails in the same way
				await.That(t, await.Timeout, "paused", func() bool { return first.Paused() && second.Paused() })
				return
			}
			await.That(t, await.Timeout, "registered", second.Registered)
			first.awaitLine(t, "not ready to take over the previous process's connection")
			if first.Registered() || first.Behind() {
				t.Errorf("registered: %t, ready: %t", first.Registered(), first.Behind())
			}
		})
	}
}

// take gives the next process what systemd keeps.
func take(t *testing.T, systemd *handovertest.Systemd, r *Registration) {
	t.Helper()
	systemd.Kept(func(kept map[string]*os.File) {
		var err error
		if r.storedState, err = io.ReadAll(io.NewSectionReader(kept["state"], 0, 1<<20)); err == nil {
			r.stored, err = handover.SocketOf(kept["connection"])
		}
		if err != nil {
			t.Error(err)
		}
		clear(kept)
	})
}

// A service's processes pass on the connection through systemd, even if one of them is told to end before it serves. If
// the service is stopped, systemd ends the connection with the process, so the process ends only after the runtime has
// passed on its last answer.
func TestHandOver_Service(t *testing.T) {
	runtime, manager := started(t), handovertest.Start(t)
	first := registered(t, &adjuster{knows: "first"}, runtime)
	first.registeredLongAgo()
	first.stop(t)
	if took := time.Since(manager.Last()); took < handOn {
		t.Errorf("it ends %s after it has left the connection to systemd, want %s at least", took, handOn)
	}
	ctx, end := context.WithCancel(t.Context())
	end()
	second := New(&adjuster{}, Options{Name: "rdma", Index: "90", Socket: runtime.Socket, Log: quiet()})
	take(t, manager, second)
	must.Succeed(t, second.Run(ctx))
	p := &adjuster{}
	third := registered(t, p, runtime, func(r *running) { take(t, manager, r.Registration) })
	if n := runtime.Connections(); n != 1 || time.Since(third.When()) < longAgo || p.knows != "first" {
		t.Errorf("%d connections; the third process was registered at %s, and knows %q", n, third.When(), p.knows)
	}
}

// If the next process does not understand the state, it ends the connection and registers. It must not continue with an
// empty state over a connection on which the runtime lists no containers.
func TestRestore_OtherFormat(t *testing.T) {
	const says = "cannot take over the previous process's connection: this process registers when the previous one exits"
	expect := func(t *testing.T, runtime *nritest.Runtime, next *running, p *adjuster) {
		t.Helper()
		await.That(t, await.Timeout, "registered", func() bool { return next.Registered() && runtime.Synchronised() == 2 })
		log := next.log.String()
		if strings.Count(log, says) != 1 || !strings.Contains(log, "format 7") || p.knows != "" {
			t.Errorf("it knows %q, and says:\n%s", p.knows, log)
		}
	}
	t.Run("a process that waits", func(t *testing.T) {
		runtime, dir := started(t), scratch.Dir(t)
		first := registered(t, &adjuster{knows: "first"}, runtime, meetIn(dir))
		p := &adjuster{foreign: errors.New("format 7")}
		second := waiting(t, p, runtime, meetIn(dir))
		first.stop(t)
		expect(t, runtime, second, p)
		if n := runtime.Connections(); n != 2 {
			t.Errorf("%d connections of two processes", n)
		}
		waiting(t, &adjuster{}, runtime, meetIn(dir))
	})
	t.Run("a service", func(t *testing.T) {
		runtime, manager := started(t), handovertest.Start(t)
		first := registered(t, &adjuster{knows: "first"}, runtime)
		first.stop(t)
		p := &adjuster{foreign: errors.New("format 7")}
		expect(t, runtime, run(t, p, runtime.Socket, "rdma", func(r *running) { take(t, manager, r.Registration) }), p)
	})
}

// TestStateFormat: the state has a format number. A process that reads a different number does not use the state.
func TestStateFormat(t *testing.T) {
	agreed := agreement{Socket: "/run/nri/nri.sock", Index: "90", Config: "memlock: unlimited", Runtime: "containerd", Version: "v2.4.2",
		RequestTimeout: 2 * time.Second, Events: 8, KeepConnected: true}
	golden.Compare(t, "testdata/state.json", golden.JSON(t, state{Format: StateFormat, Agreed: agreed, RegisteredAgo: time.Hour,
		Plugin: json.RawMessage("{}")}))
	for left, want := range map[string]string{
		"":             "unexpected end of JSON input",
		"null":         fmt.Sprintf("the state has format 0, but this version reads format %d", StateFormat),
		`{"format":1}`: fmt.Sprintf("the state has format 1, but this version reads format %d", StateFormat),
		fmt.Sprintf(`{"format":%d,"agreed":"x"}`, StateFormat): "cannot unmarshal",
	} {
		if _, err := decode(json.RawMessage(left)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", left, err, want)
		}
	}
}

// If a runtime drops a plugin soon after it was registered, the plugin waits longer and longer before it registers
// again. It does not wait for a runtime that has just started.
func TestBackoffs(t *testing.T) {
	p := newBackoffs()
	drop, early := &droppedError{time.Minute}, fmt.Errorf("x: %w", errEarly)
	if got := p.delayAfter(drop); got != 0 {
		t.Errorf("the first drop: %s", got)
	}
	last := time.Duration(0)
	for i := range 10 {
		got := p.delayAfter(drop)
		if want := dropAgain << i / 2; got < min(want, registerRarely/3) || got > registerRarely {
			t.Errorf("drop %d: %s, want about %s", i+2, got, 2*want)
		}
		last = got
	}
	if last < registerRarely/3 {
		t.Errorf("the last drop: %s", last)
	}
	if got := p.delayAfter(&droppedError{stable}); got != 0 {
		t.Errorf("a drop after a long time: %s", got)
	}
	proven := func() error { return &unlistedError{proven: true} }
	for i, test := range []struct {
		err    error
		paused bool
	}{
		{proven(), false}, {drop, false}, {proven(), false}, {early, false}, {&unlistedError{}, false}, {proven(), true},
		{&unlistedError{}, false}, {proven(), true}, {drop, false}, {proven(), false},
	} {
		if got := p.delayAfter(test.err); (got == pauseFor) != test.paused {
			t.Errorf("end %d, %v: %s, want a pause: %t", i, test.err, got, test.paused)
		}
	}
}
