// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nritest provides a container runtime's side of NRI for tests, in the test's process. The package runs NRI's
// own code for runtimes (pkg/adaptation), which containerd and CRI-O use, behind a real socket. The package creates no
// real containers.
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

// LosePatience sets the runtimes' request timeout to NRI's default, two seconds, until the test ends. In other tests,
// the timeout is a minute, since a plugin can take longer on a busy machine.
func LosePatience(t testing.TB) {
	t.Helper()
	SetPatience(t, adaptation.DefaultPluginRequestTimeout)
}

// SetPatience sets the runtimes' request timeout until the test ends.
func SetPatience(t testing.TB, patience time.Duration) {
	t.Helper()
	adaptation.SetPluginRequestTimeout(patience)
	t.Cleanup(func() { adaptation.SetPluginRequestTimeout(await.Timeout) })
}

// Runtime is a runtime with which plugins can register.
type Runtime struct {
	Socket string

	name, version string
	request       sync.Mutex // like containerd and CRI-O, the runtime handles one request at a time, its own or a plugin's
	mu            sync.Mutex
	proxy         *socketproxy.Proxy
	nri           *adaptation.Adaptation
	existing      []*api.Container
	annotations   map[string]string
	synchronised  atomic.Int64
	took          atomic.Int64 // duration of the last synchronization, in nanoseconds
	starting      atomic.Bool
	launches      string // the directory of the plugins that the runtime launches
	hangsUp       atomic.Bool
	stores        func(*api.Container, *api.ContainerAdjustment)
}

// New returns a runtime with a socket in a temporary directory. Call Start to start it.
func New(t testing.TB, name, version string) *Runtime {
	t.Helper()
	dir := scratch.Dir(t)
	r := &Runtime{Socket: filepath.Join(dir, "nri.sock"), name: name, version: version,
		launches: filepath.Join(dir, "plugins")}
	t.Cleanup(r.Stop)
	return r
}

// SetExisting sets the containers that the runtime lists when a plugin registers.
func (r *Runtime) SetExisting(containers []*api.Container) { r.existing = containers }

// Annotate sets the annotations of the pods of the containers that SetExisting sets.
func (r *Runtime) Annotate(annotations map[string]string) { r.annotations = annotations }

// Launch makes the runtime launch a program as the plugin "90-rdma" when the runtime starts, and pass a configuration
// to the plugin.
func (r *Runtime) Launch(t testing.TB, program, config string) {
	t.Helper()
	err := errors.Join(os.MkdirAll(r.launches+"/conf.d", 0o755), os.Symlink(program, r.launches+"/90-rdma"),
		os.WriteFile(r.launches+"/conf.d/90-rdma.conf", []byte(config), 0o644))
	if err != nil {
		t.Fatal(err)
	}
}

// HangUp makes the runtime close the connection to each plugin that has subscribed to events, like a runtime that does
// not know those events.
func (r *Runtime) HangUp() { r.hangsUp.Store(true) }

// Stores sets a function that changes each created container between CreateContainer and PostCreateContainer, like a
// runtime that resolves CDI names and stores the container. When the function runs, NRI has applied the adjustment to
// the container, except for CDI names.
func (r *Runtime) Stores(change func(*api.Container, *api.ContainerAdjustment)) { r.stores = change }

// Start starts the runtime, which then listens for plugins.
func (r *Runtime) Start(t testing.TB) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	nri, err := adaptation.New(r.name, r.version, r.synchronise, r.update,
		adaptation.WithSocketPath(r.innerSocket()), adaptation.WithPluginPath(r.launches),
		adaptation.WithPluginConfigPath(r.launches+"/conf.d"))
	if err != nil {
		t.Fatal(err)
	}
	r.starting.Store(true) // NRI synchronizes once without a plugin when it starts
	if err := nri.Start(); err != nil {
		t.Fatal(err)
	}
	r.starting.Store(false)
	r.nri = nri
	r.proxy = socketproxy.At(t, r.Socket, r.innerSocket())
}

// Stop closes the socket and all connections, like a runtime that exits.
func (r *Runtime) Stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.nri != nil {
		r.proxy.Close()
		r.nri.Stop()
		r.nri = nil
	}
}

// StopContainer makes the runtime stop a container. The runtime registers no plugin until the caller calls finish.
func (r *Runtime) StopContainer() (finish func()) {
	r.mu.Lock()
	nri := r.nri
	r.mu.Unlock()
	return nri.BlockPluginSync().Unblock
}

// Connections returns the number of connections that plugins have made since the runtime was started.
func (r *Runtime) Connections() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.proxy.Accepted()
}

// Unproxied returns a socket at which NRI itself listens, for measurements. Stop does not close connections to this
// socket.
func (r *Runtime) Unproxied() string { return r.innerSocket() }

// innerSocket returns the socket at which NRI listens. Plugins connect through a proxy, since NRI closes connections
// only when the process ends.
func (r *Runtime) innerSocket() string { return r.Socket + ".inner" }

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

// Synchronised returns the number of plugin registrations. After Synchronised returns, the runtime sends requests about
// each new container to all counted plugins.
func (r *Runtime) Synchronised() int {
	n := int(r.synchronised.Load())
	r.mu.Lock()
	nri := r.nri
	r.mu.Unlock()
	if nri != nil {
		// NRI sends the existing containers to a plugin before it adds the plugin. BlockPluginSync waits until NRI has added
		// the plugin.
		nri.BlockPluginSync().Unblock()
	}
	return n
}

// Took returns how long the runtime took to send the existing containers to the last plugin.
func (r *Runtime) Took() time.Duration { return time.Duration(r.took.Load()) }

// Create sends the requests for a container's creation: CreateContainer and, if CreateContainer succeeds,
// PostCreateContainer.
func (r *Runtime) Create(ctx context.Context, pod *api.PodSandbox,
	ctr *api.Container) (*api.ContainerAdjustment, error) {
	return r.CreateInPlace(ctx, pod, proto.Clone(ctr).(*api.Container))
}

// CreateInPlace is like Create, but NRI writes the plugins' adjustments into the given container. The caller must not
// reuse the container.
func (r *Runtime) CreateInPlace(ctx context.Context, pod *api.PodSandbox,
	ctr *api.Container) (*api.ContainerAdjustment, error) {
	r.mu.Lock()
	nri := r.nri
	r.mu.Unlock()
	if nri == nil {
		return nil, fmt.Errorf("the runtime is not running")
	}
	defer nri.BlockPluginSync().Unblock() // like containerd, Create waits for a plugin that is being registered
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

// update handles a plugin's unsolicited updates, and ignores them.
func (r *Runtime) update(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) {
	r.request.Lock()
	defer r.request.Unlock()
	return nil, nil
}

// silent discards NRI's log messages.
type silent struct{}

func (silent) Debugf(context.Context, string, ...any) {}
func (silent) Infof(context.Context, string, ...any)  {}
func (silent) Warnf(context.Context, string, ...any)  {}
func (silent) Errorf(context.Context, string, ...any) {}
