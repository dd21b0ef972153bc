// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/net/multiplex"
	"github.com/containerd/nri/pkg/stub"
	"github.com/containerd/ttrpc"
	"github.com/sirupsen/logrus"
)

const (
	// mostEnd is the longest time that the program waits for responses before exiting. systemd and the kubelet kill a
	// program that takes too long to exit.
	mostEnd = 10 * time.Second
	// blockedAfter is the time after which the log explains why a registration is delayed.
	blockedAfter = 30 * time.Second
)

// errEarly means that the runtime closed a connection before it called Configure.
var errEarly = errors.New("the runtime closed the connection before configuring the plugin")

// refusedError contains the plugin's reason for refusing a runtime in Configure.
type refusedError struct{ error }

func (e *refusedError) Unwrap() error { return e.error }

// connection is a connection to the runtime. A connection starts with a registration or a handover, and ends with a
// disconnection or the next handover.
//
// A connection uses NRI's stub only to call the plugin's methods, and never starts the stub. A started stub limits a
// registration to five seconds, and can wait forever when the connection ends (containerd/nri#298).
type connection struct {
	api.PluginService // NRI's stub
	registration      *Registration
	conn              *conn
	mux               multiplex.Mux
	server            *ttrpc.Server

	made       time.Time
	configured chan struct{} // closed after the plugin has answered the runtime's Configure request
	configure  sync.Once
	refused    error    // the error from the plugin's Configure
	listing    struct { // the containers that the runtime has listed so far
		mu         sync.Mutex
		pods       []*api.PodSandbox
		containers []*api.Container // nil after the registration
		began      time.Time        // when the first part of the list arrived; zero until then
	}

	// The Registration's mutex guards the following fields.
	since time.Time // when the runtime registered the plugin, possibly in an earlier process; zero until then
	over  bool      // the connection has ended
}

// newConnection prepares to serve a socket. No data is read from the socket until mux.Unblock is called.
func newConnection(r *Registration, socket *net.UnixConn) (*connection, error) {
	options := []stub.Option{stub.WithLogger(stubLog{r.Log})}
	if !Launched() { // a launched plugin's stub reads both from the environment, and rejects these options
		options = append(options, stub.WithPluginName(r.Name), stub.WithPluginIdx(r.Index))
	}
	dispatch, err := stub.New(r.plugin, options...)
	if err != nil {
		return nil, err
	}
	c := &connection{
		PluginService: dispatch.(api.PluginService), registration: r, conn: newConn(socket), made: time.Now(),
		configured: make(chan struct{}),
	}
	c.mux = multiplex.Multiplex(c.conn, multiplex.WithBlockedRead())
	listener, err := c.mux.Listen(multiplex.PluginServiceConn)
	if err == nil {
		c.server, err = ttrpc.NewServer()
	}
	if err != nil {
		_ = c.mux.Close() // the connection was not used
		return nil, err
	}
	serve(c.server, c, r.plugin.Reads())
	go func() { _ = c.server.Serve(context.Background(), listener) }() // conn records the end of the connection
	return c, nil
}

// Configure answers the runtime's first request.
func (c *connection) Configure(ctx context.Context, request *api.ConfigureRequest) (*api.ConfigureResponse, error) {
	agreed, err := c.registration.agree(ctx, agreement{
		Config: request.GetConfig(), Runtime: request.GetRuntimeName(), Version: request.GetRuntimeVersion(),
		RequestTimeout: time.Duration(request.GetRequestTimeout()) * time.Millisecond,
	})
	c.configure.Do(func() {
		c.refused = err
		close(c.configured)
	})
	if err != nil {
		return nil, err
	}
	c.registration.Log.WithField("runtime", agreed.Runtime+" "+agreed.Version).Info("registering")
	return &api.ConfigureResponse{
		Events: int32(agreed.Events), FailurePolicy: &api.FailurePolicy{KeepConnected: agreed.KeepConnected},
	}, nil
}

// Synchronize collects the runtime's containers from one or more requests, and passes the containers to the plugin.
func (c *connection) Synchronize(ctx context.Context,
	request *api.SynchronizeRequest) (*api.SynchronizeResponse, error) {
	l := &c.listing
	l.mu.Lock()
	if l.began.IsZero() {
		l.began = time.Now()
	}
	l.pods = append(l.pods, request.GetPods()...)
	l.containers = append(l.containers, request.GetContainers()...)
	pods := l.pods
	containers := l.containers
	l.mu.Unlock()
	if request.GetMore() {
		return &api.SynchronizeResponse{More: true}, nil
	}
	updates, err := c.registration.plugin.Synchronize(ctx, pods, containers)
	if err == nil {
		c.registration.recordRegistration(c, time.Now())
		l.mu.Lock()
		l.pods = nil
		l.containers = nil
		l.mu.Unlock()
	}
	return &api.SynchronizeResponse{Update: updates}, err
}

// register asks the runtime to register the plugin. The plugin makes no other calls to the runtime, because other calls
// can cause a deadlock in NRI before 0.12.3 (containerd#13733). register waits without a timeout. The runtime registers
// plugins one at a time, and registers none while it stops a container (containerd#14083). A plugin that times out and
// retries only lengthens the queue.
func (c *connection) register() error {
	conn, err := c.mux.Open(multiplex.RuntimeServiceConn)
	if err != nil {
		return err
	}
	client := ttrpc.NewClient(conn)
	defer func() { _ = client.Close() }() // the client is no longer needed
	c.mux.Unblock()
	_, err = api.NewRuntimeClient(client).RegisterPlugin(context.Background(), &api.RegisterPluginRequest{
		PluginName: c.registration.Name, PluginIdx: c.registration.Index,
		NRIVersion: c.PluginService.(stub.Stub).PluginNRIVersion(),
	})
	return err
}

