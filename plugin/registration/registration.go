// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package registration keeps an NRI plugin registered with a container runtime, whichever runtime that is and however
// often it restarts. It implements NRI's protocol, and is independent of what the plugin does.
//
// A registration is the most harmful thing that a plugin does: while the runtime stops a container, which may take an
// hour, a registration keeps it from creating any. A process that replaces another one therefore takes over its
// connection (package handover), and a runtime that cannot register the plugin is not contacted for minutes.
package registration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/sirupsen/logrus"

	"github.com/rdma-spec/rdma-spec/plugin/registration/handover"
	"github.com/rdma-spec/rdma-spec/plugin/watch"
)

// Plugin is a plugin that registers. NRI's stub also calls its other methods, one for each NRI event that the plugin
// implements.
type Plugin interface {
	// Configure returns the events that the plugin subscribes to. An error ends the registration, which is retried later.
	// Once the context is done, the result is ignored, and Configure must change nothing. A process that waits for another
	// process's connection is configured too.
	stub.ConfigureInterface
	// Synchronize takes over the runtime's containers. The runtime creates no container until it returns.
	stub.SynchronizeInterface
	// Connected is called before a connection is served. The runtime is the PID of the process at the other end; 0 if that
	// is not in this process's PID namespace.
	Connected(runtime int)
	// Reads returns the fields of pods and containers that the plugin reads. It is called once for each connection.
	Reads() Reads
	// State returns what the process that takes over the connection must know. See StateFormat. No request is in flight.
	State() (json.RawMessage, error)
	// Restore decodes the previous process's State, and changes nothing. It returns a function that applies the state.
	Restore(state json.RawMessage) (apply func(), err error)
}

// Options configure a Registration.
type Options struct {
	Name, Index string // as shown to the runtime, such as "rdma" and "90"; a runtime that launches the plugin sets its own
	Socket      string // the runtime's NRI socket
	// Handover is the directory that processes use to hand over the connection; empty means no handover.
	Handover string
	// Deployment is the process's deployment. The process takes over no connection from another deployment, even if they
	// share a directory. Empty means unknown.
	Deployment string
	// BacksOff reports whether this process should let another process register first, if no process is registered; nil
	// means false.
	BacksOff func() bool
	// Rival returns an error that names the other plugin that serves the node's containers, if there is one. This process
	// then does not register. Rival is nil if this cannot be found out.
	Rival func() error
	// KeepConnected asks the runtime to keep the plugin when a request times out.
	KeepConnected bool
	Log           logrus.FieldLogger
}

// Registration keeps a plugin registered. It is safe for concurrent use.
type Registration struct {
	Options
	plugin         Plugin
	stored         *net.UnixConn   // the connection that systemd stored for this process; nil if there is none
	storedState    json.RawMessage // the state that belongs to the stored connection
	blocked        time.Duration   // blockedAfter, except in tests
	backOffFor     time.Duration   // how long this process leaves the lock free for others: backOffFor, except in tests
	rivalGone      time.Duration   // the constant rivalGone, except in tests
	requestTimeout atomic.Int64
	paused         atomic.Bool
	behind         atomic.Bool // this process waits behind a registered one, which will hand over its connection
	rivals         rivals

	offering sync.Mutex // held while an offer or the state is sent to other processes; taken before mu

	mu      sync.Mutex
	agreed  *agreement      // at the last Configure; nil before the first one
	latest  *connection     // nil before the first connection, and between two connections
	current *connection     // over which the runtime calls the plugin; nil while the plugin is not registered
	owner   *handover.Owner // nil: no other process can take over the connection
	when    time.Time       // when the runtime last registered the plugin; zero means never
}

// New returns a Registration. It takes the connection that systemd stored for this process, and does nothing more until
// Run is called. If the program ends before that, the connection ends too, since the runtime would wait for a
// connection that nobody reads.
func New(plugin Plugin, o Options) *Registration {
	r := &Registration{Options: o, plugin: plugin, blocked: blockedAfter, backOffFor: backOffFor, rivalGone: rivalGone}
	var err error
	r.stored, r.storedState, err = handover.Stored()
	if err != nil {
		r.Log.WithError(err).Warn("registering again")
	}
	r.requestTimeout.Store(int64(stub.DefaultRequestTimeout))
	return r
}

// Registered reports whether the runtime calls the plugin for containers now.
func (r *Registration) Registered() bool { return r.serving() != nil }

// Behind reports whether this process waits behind a registered one, which will hand over its connection when it ends.
func (r *Registration) Behind() bool { return r.behind.Load() }

// Paused reports whether the plugin pauses for minutes before it registers again.
func (r *Registration) Paused() bool { return r.paused.Load() }

// Unregistered returns how long the plugin has been connected to the runtime without being registered; 0 if it is
// registered or not connected.
func (r *Registration) Unregistered() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.latest == nil || r.latest == r.current {
		return 0
	}
	return time.Since(r.latest.made)
}

