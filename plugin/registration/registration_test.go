// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/sirupsen/logrus"

	"github.com/rdma-spec/rdma-spec/plugin/nritest"
	"github.com/rdma-spec/rdma-spec/plugin/registration/handover/handovertest"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/chance"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/output"
	"github.com/rdma-spec/rdma-spec/test/testing/race"
)

func TestMain(m *testing.M) {
	logrus.SetLevel(logrus.PanicLevel) // hides ttrpc's own messages about connections that tests cut
	os.Exit(m.Run())
}

// adjuster is a plugin that adds an environment variable to every container. Its functions, if set, can delay it.
type adjuster struct {
	refuses    error
	configured func() // called in Configure
	before     func() // called before each answer
	knows      string // the state that it hands over
	foreign    error  // the error from Restore
	subscribes api.EventMask
}

func (a *adjuster) Configure(ctx context.Context, _, _, _ string) (api.EventMask, error) {
	if a.configured != nil {
		a.configured()
	}
	return cmp.Or(a.subscribes, api.EventMask(1<<(api.Event_CREATE_CONTAINER-1))), errors.Join(ctx.Err(), a.refuses)
}

func (*adjuster) Synchronize(context.Context, []*api.PodSandbox, []*api.Container) ([]*api.ContainerUpdate, error) {
	return nil, nil
}

func (*adjuster) Connected(int) {}

func (*adjuster) Reads() Reads { return Reads{} }

func (a *adjuster) State() (json.RawMessage, error) { return json.Marshal(a.knows) }

func (a *adjuster) Restore(left json.RawMessage) (func(), error) {
	var knows string
	err := json.Unmarshal(left, &knows)
	return func() { a.knows = knows }, errors.Join(err, a.foreign)
}

func (a *adjuster) CreateContainer(context.Context, *api.PodSandbox, *api.Container) (*api.ContainerAdjustment,
	[]*api.ContainerUpdate, error) {
	if a.before != nil {
		a.before()
	}
	adjustment := &api.ContainerAdjustment{}
	adjustment.AddEnv("ADJUSTED", strings.Repeat("x", 8<<10)) // more than ttrpc writes at once
	return adjustment, nil, nil
}

// running is a registration that runs until stop is called.
type running struct {
	*Registration
	log  *output.Buffer
	end  context.CancelFunc
	over chan error
}

// run keeps a plugin registered until the test ends.
func run(t *testing.T, p Plugin, socket, name string, options ...func(*running)) *running {
	t.Helper()
	r := &running{log: &output.Buffer{}, over: make(chan error, 1)}
	log := logrus.New()
	log.SetOutput(r.log)
	r.Registration = New(p, Options{Name: name, Index: "90", Socket: socket, Log: log})
	r.blocked = time.Second
	for _, option := range options {
		option(r)
	}
	ctx, end := context.WithCancel(context.Background())
	r.end = end
	go func() {
		r.over <- r.Run(ctx)
		close(r.over)
	}()
	t.Cleanup(func() {
		if r.stop(t); t.Failed() {
			t.Logf("a plugin's log:\n%s", r.log.String())
		}
	})
	return r
}

// registered keeps a plugin registered, and waits until the runtime calls it for each container.
func registered(t *testing.T, p Plugin, runtime *nritest.Runtime, options ...func(*running)) *running {
	t.Helper()
	r := run(t, p, runtime.Socket, "rdma", options...)
	await.That(t, await.Timeout, "registered", func() bool { return r.Registered() && runtime.Synchronised() > 0 })
	return r
}

// waiting starts a process that waits behind a registered one.
func waiting(t *testing.T, p Plugin, runtime *nritest.Runtime, options ...func(*running)) *running {
	t.Helper()
	r := run(t, p, runtime.Socket, "rdma", options...)
	await.That(t, await.Timeout, "waiting", r.Behind)
	return r
}

// meetIn makes processes use this handover directory.
func meetIn(dir string) func(*running) { return func(r *running) { r.Handover = dir } }

// stop ends the registration, and waits until it has ended.
func (r *running) stop(t *testing.T) {
	t.Helper()
	r.end()
	if err := await.Receive(t, await.Timeout, "the end", r.over); err != nil {
		t.Errorf("Run: %v", err)
	}
}

// awaitLine waits until the log contains these words.
func (r *running) awaitLine(t *testing.T, words string) {
	t.Helper()
	await.That(t, await.Timeout, "said: "+words, func() bool { return strings.Contains(r.log.String(), words) })
}

// started returns a runtime that listens.
func started(t *testing.T) *nritest.Runtime {
	t.Helper()
	runtime := nritest.New(t, "containerd", "v2.4.2")
	runtime.Start(t)
	return runtime
}

// created is the result of a container's creation.
type created struct {
	*api.ContainerAdjustment
	error
}

