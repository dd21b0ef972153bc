// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"

	"github.com/sirupsen/logrus"

	"github.com/rdma-spec/rdma-spec/spec"
)

// startable is the highest memlock with which a runtime can start a container. It is determined in the background.
type startable struct {
	found chan struct{} // closed when most is set
	most  spec.Limit    // 0 if unknown
}

// await waits for the limit and returns it; 0 if the context is done first.
func (s *startable) await(ctx context.Context) spec.Limit {
	if s == nil {
		return 0
	}
	select {
	case <-s.found:
		return s.most
	case <-ctx.Done():
		return s.now() // both may be ready
	}
}

// now returns the limit without waiting; 0 if it is not known yet.
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

// Connected starts to determine, in the background, what memlock the newly connected runtime can set.
func (p *Plugin) Connected(runtime int) {
	s := &startable{found: make(chan struct{})}
	p.startable.Store(s)
	go func() {
		defer close(s.found)
		s.most = p.startableBy(runtime)
	}()
}

// startableBy returns the highest memlock with which the runtime with this PID (0 if unknown) can start a container; 0
// if that is unknown.
func (p *Plugin) startableBy(runtime int) spec.Limit {
	if p.Startable == nil {
		return 0
	}
	most, err := p.Startable(runtime)
	if err != nil {
		const unknown = "cannot tell whether the runtime can raise limits: if the runtime cannot raise them, RDMA " +
			"containers fail to start"
		if p.throttle.due(unknown) {
			p.Log.WithError(err).Info(unknown)
		}
		return 0
	}
	if most.Finite() {
		p.Log.WithFields(logrus.Fields{"pid": runtime, "most": most.String()}).Warn("the runtime cannot raise limits, " +
			"because it lacks CAP_SYS_RESOURCE in the node's user namespace; the policy's memlock is lowered to a value that " +
			"lets containers start: set LimitMEMLOCK=infinity in the runtime's unit, or give the runtime the capability, and " +
			"then restart it")
	}
	return most
}
