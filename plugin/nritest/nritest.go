// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nritest is a container runtime's side of NRI for tests, in process: NRI's own code for runtimes
// (pkg/adaptation), which containerd and CRI-O run, behind a real socket.
package nritest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	nrilog "github.com/containerd/nri/pkg/log"
	"google.golang.org/protobuf/proto"

	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
	"github.com/rdma-spec/rdma-spec/test/testing/socketproxy"
)

func init() {
	nrilog.Set(silent{})
	adaptation.SetPluginRequestTimeout(await.Timeout)
}

// LosePatience has runtimes wait for a plugin's answer as long as they do outside of tests, which is two seconds, until
// the test ends. Else they wait a minute: a busy machine has a plugin take longer.
func LosePatience(t testing.TB) {
	t.Helper()
	SetPatience(t, adaptation.DefaultPluginRequestTimeout)
}

// SetPatience has runtimes wait so long for a plugin's answer, until the test ends.
func SetPatience(t testing.TB, patience time.Duration) {
	t.Helper()
	adaptation.SetPluginRequestTimeout(patience)
	t.Cleanup(func() { adaptation.SetPluginRequestTimeout(await.Timeout) })
}

// Runtime is a runtime that plugins can register with.
type Runtime struct {
	Socket string

	name, version string
	request       sync.Mutex // containerd and CRI-O work on one request of theirs or of a plugin's at a time
	mu            sync.Mutex
	proxy         *socketproxy.Proxy
	nri           *adaptation.Adaptation
	existing      []*api.Container
	annotations   map[string]string
	synchronised  atomic.Int64
	took          atomic.Int64 // nanoseconds
	starting      atomic.Bool
	launches      string // the directory of the plugins that it launches
	hangsUp       atomic.Bool
	stores        func(*api.Container, *api.ContainerAdjustment)
}

// New makes a runtime with a socket in a directory of its own. It is not started.
func New(t testing.TB, name, version string) *Runtime {
	t.Helper()
	dir := scratch.Dir(t)
	r := &Runtime{Socket: filepath.Join(dir, "nri.sock"), name: name, version: version,
		launches: filepath.Join(dir, "plugins")}
	t.Cleanup(r.Stop)
	return r
}

// SetExisting gives the containers that plugins are told of when they register.
func (r *Runtime) SetExisting(containers []*api.Container) { r.existing = containers }

// Annotate gives the annotations of the pods of those containers.
func (r *Runtime) Annotate(annotations map[string]string) { r.annotations = annotations }

// Launch has the runtime launch a program as a plugin when it starts, "90-rdma", and hand a configuration over to it.
func (r *Runtime) Launch(t testing.TB, program, config string) {
	t.Helper()
	err := errors.Join(os.MkdirAll(r.launches+"/conf.d", 0o755), os.Symlink(program, r.launches+"/90-rdma"),
		os.WriteFile(r.launches+"/conf.d/90-rdma.conf", []byte(config), 0o644))
	if err != nil {
		t.Fatal(err)
	}
}

// HangUp has the runtime hang up on every plugin that has said which events it wants, as one does that does not know
// them.
func (r *Runtime) HangUp() { r.hangsUp.Store(true) }

// Stores has a function change a container that is created, between CreateContainer and PostCreateContainer, as a
// runtime does that resolves CDI names and stores the container. NRI itself has put the adjustment into it, CDI names
// aside.
func (r *Runtime) Stores(change func(*api.Container, *api.ContainerAdjustment)) { r.stores = change }

// Start listens for plugins.
func (r *Runtime) Start(t testing.TB) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	nri, err := adaptation.New(r.name, r.version, r.synchronise, r.update,
		adaptation.WithSocketPath(r.inner()), adaptation.WithPluginPath(r.launches),
		adaptation.WithPluginConfigPath(r.launches+"/conf.d"))
	if err != nil {
		t.Fatal(err)
	}
	r.starting.Store(true) // NRI synchronises once by itself, with the plugins that it has started: none
	if err := nri.Start(); err != nil {
		t.Fatal(err)
	}
	r.starting.Store(false)
	r.nri = nri
	r.proxy = socketproxy.At(t, r.Socket, r.inner())
}

