// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/spec"
)

// repairLines bounds what one pass writes into the log, about containers one by one.
const repairLines = 20

// RepairStats are what is known of the containers that run. The first three are of the last pass, the others since the start.
type RepairStats struct {
	RDMA     int // containers that run and that the policy gives memlock
	Below    int // those of them that have less
	Unknown  int // those of which nobody can tell
	Repaired uint64
	Failed   uint64 // attempts
	Looked   time.Time
}

// RepairStats tells of the last pass over the containers that run; ok is false where there was none, or repair is off.
func (p *Plugin) RepairStats() (stats RepairStats, ok bool) {
	if s := p.repair.stats.Load(); s != nil {
		return *s, true
	}
	return RepairStats{}, false
}

// fix raises what is below policy. What is left below stays in the findings.
func (r *repair) fix(ctx context.Context, found *findings) {
	if found.hidden != nil || len(found.below)+len(found.unspec) == 0 {
		return
	}
	wanted := map[string]spec.Limit{}
	for _, f := range slices.Concat(found.below, found.unspec) {
		wanted[f.id] = f.grant.Memlock
	}
	var specs limits.Specs
	if s := r.runningSpecs(); s != nil {
		specs = s
	}
	outcomes := r.Limits.Repair(ctx, wanted, specs)
	lines := r.newLines()
	for _, f := range found.unspec {
		r.fixed(f, outcomes[f.id], specs != nil, lines)
	}
	found.below = slices.DeleteFunc(found.below, func(f finding) bool { return r.fixed(f, outcomes[f.id], specs != nil, lines) })
	lines.end()
}

// fixed tells what became of a container that was to be raised, and whether its processes were.
func (r *repair) fixed(f finding, o limits.Repaired, withSpecs bool, lines *lines) bool {
	s := r.state(f.id)
	s.specPending = o.SpecErr != nil
	log := r.logger(f).WithField("processes", o.Raised)
	switch {
	case o.Err != nil:
		r.counts.failed.Add(1)
		lines.say(s, log.Error, "below policy, and cannot be raised: "+o.Err.Error())
		return false
	case o.SpecErr != nil:
		r.counts.failed.Add(1)
		lines.say(s, log.Warn, "raised, but later execs into it are not: "+o.SpecErr.Error())
	case !withSpecs:
		lines.say(s, log.Info, "was below policy, and is raised; later execs into it are not, since this runtime keeps no spec that could be changed")
	default:
		lines.say(s, log.Info, "was below policy, and is raised")
	}
	if o.Raised > 0 {
		r.counts.repaired.Add(1)
	}
	return true
}

// publish tells of what is left, once about each container, and for the metrics.
func (r *repair) publish(found *findings) {
	remedy := "recreate the pod, set repair.mode: fix, or run rdma-spec repair"
	if found.hidden != nil {
		remedy = "recreate the pod, or run rdma-spec repair on the node"
	}
	lines := r.newLines()
	for _, f := range found.below {
		if s := r.state(f.id); s.said == "" {
			lines.say(s, r.logger(f).Warn, "below policy: "+remedy)
		}
	}
	for _, f := range found.unknown {
		lines.say(r.state(f.id), r.logger(f).Debug, "nobody can tell its memlock")
	}
	lines.end()
	if len(found.unknown) > 0 {
		message := fmt.Sprintf("the memlock of RDMA containers that run cannot be read: %v", found.hidden)
		if r.told.due(message) {
			r.Log.WithField("containers", len(found.unknown)).Warn(message)
		}
	}
	r.stats.Store(&RepairStats{
		RDMA: found.rdma, Below: len(found.below), Unknown: len(found.unknown),
		Repaired: r.counts.repaired.Load(), Failed: r.counts.failed.Load(), Looked: time.Now(),
	})
}

// lines keeps what a pass says of containers one by one within bounds.
type lines struct {
	log        logrus.FieldLogger
	said, held int
}

func (r *repair) newLines() *lines { return &lines{log: r.Log} }

// say says something of a container, unless it is what was said of it last.
func (l *lines) say(s *repairState, speak func(...any), message string) {
	if s.said == message {
		return
	}
	s.said = message
	if l.said++; l.said > repairLines {
		l.held++
		return
	}
	speak(message)
}

// end says how many lines were held back.
func (l *lines) end() {
	if l.held > 0 {
		l.log.Warnf("the same, or something like it, is true of %d more containers: rdma-spec status lists them", l.held)
	}
}
