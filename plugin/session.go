// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
)

// session is one connection to the runtime, from registration to its end. The stub calls its exported methods.
type session struct {
	*Plugin
	registered chan struct{} // closed when the runtime has taken the plugin in
	once       sync.Once
	subscribed api.EventMask
	noSpecs    string                 // why the runtime's stored specs cannot be edited
	given      error                  // why Configure refused
	answered   atomic.Pointer[string] // the runtime that knows by now which events are wanted
	abandoned  atomic.Bool            // nobody will configure this session any more
}

// hangUpsEnough is how often in a row a runtime hangs up on a validator before it is taken for one that has none.
const hangUpsEnough = 3

// errAbandoned ends a registration that can get no further.
var errAbandoned = errors.New("the runtime closed the connection during registration")

// Configure is called by the runtime first; the events that it returns are those that every container then waits for.
func (s *session) Configure(_ context.Context, config, runtime, version string) (api.EventMask, error) {
	if s.abandoned.Load() {
		return 0, errAbandoned
	}
	s.given = s.configure(config, runtime, version)
	s.subscribed = s.events()
	if runtime += " " + version; s.given == nil {
		s.answered.Store(&runtime)
	}
	return s.subscribed, s.given
}

func (s *session) configure(config, runtime, version string) error {
	if err := s.needs().check(runtime, version); err != nil {
		return err
	}
	if !s.fromFile.Load() {
		p, err := handedOver(config)
		if err != nil {
			return fmt.Errorf("the configuration that %s hands over: %w", runtime, err)
		}
		s.policy.Store(p)
	}
	s.noSpecs = whyNoSpecs(s.StoredSpecs, runtime)
	s.Log.WithField("runtime", runtime+" "+version).Info("registering")
	return nil
}

// handedOver makes the policy of a configuration that the runtime hands over; the default one where it hands over none.
func handedOver(config string) (*policy.Policy, error) {
	if config == "" {
		return policy.New(policy.Default())
	}
	return policy.FromText([]byte(config))
}

// events gives the fewest events that the policy can be carried out with: each costs every container of the node a round trip.
func (s *session) events() api.EventMask {
	var events api.EventMask
	if s.Validate {
		events.Set(api.Event_VALIDATE_CONTAINER_ADJUSTMENT)
		return events
	}
	events.Set(api.Event_CREATE_CONTAINER)
	if p := s.policy.Load(); p != nil && p.GivesIPCLock() && s.editsSpecs() {
		events.Set(api.Event_POST_CREATE_CONTAINER)
	}
	return events
}

// Synchronize is called when the runtime has taken the plugin in. No container is created until it returns.
func (s *session) Synchronize(_ context.Context, pods []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	s.editing.Store(s.subscribed.IsSet(api.Event_POST_CREATE_CONTAINER))
	s.once.Do(func() { close(s.registered) })
	s.hangUps.Store(0)
	s.repair.registered(pods, containers, s.noSpecs == "")
	s.Log.WithField("containers", len(containers)).Info("registered")
	return nil, nil
}

// CreateContainer is called for every container that the runtime creates.
func (s *session) CreateContainer(_ context.Context, pod *api.PodSandbox, ctr *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	s.serving.RLock()
	defer s.serving.RUnlock()
	adjustment, err := s.createContainer(pod, ctr)
	return adjustment, nil, err
}

// PostCreateContainer is called for every container that the runtime has created. Its errors would only be logged by the runtime.
func (s *session) PostCreateContainer(ctx context.Context, pod *api.PodSandbox, ctr *api.Container) error {
	s.serving.RLock()
	defer s.serving.RUnlock()
	s.postCreateContainer(ctx, pod, ctr)
	return nil
}

// ValidateContainerAdjustment is called for every container that the runtime creates, when all plugins have been asked.
func (s *session) ValidateContainerAdjustment(_ context.Context, request *api.ValidateContainerAdjustmentRequest) error {
	s.serving.RLock()
	defer s.serving.RUnlock()
	return s.validateContainer(request.GetPod(), request.GetContainer(), request.GetAdjust())
}