// create makes a runtime create a container in the background.
func create(t *testing.T, runtime *nritest.Runtime) <-chan created {
	done := make(chan created, 1)
	go func() {
		got, err := runtime.Create(t.Context(), &api.PodSandbox{Id: "pod"}, &api.Container{Id: "container"})
		done <- created{got, err}
	}()
	return done
}

// A runtime may come late, with its directory, and come back: each time the plugin is registered soon.
func TestRun_RuntimeComesBack(t *testing.T) {
	runtime := nritest.New(t, "containerd", "v2.4.2")
	dir := filepath.Join(filepath.Dir(runtime.Socket), "var/run/nri")
	runtime.Socket = filepath.Join(dir, "nri.sock")
	r := run(t, &adjuster{}, runtime.Socket, "rdma")
	r.awaitLine(t, "no NRI socket")
	must.Succeed(t, os.MkdirAll(dir, 0o700))
	runtime.Start(t)
	await.That(t, registerRarely/2, "registered", r.Registered)
	if n := strings.Count(r.log.String(), "no NRI socket"); n != 1 {
		t.Errorf("the log says %d times that there is no socket, want once:\n%s", n, r.log)
	}
	var before time.Time
	for i := range 10 {
		await.That(t, registerRarely/2, fmt.Sprintf("registered %d times", i+1),
			func() bool { return runtime.Synchronised() == i+1 && r.Registered() })
		runtime.Stop()
		await.That(t, await.Timeout, "not registered", func() bool { return !r.Registered() })
		before = time.Now()
		runtime.Start(t)
	}
	await.That(t, registerRarely/2, "registered", r.Registered)
	if when := r.When(); when.Before(before) || when.After(time.Now()) {
		t.Errorf("registered at %s, want after %s", when, before)
	}
	if n := strings.Count(r.log.String(), "the runtime closed the connection: reconnecting"); n != 10 {
		t.Errorf("the log has %d of 10 ends:\n%s", n, r.log)
	}
}

// While a container is being stopped, the runtime registers no plugin (containerd#14083). Afterwards, it registers one
// after another. A plugin and a validator that start meanwhile wait on one connection each, and are registered as soon
// as the runtime continues.
func TestRun_RuntimeStopsAContainer(t *testing.T) {
	runtime := started(t)
	resume := runtime.StopContainer()
	plugins := []*running{run(t, &adjuster{}, runtime.Socket, "rdma"),
		run(t, &adjuster{}, runtime.Socket, "rdma-validator")}
	for _, p := range plugins {
		await.That(t, await.Timeout, p.Name+" has waited longer than NRI's stub",
			func() bool { return p.Unregistered() > 6*time.Second })
		if !strings.Contains(p.log.String(),
			"connected for 1s, but not yet registered: the runtime is waiting for containers to stop") {
			t.Errorf("the log of %s does not say what it waits for:\n%s", p.Name, p.log)
		}
	}
	resume()
	resumed := time.Now()
	for _, p := range plugins {
		await.That(t, await.Timeout, p.Name+" is registered", p.Registered)
		if p.Unregistered() != 0 {
			t.Errorf("%s is registered, and not for %s", p.Name, p.Unregistered())
		}
	}
	if took := time.Since(resumed); took > 3*time.Second {
		t.Errorf("both are registered %s after the runtime went on, want moments, or 3 s on a busy machine", took)
	}
	if n := runtime.Connections(); n != 2 {
		t.Errorf("%d connections for two plugins", n)
	}
}

// The plugin's answer reaches the runtime even if the plugin is told to end in the meantime.
func TestRun_LosesNoAnswer(t *testing.T) {
	runtime, random := started(t), chance.New(t)
	const ends = 200
	delivered := 0
	for i := range ends {
		asked, given := make(chan struct{}), atomic.Bool{}
		delay := time.Duration(random.Int64N(int64(time.Millisecond)))
		if i%50 == 0 {
			delay = 3 * handOn // otherwise, waiting for handOn would be enough
		}
		r := registered(t, &adjuster{before: func() {
			close(asked)
			<-time.After(delay)
			given.Store(true)
		}}, runtime)
		answers := create(t, runtime)
		await.Receive(t, await.Timeout, "the request", asked)
		r.stop(t)
		got := await.Receive(t, await.Timeout, "the runtime's answer", answers)
		if got.error != nil {
			t.Fatal(got.error)
		}
		if given.Load() != (len(got.GetEnv()) == 1) {
			t.Fatalf("end %d: the plugin has answered: %t; the runtime has %d adjustments", i, given.Load(), len(got.GetEnv()))
		}
		if given.Load() {
			delivered++
		}
	}
	if delivered < ends {
		t.Errorf("%d of %d requests were answered before the end, want all: Run waits for them", delivered, ends)
	}
}