// Stop closes the socket and all connections, as a runtime does that ends.
func (r *Runtime) Stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.nri != nil {
		r.proxy.Close()
		r.nri.Stop()
		r.nri = nil
	}
}

// StopContainer has the runtime stop a container: it takes no plugin in until goOn is called.
func (r *Runtime) StopContainer() (goOn func()) {
	r.mu.Lock()
	nri := r.nri
	r.mu.Unlock()
	return nri.BlockPluginSync().Unblock
}

// Connections gives how many connections plugins have made since the runtime was started.
func (r *Runtime) Connections() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.proxy.Accepted()
}

// Unproxied is a socket that leads to NRI itself, for plugins that are measured: what connects there outlives Stop.
func (r *Runtime) Unproxied() string { return r.inner() }

// inner is where NRI listens. Plugins reach it through a proxy, since NRI leaves the connections to the end of the
// process.
func (r *Runtime) inner() string { return r.Socket + ".inner" }

func (r *Runtime) synchronise(ctx context.Context, plugin adaptation.SyncCB) error {
	pods := make([]*api.PodSandbox, 0, len(r.existing))
	for _, c := range r.existing {
		pods = append(pods, &api.PodSandbox{Id: c.GetPodSandboxId(), Name: c.GetPodSandboxId(), Namespace: "default",
			Annotations: r.annotations})
	}
	if r.hangsUp.Load() && !r.starting.Load() {
		return errors.New("the runtime hangs up")
	}
	began := time.Now()
	_, err := plugin(ctx, pods, r.existing)
	r.took.Store(int64(time.Since(began)))
	if err == nil && !r.starting.Load() {
		r.synchronised.Add(1)
	}
	return err
}

// Synchronised gives how often a plugin was taken in. Those that it counts are asked about every container from then
// on.
func (r *Runtime) Synchronised() int {
	n := int(r.synchronised.Load())
	r.mu.Lock()
	nri := r.nri
	r.mu.Unlock()
	if nri != nil {
		// NRI lists a plugin after it has told it of the existing containers; this waits until it has.
		nri.BlockPluginSync().Unblock()
	}
	return n
}

// Took gives how long it took to tell the last plugin of the existing containers.
func (r *Runtime) Took() time.Duration { return time.Duration(r.took.Load()) }

// Create creates a container as far as NRI is concerned: CreateContainer, and PostCreateContainer if that went well.
func (r *Runtime) Create(ctx context.Context, pod *api.PodSandbox,
	ctr *api.Container) (*api.ContainerAdjustment, error) {
	return r.CreateInPlace(ctx, pod, proto.Clone(ctr).(*api.Container))
}

// CreateInPlace is Create for a container that nobody needs again: NRI writes into it what plugins adjust.
func (r *Runtime) CreateInPlace(ctx context.Context, pod *api.PodSandbox,
	ctr *api.Container) (*api.ContainerAdjustment, error) {
	r.mu.Lock()
	nri := r.nri
	r.mu.Unlock()
	if nri == nil {
		return nil, fmt.Errorf("the runtime does not run")
	}
	defer nri.BlockPluginSync().Unblock() // as containerd does: it waits for a plugin that is being taken in
	r.request.Lock()
	answer, err := nri.CreateContainer(ctx, &api.CreateContainerRequest{Pod: pod, Container: ctr})
	r.request.Unlock()
	if err != nil {
		return nil, err
	}
	if r.stores != nil {
		r.stores(ctr, answer.GetAdjust())
	}
	r.request.Lock()
	defer r.request.Unlock()
	return answer.GetAdjust(), nri.PostCreateContainer(ctx, &api.PostCreateContainerRequest{Pod: pod, Container: ctr})
}

// update is what a plugin asks for between the runtime's requests: nothing happens.
func (r *Runtime) update(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) {
	r.request.Lock()
	defer r.request.Unlock()
	return nil, nil
}

// silent keeps NRI's own words out of test logs.
type silent struct{}

func (silent) Debugf(context.Context, string, ...any) {}
func (silent) Infof(context.Context, string, ...any)  {}
func (silent) Warnf(context.Context, string, ...any)  {}
func (silent) Errorf(context.Context, string, ...any) {}
