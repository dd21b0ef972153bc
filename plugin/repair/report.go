// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec"
	"github.com/rdma-spec/rdma-spec/spec"
)

// linesMost bounds how many lines about single containers a pass writes into the log.
const linesMost = 20

// Stats are statistics of running containers: the first three fields are of the last pass, the others since the start.
type Stats struct {
	Memlock        map[Verdict]int // containers that the policy gives memlock
	WithoutIPCLock int             // containers whose stored spec lacks the CAP_IPC_LOCK that the policy gives
	Looked         time.Time
	Raised         uint64 // containers
	Failed         uint64 // attempts to raise one
	Unrecorded     uint64 // containers that did not fit into the record
}

// Stats returns the outcome of the last pass; ok is false if there was none, or if repair is off.
func (r *Loop) Stats() (stats Stats, ok bool) {
	if r == nil {
		return Stats{}, false
	}
	if s := r.stats.Load(); s != nil {
		return *s, true
	}
	return Stats{}, false
}

func (r *Loop) publish(found *findings, withoutIPCLock int) {
	s := &Stats{
		Memlock: map[Verdict]int{}, WithoutIPCLock: withoutIPCLock, Looked: time.Now(),
		Raised: r.raised.Load(), Failed: r.failed.Load(), Unrecorded: r.record.omitted.Load(),
	}
	for _, f := range found.containers {
		if f.wants().Memlock != 0 {
			s.Memlock[f.verdict]++
		}
	}
	r.stats.Store(s)
}

// fix raises what is below policy. The verdict of what could be raised becomes Sufficient. It leaves alone a limit that
// a program has lowered itself. It returns false if the program ends meanwhile: then the outcomes say nothing.
func (r *Loop) fix(ctx context.Context, found *findings, notices *notices) bool {
	wanted := map[string]spec.Limit{}
	for _, f := range found.containers {
		if f.verdict == Below || f.verdict == SpecBelow || f.verdict == Sufficient && f.specPending {
			wanted[f.ID] = f.wants().Memlock
		}
	}
	if found.hidden != nil || len(wanted) == 0 {
		return true
	}
	specs := r.specs()
	outcomes := r.Limits.RaiseWithSpecs(ctx, wanted, specs)
	if ctx.Err() != nil {
		return false
	}
	for _, f := range found.containers {
		if o, ok := outcomes[f.ID]; ok {
			r.fixed(f, o, specs != nil, notices)
		}
	}
	return true
}

// fixed reports what became of a container that was to be raised.
func (r *Loop) fixed(f *finding, o limits.SpecOutcome, withSpec bool, notices *notices) {
	if errors.Is(o.SpecErr, storedspec.ErrNotFound) {
		f.verdict = Sufficient // it has ended meanwhile
		return
	}
	s := f.state
	log := r.logger(f).WithField("processes", o.Raised)
	if o.Err != nil || o.SpecErr != nil {
		r.failed.Add(1)
	}
	if o.Err != nil {
		notices.write(s, log.Error, "below policy, and cannot be raised: "+o.Err.Error())
		return
	}
	specWasLow := f.verdict == SpecBelow
	if o.Raised > 0 || specWasLow && o.SpecChanged {
		r.raised.Add(1)
	}
	s.raisedTo, s.specPending, s.spec = f.wants().Memlock, o.SpecErr != nil, storedSpec{} // which is to be read again
	switch {
	case o.SpecErr != nil:
		notices.write(s, log.Warn, "raised, but later execs into it are not: "+o.SpecErr.Error())
		if specWasLow {
			return
		}
	case !withSpec:
		notices.write(s, log.Info, "was below policy, and is raised; later execs into it are not, "+
			"since this runtime stores no spec that can be changed")
	case specWasLow:
		notices.write(s, log.Info, "its stored spec was below policy, and is raised")
	default:
		notices.write(s, log.Info, "was below policy, and is raised")
	}
	f.verdict = Sufficient
}

// report logs containers that are not sufficient: each once, until its verdict changes.
func (r *Loop) report(found *findings, notices *notices) {
	remedy := "recreate the pod, set repair.mode: fix, or run rdma-spec repair"
	if found.hidden != nil {
		remedy = "recreate the pod, or run rdma-spec repair on the node"
	}
	unknown := 0
	for _, f := range found.containers {
		s, log := f.state, r.logger(f)
		switch f.verdict {
		case Below:
			if s.logged == "" { // otherwise the log says why it cannot be raised
				notices.write(s, log.Warn, "below policy: "+remedy)
			}
		case SpecBelow:
			if s.logged == "" {
				log = log.WithField("spec", f.reading.Spec.Soft.String())
				notices.write(s, log.Warn, "its stored spec is below policy, and so are later execs into it: "+remedy)
			}
		case Lowered:
			notices.write(s, log.Info, "its program has lowered its own memlock: left alone")
		case Unknown:
			unknown++
			notices.write(s, log.Debug, "its memlock is not known")
		}
	}
	notices.end()
	hidden := ""
	if unknown > 0 {
		hidden = fmt.Sprintf("the memlock of RDMA containers that run cannot be read: %v", found.hidden)
		if hidden != r.loggedHidden {
			r.Log.WithField("containers", unknown).Warn(hidden)
		}
	}
	r.loggedHidden = hidden
}

func (r *Loop) logger(f *finding) logrus.FieldLogger {
	lowest, _ := f.reading.Lowest()
	return r.Log.WithFields(logrus.Fields{"pod": f.Namespace + "/" + f.Pod, "container": f.Name, "rule": f.decision.Rule,
		"memlock": lowest.Soft.String(), "wanted": f.wants().Memlock.String()})
}

// notices bounds how many lines a pass logs about single containers.
type notices struct {
	log              logrus.FieldLogger
	written, omitted int
}

// write logs a line about a container, unless it is the last one that was logged about it.
func (n *notices) write(s *state, write func(...any), line string) {
	if s.logged == line {
		return
	}
	s.logged = line
	if n.written++; n.written > linesMost {
		n.omitted++
		return
	}
	write(line)
}

// end logs how many lines were omitted.
func (n *notices) end() {
	if n.omitted > 0 {
		n.log.Warnf("%d more containers have similar problems: rdma-spec status lists them", n.omitted)
	}
}