// When the program ends, it waits until the runtime has read its answers, but does not wait for a runtime that reads
// nothing.
func TestDelivered(t *testing.T) {
	for name, test := range map[string]struct{ reads, least time.Duration }{
		"slow": {readWithin / 2, readWithin/2 + handOn}, "never": {0, readWithin + handOn},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			socket, runtime := handovertest.Pair(t)
			c := newConn(socket)
			began := time.Now()
			if _, err := c.Write(make([]byte, 1000)); err != nil {
				t.Fatal(err)
			}
			if test.reads > 0 {
				time.AfterFunc(test.reads, func() { _, _ = runtime.Read(make([]byte, 1000)) })
			}
			c.awaitDelivery()
			if took := time.Since(began); took < test.least {
				t.Errorf("it takes %s, want %s at least", took, test.least)
			}
		})
	}
}

// A request that is never answered does not prevent the program from ending, because the runtime no longer waits for
// the answer either.
func TestRun_RequestHangs(t *testing.T) {
	nritest.LosePatience(t)
	runtime := started(t)
	asked, goOn := make(chan struct{}), make(chan struct{})
	r := registered(t, &adjuster{before: func() {
		close(asked)
		<-goOn
	}}, runtime)
	answers := create(t, runtime)
	await.Receive(t, await.Timeout, "the request", asked)
	start := time.Now()
	r.stop(t)
	if took := time.Since(start); took > mostEnd/2 {
		t.Errorf("it ended after %s, want %s at most: a runtime waits 2 s for an answer", took, mostEnd/2)
	}
	close(goOn)
	if got := await.Receive(t, await.Timeout, "the runtime goes on without the plugin", answers); got.error != nil {
		t.Errorf("creation: %v", got.error)
	}
}

func TestWaiting(t *testing.T) {
	runtime := started(t)
	goOn := make(chan struct{})
	r := registered(t, &adjuster{before: func() { <-goOn }}, runtime)
	await.That(t, await.Timeout, "the runtime has its answers", func() bool { return r.Waiting() == 0 })
	answers := create(t, runtime)
	await.That(t, await.Timeout, "the runtime waits", func() bool { return r.Waiting() > 20*time.Millisecond })
	close(goOn)
	if got := await.Receive(t, await.Timeout, "the creation", answers); got.error != nil {
		t.Error(got.error)
	}
	await.That(t, await.Timeout, "the runtime waits no longer", func() bool { return r.Waiting() == 0 })
}

func TestRun_RefusesRuntime(t *testing.T) {
	race.SkipHangUp(t)
	runtime := started(t)
	r := run(t, &adjuster{refuses: errors.New("too old")}, runtime.Socket, "rdma")
	await.That(t, await.Timeout, "tried three times", func() bool { return runtime.Connections() >= 3 })
	if n := strings.Count(r.log.String(), "not registered: too old"); n != 1 || r.Registered() {
		t.Errorf("registered: %t; the log says %d times why:\n%s", r.Registered(), n, r.log)
	}
}

// If a runtime closes the connection twice before it has listed its containers, the plugin pauses. Such a runtime does
// not know an event (CRI-O as of May 2025, whose version number is already 1.34.0), has containers that it cannot list,
// or crashes.
func TestRun_RuntimeHangsUp(t *testing.T) {
	runtime := nritest.New(t, "cri-o", "1.34.0")
	runtime.HangUp()
	runtime.Start(t)
	r := run(t, &adjuster{}, runtime.Socket, "rdma")
	await.That(t, await.Timeout, "paused", r.Paused)
	const says = "not registered after 2 attempts in a row: the runtime closed the connection before listing its containers. " +
		"For the cause, see the runtime's log"
	if !strings.Contains(r.log.String(), says) {
		t.Errorf("the log does not say %q:\n%s", says, r.log)
	}
	runtime.Stop() // as if it had crashed because of the plugin, and restarted
	runtime.Start(t)
	if n := runtime.Connections(); n != 0 || !r.Paused() {
		t.Errorf("%d connections to the runtime that has come back, paused: %t", n, r.Paused())
	}
}

// A runtime that restarts several times while it stops a container, as during a drain or with the toolkit's installer,
// does not refuse the plugin. The plugin is registered as soon as the runtime continues.
func TestRun_RestartsBesideAStop(t *testing.T) {
	runtime := nritest.New(t, "containerd", "v2.4.2")
	r := run(t, &adjuster{}, runtime.Socket, "rdma")
	for i := range 3 {
		runtime.Start(t)
		goOn := runtime.StopContainer()
		await.That(t, await.Timeout, "registering",
			func() bool { return strings.Count(r.log.String(), "msg=registering") > i })
		runtime.Stop()
		goOn()
		await.That(t, await.Timeout, "the end", func() bool { return r.Unregistered() == 0 })
	}
	runtime.Start(t)
	await.That(t, registerRarely, "registered", r.Registered)
}

