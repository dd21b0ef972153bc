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

// registeredLongAgo has a process believe that.
func (r *running) registeredLongAgo() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.when = time.Now().Add(-longAgo)
}

// load has a runtime create containers, four at a time, until stop. Each must meet the plugin.
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

// Processes that replace each other under load leave the connection to each other, and what they know: the runtime sees
// one plugin that never goes away.
func TestHandover(t *testing.T) {
	runtime, dir := started(t), scratch.Dir(t)
	process := registered(t, &adjuster{knows: "first"}, runtime, in(dir))
	process.registeredLongAgo()
	stop := load(t, runtime)
	const handovers = 20
	for i := range handovers {
		p := &adjuster{}
		next := waiting(t, p, runtime, in(dir))
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

// A process is ready behind another one only while that is registered. When the runtime restarts, it goes on waiting.
func TestBehind_RegisteredOnly(t *testing.T) {
	runtime, dir := nritest.New(t, "containerd", "v2.4.2"), scratch.Dir(t)
	first := run(t, &adjuster{}, runtime.Socket, "rdma", in(dir))
	first.awaitLine(t, "no NRI socket")
	second := run(t, &adjuster{}, runtime.Socket, "rdma", in(dir))
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

// A process that needs something else of the runtime than the one before registers beside it.
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
			registered(t, &adjuster{}, runtime, in(dir), mine)
			second := registered(t, &adjuster{}, runtime, in(dir), mine, change)
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

// A process of a chart that does not say what it belongs to, or of a version that does not, takes over and is taken
// over from.
func TestJoin_UnknownDeployment(t *testing.T) {
	says := func(r *running) { r.Deployment = "DaemonSet.rdma-spec.nri-rdma" }
	silent := func(*running) {}
	runtime, dir := started(t), scratch.Dir(t)
	process := registered(t, &adjuster{}, runtime, in(dir), silent)
	for _, option := range []func(*running){says, says, silent} {
		next := waiting(t, &adjuster{}, runtime, in(dir), option)
		process.stop(t)
		await.That(t, await.Timeout, "serving", next.Registered)
		process = next
	}
	if n := runtime.Connections(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// A process that backs off leaves a free lock to any other one, and waits behind it. Where nobody comes, it takes the
// lock after a while, or once it no longer backs off.
func TestBackOff(t *testing.T) {
	var backsOff atomic.Bool
	backsOff.Store(true)
	modest := func(r *running) { r.BacksOff, r.backOffFor = backsOff.Load, time.Hour }
	runtime, dir := started(t), scratch.Dir(t)
	first := run(t, &adjuster{}, runtime.Socket, "rdma", in(dir), modest)
	first.awaitLine(t, "not registering for 1h0m0s, so that another process can")
	second := registered(t, &adjuster{}, runtime, in(dir))
	await.That(t, await.Timeout, "waiting behind it", first.Behind)
	second.stop(t)
	await.That(t, await.Timeout, "given the connection, and taking it", first.Registered)
	third := run(t, &adjuster{}, runtime.Socket, "other", in(dir), func(r *running) { r.BacksOff, r.backOffFor = backsOff.Load, time.Second })
	await.That(t, await.Timeout, "registered after a while", third.Registered)
	if n := runtime.Connections(); n != 2 || !strings.Contains(third.log.String(), "not registering for ") {
		t.Errorf("%d connections; the log:\n%s", n, third.log)
	}
	first.stop(t)
	fourth := run(t, &adjuster{}, runtime.Socket, "rdma", in(dir), modest)
	fourth.awaitLine(t, "not registering for ")
	backsOff.Store(false)
	await.That(t, await.Timeout, "registered once it no longer backs off", fourth.Registered)
}

// A process that ends with nobody behind it ends the connection, and one that waits behind a process that is killed
// registers: nothing was left to it.
func TestJoin_NothingLeft(t *testing.T) {
	runtime, dir := started(t), scratch.Dir(t)
	first := registered(t, &adjuster{knows: "first"}, runtime, in(dir))
	first.stop(t)
	second := registered(t, &adjuster{knows: "second"}, runtime, in(dir))
	p := &adjuster{}
	third := waiting(t, p, runtime, in(dir))
	second.mu.Lock()
	owner := second.owner
	second.owner = nil // so that it leaves nothing
	second.mu.Unlock()
	second.stop(t)
	if third.Registered() {
		t.Error("registered beside a process that has the lock")
	}
	owner.Close() // as the kernel does for a process that is killed
	await.That(t, await.Timeout, "registered again", func() bool {
		return third.Registered() && runtime.Synchronised() == 3
	})
	if n := runtime.Connections(); n != 3 || p.knows != "" {
		t.Errorf("%d connections of three processes, and the third one was left %q", n, p.knows)
	}
}

// Two runtimes on a node have a plugin each, also where both meet in one directory: neither takes the other's
// connection.
func TestJoin_TwoRuntimes(t *testing.T) {
	a, b, dir := started(t), started(t), scratch.Dir(t)
	first := registered(t, &adjuster{}, a, in(dir))
	second := run(t, &adjuster{}, b.Socket, "rdma", in(dir))
	await.That(t, await.Timeout, "registered with its own runtime", func() bool { return b.Synchronised() == 1 })
	first.stop(t)
	if n, m := a.Connections(), b.Connections(); n != 1 || m != 1 || !second.Registered() {
		t.Errorf("%d and %d connections, the second process is registered: %t", n, m, second.Registered())
	}
}

// If no other process can take over the connection, the log says what follows from that, and mentions no other process.
func TestJoin_NoLock(t *testing.T) {
	runtime := started(t)
	r := registered(t, &adjuster{}, runtime, in(filepath.Join(os.DevNull, "none")))
	if log := r.log.String(); !strings.Contains(log, "no other process can take over the connection of this one, "+
		"so the plugin reregisters during an upgrade") ||
		strings.Contains(log, "beside") {
		t.Errorf("the log:\n%s", log)
	}
}

// A process that the runtime or itself does not let register leaves its lock to the one that waits, which may fare
// better, and waits behind that.
func TestRelease(t *testing.T) {
	for name, test := range map[string]struct {
		hangsUp bool
		first   adjuster
		why     string
	}{
		"refused": {false, adjuster{refuses: errors.New("too old a runtime")}, "too old a runtime"},
		"paused":  {true, adjuster{}, "the runtime closed the connection before it listed its containers"},
	} {
		t.Run(name, func(t *testing.T) {
			runtime, dir := nritest.New(t, "containerd", "v2.4.2"), scratch.Dir(t)
			first := run(t, &test.first, runtime.Socket, "rdma", in(dir))
			first.awaitLine(t, "no NRI socket")
			second := run(t, &adjuster{}, runtime.Socket, "rdma", in(dir))
			second.awaitLine(t, "waiting behind a process that is not registered")
			if test.hangsUp {
				runtime.HangUp()
			}
			runtime.Start(t)
			second.awaitLine(t, "the previous process makes way for this one: "+test.why)
			if test.hangsUp { // the second one tries, and finds the same
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

// take gives what systemd keeps to the next process.
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

// A service's processes leave the connection to each other by way of systemd, also where one is told to end before it
// serves. Where the service is stopped, systemd ends the connection with the process, so that lives until the runtime
// has handed its last answer on.
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

// A state that the next process does not understand ends the connection: that process registers, and never begins with
// an empty record behind a connection that the runtime lists nothing over.
func TestRestore_OtherFormat(t *testing.T) {
	const says = "cannot take over the previous process's connection: registering when that process exits"
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
		first := registered(t, &adjuster{knows: "first"}, runtime, in(dir))
		p := &adjuster{foreign: errors.New("format 7")}
		second := waiting(t, p, runtime, in(dir))
		first.stop(t)
		expect(t, runtime, second, p)
		if n := runtime.Connections(); n != 2 {
			t.Errorf("%d connections of two processes", n)
		}
		waiting(t, &adjuster{}, runtime, in(dir))
	})
	t.Run("a service", func(t *testing.T) {
		runtime, manager := started(t), handovertest.Start(t)
		first := registered(t, &adjuster{knows: "first"}, runtime)
		first.stop(t)
		p := &adjuster{foreign: errors.New("format 7")}
		expect(t, runtime, run(t, p, runtime.Socket, "rdma", func(r *running) { take(t, manager, r.Registration) }), p)
	})
}

// TestStateFormat: what is handed over has a format, with a number: a process that reads another one does not go on
// with it.
func TestStateFormat(t *testing.T) {
	agreed := agreement{Socket: "/run/nri/nri.sock", Index: "90", Config: "memlock: unlimited", Runtime: "containerd", Version: "v2.4.2",
		RequestTimeout: 2 * time.Second, Events: 8, KeepConnected: true}
	golden.Compare(t, "testdata/state.json", golden.JSON(t, state{Format: StateFormat, Agreed: agreed, RegisteredAgo: time.Hour,
		Plugin: json.RawMessage("{}")}))
	for left, want := range map[string]string{
		"":             "unexpected end of JSON input",
		"null":         fmt.Sprintf("it has format 0, and this version reads format %d", StateFormat),
		`{"format":1}`: fmt.Sprintf("it has format 1, and this version reads format %d", StateFormat),
		fmt.Sprintf(`{"format":%d,"agreed":"x"}`, StateFormat): "cannot unmarshal",
	} {
		if _, err := decode(json.RawMessage(left)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", left, err, want)
		}
	}
}

// A runtime that drops a plugin that was registered for a short time is left in peace longer and longer, and one that
// starts is not.
func TestBackoffs(t *testing.T) {
	p := newBackoffs()
	drop, early := &droppedError{time.Minute}, fmt.Errorf("x: %w", errEarly)
	if got := p.after(drop); got != 0 {
		t.Errorf("the first drop: %s", got)
	}
	last := time.Duration(0)
	for i := range 10 {
		got := p.after(drop)
		if want := dropAgain << i / 2; got < min(want, registerRarely/3) || got > registerRarely {
			t.Errorf("drop %d: %s, want about %s", i+2, got, 2*want)
		}
		last = got
	}
	if last < registerRarely/3 {
		t.Errorf("the last drop: %s", last)
	}
	if got := p.after(&droppedError{stable}); got != 0 {
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
		if got := p.after(test.err); (got == pauseFor) != test.paused {
			t.Errorf("end %d, %v: %s, want a pause: %t", i, test.err, got, test.paused)
		}
	}
}
