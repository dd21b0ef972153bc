// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"

	"github.com/sirupsen/logrus"

	"github.com/rdma-spec/rdma-spec/spec"
)

// startable is the highest memlock with which a runtime can start a container. The plugin determines this memlock in
// the background.
type startable struct {
	found chan struct{} // closed when most is set
	most  spec.Limit    // 0 if unknown
}

// await waits for the limit and returns it. If the context is done first, await returns 0.
func (s *startable) await(ctx context.Context) spec.Limit {
	if s == nil {
		return 0
	}
	select {
	case <-s.found:
		return s.most
	case <-ctx.Done():
		return s.now() // both channels can be ready
	}
}

// now returns the limit without waiting, or 0 if the limit is not known yet.
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

// Connected starts to determine, in the background, the highest memlock that the newly connected runtime can set.
func (p *Plugin) Connected(runtime int) {
	s := &startable{found: make(chan struct{})}
	p.startable.Store(s)
	go func() {
		defer close(s.found)
		s.most = p.startableBy(runtime)
	}()
}

// startableBy returns the highest memlock with which a runtime can start a container, or 0 if this memlock is unknown.
// The argument is the PID of the runtime, or 0 if the PID is unknown.
func (p *Plugin) startableBy(runtime int) spec.Limit {
	if p.Startable == nil {
		return 0
	}
	most, err := p.Startable(runtime)
	if err != nil {
		const unknown = "cannot determine whether the runtime can raise limits: if it cannot, RDMA containers fail " +
			"to start"
		if p.throttle.due(unknown) {
			p.Log.WithError(err).Info(unknown)
		}
		return 0
	}
	if most.Finite() {
		p.Log.WithFields(logrus.Fields{"pid": runtime, "most": most.String()}).Warn("the runtime cannot raise limits, " +
			"so the policy's memlock is lowered to let containers start: set LimitMEMLOCK=infinity in the runtime's unit, " +
			"or give the runtime CAP_SYS_RESOURCE in the node's user namespace, and then restart the runtime")
	}
	return most
}
