// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import "context"

// successor is the session that takes over from another.
type successor struct{ ended chan error }

func (n *successor) wait() error { return <-n.ended }

// succeed makes another session, where the policy in force needs other events than this one has subscribed to, or to know of running
// containers that this one has not kept. It returns when the runtime has taken it in, so that no container is created in between
// without the plugin; nil means that this session stays.
func (s *session) succeed(ctx context.Context) *successor {
	if s.events() == s.subscribed && !s.repair.outdated(s.policy.Load()) {
		return nil
	}
	s.Log.Info("the configuration needs other events, or to know of other containers: registering anew")
	next := s.newSession()
	n := &successor{ended: make(chan error, 1)}
	go func() {
		conn, err := s.dial(ctx)
		if err != nil {
			n.ended <- err
			return
		}
		n.ended <- next.run(ctx, conn)
	}()
	select {
	case <-next.registered:
		return n
	case err := <-n.ended:
		s.Log.WithError(err).Error("could not register anew: what the new configuration says of CAP_IPC_LOCK takes effect when the plugin or the runtime is restarted")
		return nil
	}
}