// A runtime cannot list four containers that do not fit into one NRI message. The plugin does not make it try again and
// again.
func TestRun_UnlistedContainers(t *testing.T) {
	runtime, environment := nritest.New(t, "containerd", "v2.4.2"), []string{strings.Repeat("x", 1400<<10)}
	var existing []*api.Container
	for i := range 30 {
		existing = append(existing, &api.Container{Id: fmt.Sprint(i), PodSandboxId: fmt.Sprint("pod-", i), Env: environment})
	}
	runtime.SetExisting(existing)
	runtime.Start(t)
	r := run(t, &adjuster{}, runtime.Socket, "rdma")
	await.That(t, await.Timeout, "paused", r.Paused)
	if n := strings.Count(r.log.String(), "msg=registering"); n != unlistedEnough {
		t.Errorf("%d registrations were tried, want %d", n, unlistedEnough)
	}
	if !strings.Contains(r.log.String(), "the environment, arguments, and annotations of four containers together might exceed NRI's message size limit of 4 MiB") {
		t.Errorf("the log does not say why:\n%s", r.log)
	}
}

// If a runtime accepts the registration and closes the connection before Configure, NRI's stub would wait forever. The
// plugin recovers at once.
func TestRun_ClosedWhileRegistering(t *testing.T) {
	socket := filepath.Join(filepath.Dir(nritest.New(t, "", "").Socket), "half.sock")
	listener, err := net.Listen("unix", socket)
	must.Succeed(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			answerRegistration(conn) // send nothing more, and close the connection
			_ = conn.Close()
		}
	}()
	r := New(&adjuster{}, Options{Name: "rdma", Index: "90", Log: quiet()})
	for range 20 {
		conn, err := net.Dial("unix", socket)
		must.Succeed(t, err)
		done := make(chan error, 1)
		go func() { done <- r.serve(t.Context(), conn.(*net.UnixConn), nil) }()
		if err := await.Receive(t, await.Timeout, "the end of the connection", done); !errors.Is(err, errEarly) ||
			strings.Contains(err.Error(), "%!") {
			t.Fatalf("the connection ended with %v, want %v", err, errEarly)
		}
	}
}

// answerRegistration reads a registration and responds like the runtime's ttrpc: with an empty response to stream 1, on
// the logical connection of the runtime's service.
func answerRegistration(conn net.Conn) {
	_, _ = conn.Read(make([]byte, 8))
	_, _ = conn.Read(make([]byte, 4096))
	_, _ = conn.Write([]byte{0, 0, 0, 2, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0})
}

// Messages are counted correctly, in whatever pieces the bytes arrive.
func TestMessages(t *testing.T) {
	random := chance.New(t)
	message := func(payload int) []byte {
		m := make([]byte, 10+payload)
		m[2], m[3], m[8] = byte(payload>>8), byte(payload), 2
		return m
	}
	frame := func(conn byte, payload []byte) []byte {
		return append([]byte{0, 0, 0, conn, 0, 0, byte(len(payload) >> 8), byte(len(payload))}, payload...)
	}
	var text []byte
	const count = 300
	for range count {
		text = append(text, frame(2, message(random.IntN(100)))...) // messages of the runtime's service are not counted
		m := message(random.IntN(3) * 2500)
		cut := random.IntN(len(m))
		text = append(append(text, frame(1, m[:cut])...), frame(1, m[cut:])...)
	}
	for _, most := range []int{1, 7, 5000} {
		var got messages
		for rest := text; len(rest) > 0; {
			n := min(1+random.IntN(most), len(rest))
			got.add(rest[:n])
			rest = rest[n:]
		}
		if got.complete != count {
			t.Errorf("in pieces of at most %d bytes: %d messages, want %d", most, got.complete, count)
		}
	}
}

func quiet() *logrus.Logger {
	log := logrus.New()
	log.SetOutput(io.Discard)
	return log
}

// A program that ends waits for responses as long as the runtime does, but less than systemd and the kubelet wait for
// the program.
func TestEndWithin(t *testing.T) {
	for timeout, want := range map[time.Duration]time.Duration{
		0: 2 * time.Second, 300 * time.Millisecond: 300 * time.Millisecond, 10 * time.Second: 10 * time.Second, time.Hour: mostEnd,
	} {
		r := New(nil, Options{})
		if timeout > 0 {
			r.requestTimeout.Store(int64(timeout))
		}
		if got := r.endWithin(); got != want {
			t.Errorf("a runtime that waits for %s: %s, want %s", timeout, got, want)
		}
	}
}
