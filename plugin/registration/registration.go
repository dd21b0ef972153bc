// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package registration keeps an NRI plugin registered with a container runtime, whichever runtime that is and however often it goes
// and comes back. It knows NRI's stub with its faults, and nothing of what the plugin does.
package registration

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/containerd/nri/pkg/api"
	nrinet "github.com/containerd/nri/pkg/net"
	"github.com/containerd/nri/pkg/stub"
	"github.com/sirupsen/logrus"

	"github.com/rdma-spec/rdma-spec/plugin/watch"
)

const (
	// A connection that failed is tried again after dialAgain at first, and after dialRarely at last, which costs nobody anything. A
	// runtime makes its socket a moment before it listens.
	dialAgain  = 10 * time.Millisecond
	dialRarely = time.Second
	// A registration that failed is tried again after registerAgain at first, and after registerRarely at last: the runtime
	// handles each one, and containers wait for it.
	registerAgain  = 100 * time.Millisecond
	registerRarely = 30 * time.Second
	// hangUpsEnough is how often in a row a runtime hangs up on a configured plugin before the log names the likely cause. A
	// runtime that is being stopped hangs up once.
	hangUpsEnough = 3
)

// Plugin is a plugin that registers. The stub also calls its other methods, one for each NRI event that it implements.
type Plugin interface {
	// Configure returns the events that the plugin wants. An error ends the registration; it is tried again later. Once the context is
	// done, nobody reads the answer, and Configure must change nothing.
	stub.ConfigureInterface
	// Synchronize takes over the runtime's containers. The runtime creates no container until it returns.
	stub.SynchronizeInterface
}

// Options say how a plugin registers.
type Options struct {
	Name, Index string // as pods and the runtime know it: "rdma", "90". A runtime that launches the plugin sets its own
	Socket      string // the runtime's NRI socket
	// KeepConnected asks the runtime to keep the plugin when a request times out.
	KeepConnected bool
	Log           logrus.FieldLogger
}

// Registration is a plugin's registration. It is safe for concurrent use.
type Registration struct {
	Options
	plugin Plugin

	mu      sync.Mutex
	current *connection // over which the runtime asks; nil while the plugin is not registered
	count   uint64

	hangUps int             // of the runtime, in a row, after Configure
	logged  map[string]bool // problems that were logged since the last registration
}

// New makes a Registration. It does nothing until Run.
func New(plugin Plugin, o Options) *Registration {
	return &Registration{Options: o, plugin: plugin, logged: map[string]bool{}}
}

// Registered reports whether the runtime asks the plugin about containers now.
func (r *Registration) Registered() bool { return r.serving() != nil }

// Count returns how often the plugin was registered.
func (r *Registration) Count() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count
}

// Waiting returns how long the runtime has been waiting for the plugin's answer; 0 if it waits for none.
func (r *Registration) Waiting() time.Duration {
	if c := r.serving(); c != nil {
		return c.conn.waiting()
	}
	return 0
}

// Launched reports whether the runtime has started this program as a plugin of its own.
func Launched() bool { return os.Getenv(api.PluginSocketEnvVar) != "" }

// Run keeps the plugin registered until the context is done. Then it returns nil, after all requests in flight are answered and all
// answers delivered. A plugin that the runtime has launched serves the one connection that it was given; Run returns when that ends.
func (r *Registration) Run(ctx context.Context) error {
	if Launched() {
		return r.runLaunched(ctx)
	}
	folder := watch.New(filepath.Dir(r.Socket), watch.Names)
	defer folder.Close()
	dialing, registering := between(dialAgain, dialRarely), between(registerAgain, registerRarely)
	for {
		before, retry := r.Count(), dialing
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", r.Socket)
		if err == nil {
			err, retry = r.serve(ctx, conn), registering
			dialing.Reset()
			if r.Count() > before {
				registering.Reset()
				r.hangUps = 0
				clear(r.logged)
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		r.logProblem(err)
		folder.Renew()
		select {
		case <-ctx.Done():
			return nil
		case <-folder.Changed:
			dialing.Reset()
		case <-time.After(retry.NextBackOff()):
		}
	}
}

// between gives times that double, with jitter, from a least one to about a longest one.
func between(least, longest time.Duration) *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.Multiplier, b.MaxInterval = least, 2, longest
	return b
}

func (r *Registration) runLaunched(ctx context.Context) error {
	text := os.Getenv(api.PluginSocketEnvVar)
	fd, err := strconv.Atoi(text)
	if err != nil {
		return fmt.Errorf("%s=%q is not a file descriptor", api.PluginSocketEnvVar, text)
	}
	conn, err := nrinet.NewFdConn(fd)
	if err != nil {
		return fmt.Errorf("%s=%q: %w", api.PluginSocketEnvVar, text, err)
	}
	if err := r.serve(ctx, conn); ctx.Err() == nil {
		return err
	}
	return nil
}

// serve registers over a connection and serves it until it ends.
func (r *Registration) serve(ctx context.Context, conn net.Conn) error {
	c, err := newConnection(r, conn)
	if err != nil {
		_ = conn.Close() // it was not used
		return err
	}
	defer r.over(c)
	return c.run(ctx)
}

func (r *Registration) serving() *connection {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.current
}

// registered records that the runtime has registered the plugin over a connection.
func (r *Registration) registered(c *connection) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !c.over {
		r.current, c.registered = c, true
		r.count++
	}
}

// over records that a connection has ended.
func (r *Registration) over(c *connection) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c.over = true
	if r.current == c {
		r.current = nil
	}
}

func (r *Registration) wasRegistered(c *connection) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return c.registered
}

// logProblem logs what is wrong with the connection and what to do about it: each problem once, until the plugin has registered again.
func (r *Registration) logProblem(err error) {
	log, what := r.Log.WithField("socket", r.Socket), ""
	var refused *refusedError
	switch {
	case errors.As(err, &refused):
		log, what = r.Log.WithField("runtime", "refused"), "not registered: "+refused.Error()
	case errors.Is(err, errHungUp):
		if r.hangUps++; r.hangUps < hangUpsEnough {
			what = err.Error() + ": trying again"
		} else {
			what = "the runtime closes the connection as soon as it knows which events the plugin needs: it does not know one of them, whatever " +
				"its version says: upgrade the runtime"
		}
	case errors.Is(err, fs.ErrNotExist):
		what = "no NRI socket: waiting for the runtime; if it runs, turn NRI on in its configuration (deploy/containerd has it for containerd 1.7)"
	case errors.Is(err, fs.ErrPermission):
		what = "no permission to connect to the NRI socket: run as root, and where SELinux or AppArmor is on, let the plugin use it"
	case err != nil:
		what = fmt.Sprintf("not connected: %v: trying again", err)
	default:
		what = "the runtime closed the connection: trying again"
	}
	if !r.logged[what] {
		r.logged[what] = true
		log.Warn(what)
	}
}