// run registers with the runtime over a connection and serves it until the connection ends or the context is done.
// Requests in flight when the context ends are answered first.
func (s *session) run(ctx context.Context, conn net.Conn) error {
	watched := &watchedConn{Conn: conn, closed: make(chan struct{})}
	defer watched.Close() //nolint:errcheck // nothing is lost with it
	// A plugin that hangs for a while is better kept. A validator is not: each container of the node would wait for it, and then fail.
	policy := &api.FailurePolicy{KeepConnected: !s.Validate}
	st, err := stub.New(s, stub.WithPluginName(s.Name), stub.WithPluginIdx(s.Index), stub.WithConnection(watched),
		stub.WithLogger(stubLog{s.Log}), stub.WithFailurePolicy(policy))
	if err != nil {
		return err
	}
	patience := time.NewTimer(st.RegistrationTimeout() + time.Second)
	defer patience.Stop()
	ended := make(chan error, 1)
	go func() { ended <- st.Run(context.WithoutCancel(ctx)) }()
	if err := s.awaitRegistration(ctx, st, watched, patience.C, ended); err != nil {
		return s.notTaken(err)
	}
	s.countSession(1)
	next, err := s.serve(ctx, st, ended)
	s.countSession(-1)
	if next != nil {
		return next.wait()
	}
	return err
}

// serve returns when the session has ended, or when another has taken over.
func (s *session) serve(ctx context.Context, st stub.Stub, ended <-chan error) (*successor, error) {
	for {
		select {
		case err := <-ended:
			return nil, err
		case <-ctx.Done():
			s.drain(st)
			return nil, ctx.Err()
		case <-s.changed:
			if next := s.succeed(ctx); next != nil {
				s.drain(st)
				return next, nil
			}
		}
	}
}

// drain answers the requests in flight and ends the connection.
func (s *session) drain(st stub.Stub) {
	s.serving.Lock()
	defer s.serving.Unlock()
	st.Stop()
}

func (s *session) countSession(by int32) {
	if s.sessions.Add(by) > 0 {
		s.metrics.connected.Set(1)
	} else {
		s.metrics.connected.Set(0)
	}
	if by > 0 {
		s.metrics.connections.Inc()
	}
}

// awaitRegistration waits until the runtime has taken the plugin in, or it is clear that it will not.
//
// Stub.Start waits for the runtime's Configure with its lock held. If the connection ends before that, it waits for ever, and so
// would everybody who touches the stub; so here the Configure that cannot come any more is delivered, and refuses.
func (s *session) awaitRegistration(ctx context.Context, st stub.Stub, conn *watchedConn, patience <-chan time.Time, ended <-chan error) error {
	select {
	case <-s.registered:
		return nil
	case err := <-ended:
		return errors.Join(s.given, err)
	case <-conn.closed:
	case <-patience:
		s.answered.Store(nil) // it was not the runtime that hung up
	case <-ctx.Done():
	}
	_ = conn.Close() // what its end would tell is known
	select {
	case err := <-ended: // the stub noticed by itself
		return errors.Join(s.given, err)
	case <-time.After(100 * time.Millisecond):
	}
	s.abandoned.Store(true)
	if stuck, ok := st.(interface {
		Configure(context.Context, *api.ConfigureRequest) (*api.ConfigureResponse, error)
	}); ok {
		go func() { _, _ = stuck.Configure(context.Background(), &api.ConfigureRequest{}) }()
	}
	return errors.Join(errAbandoned, <-ended)
}

// notTaken gives why a session came to no registration. A runtime that hangs up on a validator whenever it hears which event is wanted
// does not know that event: CRI-O as of May 2025, which calls itself 1.34.0 already. One that hangs up for once is being ended.
func (s *session) notTaken(err error) error {
	runtime := s.answered.Load()
	if !s.Validate || runtime == nil || s.hangUps.Add(1) < hangUpsEnough {
		return err
	}
	return &unsupportedRuntimeError{fmt.Sprintf("%s hangs up on a validator: whatever its version says, it %s: upgrade it", *runtime, validating.defect)}
}

// watchedConn tells when its connection ends, from either side.
type watchedConn struct {
	net.Conn
	once   sync.Once
	closed chan struct{}
}

func (c *watchedConn) end() { c.once.Do(func() { close(c.closed) }) }

// Read reads from the connection.
func (c *watchedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil {
		c.end()
	}
	return n, err
}

// Close closes the connection.
func (c *watchedConn) Close() error {
	c.end()
	return c.Conn.Close()
}
