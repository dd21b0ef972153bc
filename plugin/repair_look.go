// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec"
	"github.com/rdma-spec/rdma-spec/spec"
)

// findings are what a pass has found.
type findings struct {
	rdma     int // containers that the policy gives memlock
	below    []finding
	unknown  []finding
	unspec   []finding // raised, but for the stored spec
	settling bool      // some container is too young for one to be sure
	hidden   error     // why processes cannot be seen
}

// finding is a container that the policy gives memlock, and the one that it has.
type finding struct {
	*watched
	grant   spec.Grant
	current spec.Rlimit
	rule    string
}

// look decides about every container and compares.
func (r *repair) look(ctx context.Context, p *policy.Policy) *findings {
	found := &findings{hidden: r.Limits.Visible()}
	all := r.all()
	r.forgetOthers(all)
	if len(all) == 0 {
		return found
	}
	var running map[string][]int
	if found.hidden == nil {
		running, found.hidden = r.Limits.Containers()
	}
	node, now := once(r.node), time.Now()
	r.asked = 0
	for _, w := range all {
		if ctx.Err() != nil {
			return found
		}
		pids := running[w.id]
		switch {
		case found.hidden != nil && !w.listed && r.runningSpecs() == nil:
			r.remove(w.id) // it would never be known when it is gone, and it was created as the policy wants
			continue
		case found.hidden == nil && len(pids) == 0:
			if now.Sub(w.since) > startsWithin {
				r.remove(w.id)
			}
			found.settling = found.settling || w.listed && w.young()
			continue
		}
		decision, sure := r.decide(ctx, p, w, node)
		switch {
		case decision.Grant != nil && decision.Grant.Memlock != 0:
			r.compare(ctx, found, finding{watched: w, grant: *decision.Grant, rule: decision.Rule}, pids)
			found.settling = found.settling || w.listed && w.young()
		case sure && !w.evident:
			r.remove(w.id) // no configuration that is in force without another listing makes more of it
		}
	}
	return found
}

// decide decides about a container that runs. It is not sure where the kubelet did not tell what the decision depends on.
func (r *repair) decide(ctx context.Context, p *policy.Policy, w *watched, node policy.Node) (d policy.Decision, sure bool) {
	c, sure := w.container(), true
	if r.Resources != nil {
		c.Resources = func() ([]string, bool, error) {
			names, known, err := r.resources(ctx, w)
			sure = err == nil && known
			return names, known, err
		}
	}
	d = p.Decide(c, node)
	return d, sure
}

// resources asks the kubelet once about each container: what it holds was allotted for good when its pod was admitted.
func (r *repair) resources(ctx context.Context, w *watched) (names []string, known bool, err error) {
	if s := r.states[w.id]; s != nil && s.asked {
		return s.resources, s.known, nil
	}
	if r.asked++; r.asked > kubeletBurst {
		pause := time.NewTimer(kubeletPause)
		defer pause.Stop()
		select {
		case <-ctx.Done():
			return nil, false, ctx.Err()
		case <-pause.C:
		}
	}
	names, known, err = r.Resources.Names(w.sandbox, w.Namespace, w.Pod, w.Name)
	if err == nil {
		s := r.state(w.id)
		s.resources, s.known, s.asked = names, known, true
	}
	return names, known, err
}

// compare says whether a container has what it is given: by its processes where they can be seen, else by what its spec says.
func (r *repair) compare(ctx context.Context, found *findings, f finding, pids []int) {
	known := false
	if found.hidden == nil {
		f.current, known = r.lowest(pids)
		if !known {
			return // its processes ended just now
		}
	} else {
		var gone bool
		f.current, known, gone = r.fromSpec(ctx, f.watched)
		if gone {
			r.remove(f.id)
			return
		}
	}
	found.rdma++
	_, low := f.current.Raise(f.grant.Memlock)
	s := r.states[f.id]
	switch {
	case !known:
		found.unknown = append(found.unknown, f)
	case low && f.starting():
		found.settling = true
	case low:
		found.below = append(found.below, f)
	case s == nil:
	case s.specPending:
		found.unspec = append(found.unspec, f)
	default:
		s.said = "" // should it be low again, that is news
	}
}

// starting says whether a container that was created with enough may just not have got it yet: a runtime sets the limit of a
// container's first process a moment after the process is there.
func (f finding) starting() bool {
	_, low := f.reported.Raise(f.grant.Memlock)
	return !low && f.young()
}

// lowest gives the lowest limit of processes; known is false where all have ended.
func (r *repair) lowest(pids []int) (lowest spec.Rlimit, known bool) {
	for _, pid := range pids {
		limit, err := r.Limits.Memlock(pid)
		if err == nil && (!known || limit.Soft < lowest.Soft) {
			lowest, known = limit, true
		}
	}
	return lowest, known
}

// fromSpec gives the limit with which a container's processes start, and whether the container is gone.
func (r *repair) fromSpec(ctx context.Context, w *watched) (limit spec.Rlimit, known, gone bool) {
	if specs := r.runningSpecs(); specs != nil {
		text, err := specs.Read(ctx, w.id)
		if errors.Is(err, storedspec.ErrNotFound) {
			return spec.Rlimit{}, false, true
		}
		if err == nil {
			if limit, known, err = spec.Memlock(text); err == nil && known {
				return limit, true, false
			}
		}
	}
	return w.reported, w.reported != spec.Rlimit{}, false
}

func (r *repair) runningSpecs() RunningSpecs {
	if r.RunningSpecs == nil || !r.specsUsable.Load() {
		return nil
	}
	return r.RunningSpecs
}

func (r *repair) state(id string) *repairState {
	s := r.states[id]
	if s == nil {
		s = &repairState{}
		r.states[id] = s
	}
	return s
}

// forgetOthers forgets what was remembered of containers that are not watched any more.
func (r *repair) forgetOthers(watching []*watched) {
	kept := make(map[string]*repairState, len(r.states))
	for _, w := range watching {
		if s := r.states[w.id]; s != nil {
			kept[w.id] = s
		}
	}
	r.states = kept
}

func (r *repair) logger(f finding) logrus.FieldLogger {
	return r.Log.WithFields(logrus.Fields{"pod": f.Namespace + "/" + f.Pod, "container": f.Name, "rule": f.rule,
		"memlock": f.current.Soft.String(), "wanted": f.grant.Memlock.String()})
}