// When returns when the runtime last registered the plugin, with this process or with one that handed over its
// connection; zero means never.
func (r *Registration) When() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.when
}

// Waiting returns how long the runtime has been waiting for the plugin's response; 0 if it is not waiting.
func (r *Registration) Waiting() time.Duration {
	if c := r.serving(); c != nil {
		return c.conn.waiting()
	}
	return 0
}

// RequestTimeout returns how long the runtime waits for a response, according to the last Configure; before that, NRI's
// default.
func (r *Registration) RequestTimeout() time.Duration { return time.Duration(r.requestTimeout.Load()) }

// Launched reports whether the runtime started this program as its plugin.
func Launched() bool { return os.Getenv(api.PluginSocketEnvVar) != "" }

// Run keeps the plugin registered until the context is done. It then returns nil, after all requests in flight were
// answered and the responses delivered, or the connection was handed over. A plugin that the runtime launched serves
// only the connection that it was given, and Run returns when that ends.
func (r *Registration) Run(ctx context.Context) error {
	if Launched() {
		return r.runLaunched(ctx)
	}
	dir := watch.New(filepath.Dir(r.Socket), watch.Names)
	defer dir.Close()
	problems := &problems{r.Log.WithField("socket", r.Socket), map[string]bool{}}
	k := &keeper{
		backoffs: newBackoffs(), join: r.join, release: r.release, serve: r.serve, paused: &r.paused,
		dial:   r.dial,
		socket: func() socketFile { return socketAt(r.Socket) },
		changed: func() <-chan struct{} {
			dir.Renew()
			return dir.Changed
		},
		report: func(end error, rest time.Duration) { problems.report(end, rest, r.RequestTimeout()) },
	}
	defer func() { r.owner.Close() }()
	k.keepRegistered(ctx)
	return nil
}

// dial connects to the runtime, unless another plugin registered first after this process got the lock.
func (r *Registration) dial(ctx context.Context) (net.Conn, error) {
	if err := r.rival(); err != nil {
		return nil, err
	}
	return (&net.Dialer{}).DialContext(ctx, "unix", r.Socket)
}

func (r *Registration) runLaunched(ctx context.Context) error {
	text := os.Getenv(api.PluginSocketEnvVar)
	fd, err := strconv.Atoi(text)
	if err != nil {
		return fmt.Errorf("%s=%q is not a file descriptor", api.PluginSocketEnvVar, text)
	}
	socket, err := handover.SocketOf(os.NewFile(uintptr(fd), ""))
	if err != nil {
		return fmt.Errorf("%s=%q: %w", api.PluginSocketEnvVar, text, err)
	}
	err = r.serve(ctx, socket, nil)
	if ctx.Err() != nil || errors.As(err, new(*droppedError)) {
		return nil
	}
	return err
}

// serve serves a connection until it ends. It first registers over the connection, unless the connection is inherited.
func (r *Registration) serve(ctx context.Context, socket net.Conn, from *inheritance) error {
	c, err := newConnection(r, socket.(*net.UnixConn))
	if err != nil {
		_ = socket.Close() // it was not used
		return err
	}
	r.mu.Lock()
	r.latest = c
	r.mu.Unlock()
	defer r.recordEnd(c)
	runtime, err := handover.Peer(socket.(*net.UnixConn))
	if err != nil {
		r.Log.WithError(err).Debug("the runtime's process cannot be determined")
	}
	r.plugin.Connected(runtime)
	return c.registerAndServe(ctx, from)
}

func (r *Registration) serving() *connection {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.current
}

// completeAgreement adds what this plugin always wants from a runtime to what the runtime said.
func (r *Registration) completeAgreement(a agreement) agreement {
	a.Socket = r.Socket
	a.Index = r.Index
	a.Deployment = r.Deployment
	a.KeepConnected = r.KeepConnected
	return a
}

// agree has the plugin check what the runtime said, and returns that together with what the plugin wants from the
// runtime.
func (r *Registration) agree(ctx context.Context, a agreement) (agreement, error) {
	if a.RequestTimeout <= 0 {
		a.RequestTimeout = stub.DefaultRequestTimeout
	}
	r.requestTimeout.Store(int64(a.RequestTimeout))
	a = r.completeAgreement(a)
	var err error
	a.Events, err = r.plugin.Configure(ctx, a.Config, a.Runtime, a.Version)
	if err != nil {
		return a, &refusedError{err}
	}
	r.mu.Lock()
	r.agreed = &a
	r.mu.Unlock()
	return a, nil
}

// recordRegistration records that the plugin is registered over a connection, and since when.
func (r *Registration) recordRegistration(c *connection, since time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.over {
		return
	}
	r.current = c
	r.when = since
	c.since = since
	go r.offer()
}

// recordEnd records that a connection has ended.
func (r *Registration) recordEnd(c *connection) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c.over = true
	r.latest = nil
	if r.current == c {
		r.current = nil
		go r.offer()
	}
}
