// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/containerd/ttrpc"
	"github.com/sirupsen/logrus"
)

const (
	// slow is how long a registration may take before the log says what it waits for.
	slow = 5 * time.Second
	// deliverWithin is how long the end of the program may wait for answers: runtimes wait as long for one.
	deliverWithin = stub.DefaultRequestTimeout
)

var (
	// errEarly means that the runtime ended a connection before Configure.
	errEarly = errors.New("the runtime closed the connection before it configured the plugin")
	// errHungUp means that the runtime ended a connection after Configure.
	errHungUp = errors.New("the runtime closed the connection during registration")
)

// refusedError is why the plugin refused a runtime in Configure.
type refusedError struct{ error }

func (e *refusedError) Unwrap() error { return e.error }

// connection is one connection to the runtime, from registration to its end. Each has a stub of its own: a stub cannot be used twice.
type connection struct {
	registration *Registration
	conn         *countedConn
	stub         stub.Stub
	accepted     chan struct{} // closed when the runtime has answered RegisterPlugin
	configuring  atomic.Bool   // the plugin configures once a connection
	configured   chan struct{} // closed when it has answered the runtime's Configure
	refused      error         // by the plugin, in Configure

	registered, over bool // the runtime has registered the plugin; the connection has ended. The registration's lock guards them
}

func newConnection(r *Registration, conn net.Conn) (*connection, error) {
	c := &connection{registration: r, conn: count(conn), accepted: make(chan struct{}), configured: make(chan struct{})}
	options := []stub.Option{
		stub.WithConnection(c.conn), stub.WithLogger(stubLog{r.Log}),
		stub.WithFailurePolicy(&api.FailurePolicy{KeepConnected: r.KeepConnected}),
		stub.WithTTRPCOptions(
			[]ttrpc.ClientOpts{ttrpc.WithUnaryClientInterceptor(c.ask)},
			[]ttrpc.ServerOpt{ttrpc.WithUnaryServerInterceptor(c.answer)},
		),
	}
	if !Launched() { // else the stub has both from its environment, and refuses others
		options = append(options, stub.WithPluginName(r.Name), stub.WithPluginIdx(r.Index))
	}
	var err error
	c.stub, err = stub.New(r.plugin, options...)
	return c, err
}

// ask waits for the runtime as long as it takes. The stub waits five seconds for RegisterPlugin. But the runtime registers plugins one
// after another, and none while it stops a container, which may take minutes (containerd#14083). A plugin that gives up and comes back
// only lengthens the queue.
func (c *connection) ask(ctx context.Context, req *ttrpc.Request, resp *ttrpc.Response, _ *ttrpc.UnaryClientInfo, invoke ttrpc.Invoker) error {
	err := invoke(context.WithoutCancel(ctx), req, resp)
	if err == nil && req.Method == "RegisterPlugin" {
		close(c.accepted)
	}
	return err
}

// answer hands a request to the plugin, and records the steps of the registration.
func (c *connection) answer(ctx context.Context, get ttrpc.Unmarshaler, info *ttrpc.UnaryServerInfo, method ttrpc.Method) (any, error) {
	if c.conn.isFinished() { // the runtime goes on without the plugin, as it does without one that has ended
		<-c.conn.closed
		return nil, ttrpc.ErrClosed
	}
	name := path.Base(info.FullMethod)
	if name == "Configure" && !c.configuring.CompareAndSwap(false, true) { // it is over
		return nil, ttrpc.ErrClosed
	}
	result, err := method(ctx, get)
	switch name {
	case "Configure":
		c.refused = err
		close(c.configured)
	case "Synchronize":
		if answer, ok := result.(*api.SynchronizeResponse); ok && err == nil && !answer.GetMore() {
			c.registration.registered(c)
		}
	}
	return result, err
}

// run serves the connection until it ends. When the context ends, it first answers the requests in flight.
func (c *connection) run(ctx context.Context) error {
	ended := make(chan error, 1)
	go func() { ended <- c.stub.Run(context.WithoutCancel(ctx)) }()
	late := time.AfterFunc(slow, func() {
		if !c.registration.wasRegistered(c) {
			c.registration.Log.Warn("connected but not registered yet: the runtime registers no plugin while it stops a container or registers another plugin: waiting")
		}
	})
	defer late.Stop()
	var err error
	select {
	case err = <-ended:
	case <-c.conn.closed:
		err = c.end(ended)
	case <-ctx.Done():
		c.deliver()
		err = c.end(ended)
	}
	select {
	case <-c.configured:
		if c.refused != nil {
			return &refusedError{c.refused}
		}
		if !c.registration.wasRegistered(c) {
			return errHungUp
		}
		return nil
	default:
		return fmt.Errorf("%w (%w)", errEarly, err)
	}
}

// deliver returns when the runtime has every answer of the plugin, and the plugin gives no more.
//
// The runtime can lose an answer that arrives just before the end of the connection: ttrpc's client then takes either. So deliver asks
// the runtime to update no containers. containerd and CRI-O answer after the request that they work on is over: they hold a lock until then.
func (c *connection) deliver() {
	if !c.registration.wasRegistered(c) {
		return
	}
	enough := time.NewTimer(deliverWithin)
	defer enough.Stop()
	for {
		requests := c.conn.settle(enough.C)
		if requests < 0 {
			return
		}
		over := make(chan struct{})
		go func() {
			_, _ = c.stub.UpdateContainers(nil) // any answer will do
			close(over)
		}()
		select {
		case <-over:
		case <-c.conn.closed:
			return
		case <-enough.C:
			return
		}
		if c.conn.finish(requests) {
			return
		}
	}
}

// end closes the connection and waits until the stub has noticed.
//
// Stub.Start waits for the runtime's Configure with its lock held. If the connection ends between RegisterPlugin and Configure, it
// waits for ever (containerd/nri#298). So end calls Configure in the runtime's place, unless the runtime's own has come.
func (c *connection) end(ended <-chan error) error {
	_ = c.conn.Close() // whatever it returns, the connection has ended
	select {
	case err := <-ended:
		return err
	case <-c.accepted:
	}
	if waits, ok := c.stub.(api.PluginService); ok && c.configuring.CompareAndSwap(false, true) {
		over, cancel := context.WithCancel(context.Background())
		cancel()
		go func() { _, _ = waits.Configure(over, &api.ConfigureRequest{}) }() // the stub notices; nobody else needs the answer
	}
	return <-ended
}

// stubLog logs NRI's own messages at debug level: this package logs what an administrator needs to know.
type stubLog struct{ log logrus.FieldLogger }

func (l stubLog) Debugf(_ context.Context, format string, args ...any) { l.log.Debugf(format, args...) }
func (l stubLog) Infof(_ context.Context, format string, args ...any)  { l.log.Debugf(format, args...) }
func (l stubLog) Warnf(_ context.Context, format string, args ...any)  { l.log.Debugf(format, args...) }
func (l stubLog) Errorf(_ context.Context, format string, args ...any) { l.log.Debugf(format, args...) }
