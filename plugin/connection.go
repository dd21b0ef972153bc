// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/containerd/nri/pkg/api"
	nrinet "github.com/containerd/nri/pkg/net"
	"github.com/fsnotify/fsnotify"
)

const (
	// retryMost is the longest time between two tries while the runtime's socket exists.
	retryMost = 500 * time.Millisecond
	// retryUnsupported is the time after which a runtime that cannot be worked with is tried again, in case it was replaced.
	retryUnsupported = 30 * time.Second
	// lookAgain is how often the socket is looked for where its folder cannot be watched.
	lookAgain = time.Second
)

// Run keeps the plugin registered with the runtime until the context is done, however often the runtime goes and comes back.
// A plugin that the runtime has started itself runs for one connection. Requests in flight are answered before Run returns.
func (p *Plugin) Run(ctx context.Context) error {
	defer p.repair.start(ctx)()
	if fd := os.Getenv(api.PluginSocketEnvVar); fd != "" {
		return p.runLaunched(ctx, fd)
	}
	for ctx.Err() == nil {
		err := p.connect(ctx)
		if ctx.Err() != nil {
			return nil
		}
		p.awaitSocket(ctx, p.explain(err))
	}
	return nil
}

// runLaunched serves the one connection that the runtime has handed over.
func (p *Plugin) runLaunched(ctx context.Context, fd string) error {
	n, err := strconv.Atoi(fd)
	if err != nil {
		return fmt.Errorf("%s=%q is no file descriptor", api.PluginSocketEnvVar, fd)
	}
	conn, err := nrinet.NewFdConn(n)
	if err != nil {
		return fmt.Errorf("%s=%q: %w", api.PluginSocketEnvVar, fd, err)
	}
	err = p.newSession().run(ctx, conn)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (p *Plugin) newSession() *session {
	return &session{Plugin: p, registered: make(chan struct{})}
}

// connect registers with the runtime and serves it until the connection ends.
func (p *Plugin) connect(ctx context.Context) error {
	conn, err := p.dial(ctx)
	if err != nil {
		return err
	}
	return p.newSession().run(ctx, conn)
}

func (p *Plugin) dial(ctx context.Context) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "unix", p.Socket)
}

// explain says once what is wrong with the connection and what to do, and gives the time after which it is tried again.
func (p *Plugin) explain(err error) time.Duration {
	log := p.Log.WithField("socket", p.Socket)
	say := func(what string) {
		p.faults.say(what, time.Now(), func(int) { log.Warn(what) })
	}
	var unsupported *unsupportedRuntimeError
	switch {
	case errors.As(err, &unsupported):
		p.faults.say(err.Error(), time.Now(), func(int) { log.Error("not registered: " + unsupported.Error()) })
		return retryUnsupported
	case errors.Is(err, fs.ErrNotExist):
		say("no NRI socket: waiting for the runtime; if it runs, turn NRI on in its configuration (deploy/containerd has it for containerd 1.7)")
	case errors.Is(err, fs.ErrPermission):
		say("no permission to connect to the NRI socket: run as root, and where SELinux or AppArmor is on, let the plugin use it")
	case err != nil:
		say(fmt.Sprintf("not connected: %v: trying again", err))
	default:
		say("the runtime closed the connection: trying again")
	}
	return retryMost/10 + rand.N(retryMost*9/10) //nolint:gosec // jitter is no secret
}

// awaitSocket returns when it is worth trying to connect: at once when a socket appears, after a while if there is one already.
func (p *Plugin) awaitSocket(ctx context.Context, retry time.Duration) {
	appeared, stop := watch(p.Socket)
	defer stop()
	again := time.NewTimer(retry)
	defer again.Stop()
	look := time.NewTicker(lookAgain)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-appeared:
			return
		case <-again.C:
			if p.socketExists() {
				return
			}
		case <-look.C:
			if retry <= retryMost && p.socketExists() {
				return
			}
		}
	}
}

func (p *Plugin) socketExists() bool {
	_, err := os.Stat(p.Socket)
	return err == nil
}

// watch tells when a file is created. It watches the file's folder; where that cannot be watched, it tells nothing.
func watch(file string) (created <-chan struct{}, stop func()) {
	events, stop := watchFolder(filepath.Dir(file))
	out := make(chan struct{}, 1)
	go func() {
		for event := range events {
			if event.Has(fsnotify.Create) && filepath.Clean(event.Name) == filepath.Clean(file) {
				select {
				case out <- struct{}{}:
				default: // that is known already
				}
			}
		}
	}()
	return out, stop
}
