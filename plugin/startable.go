// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"

	"github.com/sirupsen/logrus"

	"github.com/rdma-spec/rdma-spec/spec"
)

// startable is the highest memlock of a container that a runtime can start, which is found out beside the requests.
type startable struct {
	found chan struct{} // closed when it was looked for
	most  spec.Limit    // 0: unknown
}

// within returns the limit, once it is found out; 0 where that is not before the context is done.
func (s *startable) within(ctx context.Context) spec.Limit {
	if s == nil {
		return 0
	}
	select {
	case <-s.found:
		return s.most
	case <-ctx.Done():
		return s.now() // both may have happened
	}
}

// now is within for who cannot wait.
func (s *startable) now() spec.Limit {
	if s == nil {
		return 0
	}
	select {
	case <-s.found:
		return s.most
	default:
		return 0
	}
}

// Connected finds out, beside the requests, what the runtime of a connection that begins can start.
func (p *Plugin) Connected(runtime int) {
	s := &startable{found: make(chan struct{})}
	p.startable.Store(s)
	go func() {
		defer close(s.found)
		s.most = p.startableBy(runtime)
	}()
}

// startableBy returns the highest memlock of a container that a runtime can start, given by its process, or by 0; 0:
// unknown.
func (p *Plugin) startableBy(runtime int) spec.Limit {
	if p.Startable == nil {
		return 0
	}
	most, err := p.Startable(runtime)
	if err != nil {
		const unknown = "cannot tell whether the runtime can raise limits: if it cannot, RDMA containers do not start"
		if p.throttle.due(unknown) {
			p.Log.WithError(err).Info(unknown)
		}
		return 0
	}
	if most.Finite() {
		p.Log.WithFields(logrus.Fields{"pid": runtime, "most": most.String()}).Warn("the runtime cannot raise limits, " +
			"because it lacks CAP_SYS_RESOURCE in the node's user namespace, so the policy's memlock is lowered to a value " +
			"with which containers can start: set LimitMEMLOCK=infinity in its unit, or give it the capability, and restart it")
	}
	return most
}
