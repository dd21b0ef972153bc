// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package registration keeps an NRI plugin registered with a container runtime, even if the runtime restarts often. The
// package implements NRI's protocol, works with any container runtime that supports NRI, and does not depend on the
// plugin's purpose.
//
// A registration is a plugin's most disruptive operation. If the runtime is stopping a container, which can take an
// hour, a pending registration prevents the runtime from creating containers. A process that replaces another process
// therefore takes over the connection of that process (package handover). If the runtime cannot register the plugin,
// this package waits several minutes before the next attempt.
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

// Plugin is an NRI plugin that can be registered. NRI's stub also calls the plugin's other methods, one for each NRI
// event that the plugin implements.
type Plugin interface {
	// Configure returns the events to which the plugin subscribes. If Configure returns an error, the registration ends
	// and is retried later. After the context is done, the caller ignores the result, and Configure must not change
	// anything. Configure is also called in a process that waits for another process's connection.
	stub.ConfigureInterface
	// Synchronize receives the list of the runtime's containers. The runtime creates no containers until Synchronize
	// returns.
	stub.SynchronizeInterface
	// Connected is called before a connection is served. The argument is the PID of the process at the other end, or 0 if
	// that process is not in this process's PID namespace.
	Connected(runtime int)
	// Reads returns the fields of pods and containers that the plugin reads. Reads is called once for each connection.
	Reads() Reads
	// State returns the plugin's state for the process that takes over the connection. If the format of the state changes,
	// increase StateFormat. No request is in flight when State is called.
	State() (json.RawMessage, error)
	// Restore decodes the state from the previous process, and returns a function that applies the state. Restore itself
	// changes nothing.
	Restore(state json.RawMessage) (apply func(), err error)
}

// Options configure a Registration.
type Options struct {
	// Name and Index identify the plugin to the runtime; for example, "rdma" and "90". If the runtime launches the plugin,
	// the runtime sets both values.
	Name, Index string
	Socket      string // the runtime's NRI socket
	// Handover is the directory that processes use to hand over the connection. If Handover is empty, no handover takes
	// place.
	Handover string
	// Deployment identifies the deployment to which the process belongs; empty means unknown. The process does not take
	// over a connection from another deployment, even if the two deployments share a directory.
	Deployment string
	// BacksOff reports whether this process should let another process register first when no process is registered. A nil
	// BacksOff means false.
	BacksOff func() bool
	// Rival returns an error if another plugin serves the node's containers. The error names the other plugin, and
	// prevents this process from registering. Rival is nil if other plugins cannot be detected.
	Rival func() error
	// KeepConnected asks the runtime not to disconnect the plugin when a request times out.
	KeepConnected bool
	Log           logrus.FieldLogger
}

// Registration keeps a plugin registered. A Registration is safe for concurrent use.
type Registration struct {
	Options
	plugin         Plugin
	stored         *net.UnixConn   // the connection that systemd stored for this process; nil if systemd stored none
	storedState    json.RawMessage // the state that belongs to the stored connection
	blocked        time.Duration   // the constant blockedAfter, except in tests
	backOffFor     time.Duration   // the constant backOffFor, except in tests
	rivalGone      time.Duration   // the constant rivalGone, except in tests
	requestTimeout atomic.Int64
	paused         atomic.Bool
	behind         atomic.Bool // this process waits for a registered process to hand over its connection
	rivals         rivals

	offering sync.Mutex // held while this process sends an offer or its state to other processes; locked before mu

	mu      sync.Mutex
	agreed  *agreement      // from the last Configure request; nil before the first request
	latest  *connection     // the open connection, registered or not; nil if no connection is open
	current *connection     // the connection over which the plugin is registered; nil while the plugin is not registered
	owner   *handover.Owner // nil if no other process can take over the connection
	when    time.Time       // when the runtime last registered the plugin; zero if never
}

// New returns a Registration, and takes the connection that systemd stored for this process, if any. The Registration
// does nothing more until Run is called. If the program exits before Run is called, the connection ends too. If the
// connection stayed open, the runtime would wait for responses that no process sends.
func New(plugin Plugin, o Options) *Registration {
	r := &Registration{Options: o, plugin: plugin, blocked: blockedAfter, backOffFor: backOffFor, rivalGone: rivalGone}
	var err error
	r.stored, r.storedState, err = handover.Stored()
	if err != nil {
		r.Log.WithError(err).Warn("re-registering with the runtime")
	}
	r.requestTimeout.Store(int64(stub.DefaultRequestTimeout))
	return r
}

// Registered reports whether the runtime currently calls the plugin for containers.
func (r *Registration) Registered() bool { return r.serving() != nil }

// Behind reports whether this process waits behind a registered process. The registered process hands over its
// connection when exiting.
func (r *Registration) Behind() bool { return r.behind.Load() }

// Paused reports whether the plugin is pausing for several minutes before the next registration attempt.
func (r *Registration) Paused() bool { return r.paused.Load() }

// Unregistered returns how long the plugin has been connected to the runtime without being registered. The result is 0
// if the plugin is registered or not connected.
func (r *Registration) Unregistered() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.latest == nil || r.latest == r.current {
		return 0
	}
	return time.Since(r.latest.made)
}

// When returns the time of the plugin's last registration, in this process or in a previous process that handed over
// its connection. The zero time means that the plugin has never been registered.
func (r *Registration) When() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.when
}

// Waiting returns how long the runtime has been waiting for the plugin's response; 0 if the runtime is not waiting.
func (r *Registration) Waiting() time.Duration {
	if c := r.serving(); c != nil {
		return c.conn.waiting()
	}
	return 0
}

// RequestTimeout returns how long the runtime waits for a response, according to the last Configure request. Before the
// first Configure request, the result is NRI's default.
func (r *Registration) RequestTimeout() time.Duration { return time.Duration(r.requestTimeout.Load()) }

// Launched reports whether the runtime started this program as its plugin.
func Launched() bool { return os.Getenv(api.PluginSocketEnvVar) != "" }

// Run keeps the plugin registered until the context is done. Before Run returns nil, it either hands over the
// connection, or answers all requests in flight and delivers the responses. If the runtime launched the plugin, Run
// serves only the connection that the runtime provided, and returns when that connection ends.
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

// dial connects to the runtime. If another plugin registered after this process acquired the lock, dial returns an
// error instead.
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

// serve serves a connection until the connection ends. If the connection is not inherited, serve first registers the
// plugin over the connection.
func (r *Registration) serve(ctx context.Context, socket net.Conn, from *inheritance) error {
	c, err := newConnection(r, socket.(*net.UnixConn))
	if err != nil {
		_ = socket.Close() // the socket was not used
		return err
	}
	r.mu.Lock()
	r.latest = c
	r.mu.Unlock()
	defer r.recordEnd(c)
	runtime, err := handover.Peer(socket.(*net.UnixConn))
	if err != nil {
		r.Log.WithError(err).Debug("cannot determine the PID of the runtime")
	}
	r.plugin.Connected(runtime)
	return c.registerAndServe(ctx, from)
}

func (r *Registration) serving() *connection {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.current
}

// completeAgreement adds the values from this process's Options to an agreement.
func (r *Registration) completeAgreement(a agreement) agreement {
	a.Socket = r.Socket
	a.Index = r.Index
	a.Deployment = r.Deployment
	a.KeepConnected = r.KeepConnected
	return a
}

// agree calls the plugin's Configure with the runtime's values, and returns the complete agreement.
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

// recordRegistration records that the plugin has been registered over a connection since the given time.
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
