// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec"
)

const (
	// repairIdle is how often it is looked whether there is a policy, and one that has running containers looked after.
	repairIdle = time.Second
	// settling is how long a container that was there at registration may take to have a process, or the limits that its spec says; it
	// is looked after each settlingEvery meanwhile.
	settling      = 10 * time.Second
	settlingEvery = time.Second
	// startsWithin is how long after its creation a container without processes is taken for one that has not been started yet.
	startsWithin = time.Minute
	// kubeletBurst look-ups are made at once, and then one each kubeletPause: the kubelet takes a hundred a second, and those of
	// containers that are created come first.
	kubeletBurst = 10
	kubeletPause = 50 * time.Millisecond
)

// Limits reads and raises the limits of the node's processes.
type Limits interface {
	// Visible says why the processes of containers cannot be seen; nil where they can.
	Visible() error
	// Containers gives the processes of each container that has some, by the container's ID.
	Containers() (map[string][]int, error)
	// Memlock reads RLIMIT_MEMLOCK of a process.
	Memlock(pid int) (spec.Rlimit, error)
	// Repair raises the processes of containers, and their stored specs, to at least what is wanted.
	Repair(ctx context.Context, wanted map[string]spec.Limit, specs limits.Specs) map[string]limits.Repaired
}

// RunningSpecs reads and edits the stored specs of containers that run.
type RunningSpecs interface {
	limits.Specs
	// Read gives the JSON text of a container's stored spec; storedspec.ErrNotFound where there is none.
	Read(ctx context.Context, container string) ([]byte, error)
}

// repair looks after containers that run: those whose memlock is below what the policy gives, because they were created without the
// plugin or under another configuration, are told of, or raised without a restart.
//
// It works beside the requests and holds none of them up.
type repair struct {
	*Plugin
	watchlist
	specsUsable atomic.Bool // the runtime keeps specs that can be edited
	wake        chan struct{}
	stats       atomic.Pointer[RepairStats]
	counts      struct{ repaired, failed atomic.Uint64 }

	states map[string]*repairState // of the pass alone, by container
	asked  int                     // how often the kubelet was asked in this pass
}

// repairState is what is remembered of a container from one pass to the next.
type repairState struct {
	said        string   // about it, in the log
	resources   []string // that it holds
	asked       bool     // resources is what the kubelet said
	known       bool     // there are no others
	specPending bool     // its processes were raised, and its stored spec was not
}

func newRepair(p *Plugin) *repair {
	return &repair{Plugin: p, wake: make(chan struct{}, 1), states: map[string]*repairState{}}
}

// start looks after running containers until the context is done or stop is called.
func (r *repair) start(ctx context.Context) (stop func()) {
	if r.Limits == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.loop(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

func (r *repair) loop(ctx context.Context) {
	next := time.NewTimer(repairIdle)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		case <-r.wake:
		}
		next.Reset(r.pass(ctx))
	}
}

// registered takes over the runtime's list of containers. It copies and returns: the runtime creates no container meanwhile.
func (r *repair) registered(pods []*api.PodSandbox, containers []*api.Container, specsUsable bool) {
	p := r.Plugin.policy()
	if r.Limits == nil || p == nil {
		return
	}
	r.list(p, pods, containers, time.Now())
	r.specsUsable.Store(specsUsable)
	r.lookAgain()
}

// lookAgain has a pass made now.
func (r *repair) lookAgain() {
	select {
	case r.wake <- struct{}{}:
	default: // it is awake
	}
}

// created is told of each container that is created with a grant, or without one because the kubelet did not tell.
func (r *repair) created(c policy.Container, ctr *api.Container, grant spec.Grant) {
	if r.Limits != nil {
		r.add(c, ctr, grant, time.Now())
	}
}

// pass looks at every container once, and gives the time until the next pass.
func (r *repair) pass(ctx context.Context) time.Duration {
	p := r.Plugin.policy()
	if p == nil || p.Config().Repair.Mode == policy.RepairOff {
		r.stats.Store(nil)
		return repairIdle
	}
	found := r.look(ctx, p)
	if ctx.Err() != nil {
		return repairIdle
	}
	if p.Config().Repair.Mode == policy.RepairFix {
		r.fix(ctx, found)
	}
	r.publish(found)
	if found.settling {
		return min(settlingEvery, p.RepairEvery())
	}
	return p.RepairEvery()
}