// registerAndServe serves a connection until the connection ends. If the connection is not inherited, registerAndServe
// first registers the plugin over the connection. When the context is done, registerAndServe answers the requests in
// flight, and hands over the connection if possible.
func (c *connection) registerAndServe(ctx context.Context, from *inheritance) error {
	defer func() {
		_ = c.mux.Close() // ignore both errors: the connection has ended
		_ = c.server.Close()
	}()
	refused := make(chan error, 1)
	if from != nil {
		c.resume(from)
	} else {
		go func() {
			if err := c.register(); err != nil {
				refused <- err
			}
		}()
	}
	late := time.AfterFunc(c.registration.blocked, func() {
		if c.registeredFor() == 0 {
			c.registration.Log.Warnf("connected for %s, but not yet registered: the runtime is waiting for containers "+
				"to stop, and creates no new ones in the meantime", c.registration.blocked)
		}
	})
	defer late.Stop()
	var err error
	select {
	case err = <-refused:
	case <-c.conn.closed:
	case <-ctx.Done():
		c.end()
	}
	select {
	case <-c.configured:
	default:
		if err == nil {
			return errEarly
		}
		return fmt.Errorf("%w (%w)", errEarly, err)
	}
	if c.refused != nil {
		return c.refused
	}
	if served := c.registeredFor(); served > 0 {
		return &droppedError{served}
	}
	return c.unlisted()
}

// resume starts to serve the connection that the previous process handed over.
func (c *connection) resume(from *inheritance) {
	defer from.served()
	from.apply()
	close(c.configured)
	c.registration.recordRegistration(c, from.registered)
	c.mux.Unblock()
	c.registration.Log.Info("took over the runtime connection from the previous process")
}

// registeredFor returns how long the plugin has been registered over the connection; 0 if the plugin is not registered.
func (c *connection) registeredFor() time.Duration {
	c.registration.mu.Lock()
	defer c.registration.mu.Unlock()
	if c.since.IsZero() {
		return 0
	}
	return max(time.Since(c.since), 1) // the clock might have been set back
}

// endWithin returns how long the program waits for responses before exiting. The result is the runtime's request
// timeout, but at most mostEnd.
func (r *Registration) endWithin() time.Duration { return min(r.RequestTimeout(), mostEnd) }

// end hands over the connection if possible. If a handover is not possible, end closes the connection without losing a
// response.
func (c *connection) end() {
	if c.conn.stop(c.registration.endWithin()) && c.registeredFor() > 0 {
		err := c.registration.handOver(c.conn)
		if err == nil {
			c.registration.Log.Info("handed over the runtime connection to the next process")
			return
		}
		level := logrus.InfoLevel
		if c.registration.Handover == "" {
			level = logrus.DebugLevel // no handover is configured
		}
		c.registration.Log.WithError(err).Log(level, "cannot hand over the runtime connection")
	}
	c.conn.awaitDelivery()
	// CloseRead and CloseWrite shut down the socket itself. Close would not be enough, because a hung process might have
	// another descriptor for the socket.
	_ = c.conn.CloseRead()
	_ = c.conn.CloseWrite() // both calls fail if the connection has already ended
}

// unlistedError means that a connection ended after Configure, but before the runtime had listed all its containers.
type unlistedError struct {
	listing    bool          // the runtime had begun to list its containers
	containers int           // how many containers the runtime had listed
	took       time.Duration // how long the runtime had been listing its containers
	// proven means that the registration ended the connection: the runtime was listing its containers, or is still
	// running.
	proven bool
}

func (c *connection) unlisted() *unlistedError {
	l := &c.listing
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.began.IsZero() {
		return &unlistedError{}
	}
	return &unlistedError{listing: true, containers: len(l.containers), took: time.Since(l.began), proven: true}
}

func (e *unlistedError) Error() string {
	if !e.listing {
		return "the runtime closed the connection before listing its containers"
	}
	return fmt.Sprintf("the runtime closed the connection during the registration (containers listed: %d, duration: %s)",
		e.containers, e.took.Round(time.Millisecond))
}

// causes returns the likely causes of the error, for the log message about repeated errors.
func (e *unlistedError) causes(requestTimeout time.Duration) string {
	if e.took >= requestTimeout {
		return fmt.Sprintf("The runtime could not list all containers within %s, because the node is too slow or has too "+
			"many containers", requestTimeout)
	}
	return "For the cause, see the runtime's log. The runtime might have stopped, or the environment, arguments, and " +
		"annotations of four containers together might exceed NRI's message size limit of 4 MiB. The runtime might " +
		"also lack an event that the plugin needs, even if its version normally has the event. In that case, upgrade the " +
		"runtime"
}

// stubLog logs NRI's own messages at debug level, because this package itself logs the messages that an administrator
// needs.
type stubLog struct{ log logrus.FieldLogger }

func (l stubLog) Debugf(_ context.Context, format string, args ...any) { l.log.Debugf(format, args...) }
func (l stubLog) Infof(_ context.Context, format string, args ...any)  { l.log.Debugf(format, args...) }
func (l stubLog) Warnf(_ context.Context, format string, args ...any)  { l.log.Debugf(format, args...) }
func (l stubLog) Errorf(_ context.Context, format string, args ...any) { l.log.Debugf(format, args...) }
