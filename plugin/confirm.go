// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/sirupsen/logrus"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec"
	"github.com/rdma-spec/rdma-spec/spec"
)

// PostCreateContainer is called for every container that the runtime has created, with what all plugins and CDI have
// given it. containerd's task does not exist yet; CRI-O's first process does. Now a grant is confirmed, and the stored
// spec of containerd gets what NRI cannot express or somebody else has taken back. No error is returned: the runtime
// would only log it, and ask no plugin behind this one.
func (p *Plugin) PostCreateContainer(ctx context.Context, pod *api.PodSandbox, ctr *api.Container) error {
	made, owed := p.owed.take(ctr.GetId())
	if !owed && !p.holdsVerbs(pod, ctr) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, p.registration.RequestTimeout()) // of a decision and a write together
	defer cancel()
	c := ContainerOf(pod, ctr)
	if owed {
		p.settle(ctx, c, ctr, made, grantConfirmed)
		return nil
	}
	decision := p.decide(ctx, pod, c)
	switch {
	case decision.Refusal != nil:
		p.metrics.grants.WithLabelValues(grantRefusedLate).Inc()
		p.decided(c, decision).WithField("cause", decision.Refusal.Cause).Error("it runs, although the policy refuses it: " +
			cameLate + ": " + decision.Refusal.Message)
	case decision.Grant != nil:
		decision.Grant.Devices = nil
		p.settle(ctx, c, ctr, promised(c, decision), grantLate)
	case decision.Authored != "":
		p.metrics.authored.Inc()
		p.decided(c, decision).Info("left alone: " + decision.Reason)
	}
	return nil
}

const cameLate = "its verbs device came after this plugin had answered, as one does that another NRI plugin names by " +
	"CDI"

// holdsVerbs reports whether a created container holds a verbs device that makes it an RDMA container.
func (p *Plugin) holdsVerbs(pod *api.PodSandbox, ctr *api.Container) bool {
	return mayHoldVerbs(ctr) && policy.HoldsVerbs(ContainerOf(pod, ctr), p.facts)
}

// settle compares what a created container has with its grant, adds what it lacks if that can be written, and says so.
func (p *Plugin) settle(ctx context.Context, c policy.Container, ctr *api.Container, made promise, result string) {
	start := time.Now()
	grant := made.Grant
	log := p.about(made)
	found, err := p.has(ctx, c, ctr, grant)
	p.metrics.confirmDuration.Observe(time.Since(start).Seconds())
	if errors.Is(err, storedspec.ErrNoSocket) || errors.Is(err, errUnseen) {
		p.cannotConfirm(err)
		grant.IPCLock = spec.IPCLockNo
		p.answered(log, grant)
		return
	}
	memlock, low := found.Memlock.Raise(grant.Memlock)
	lacks := spec.Grant{Devices: lacking(c, grant.Devices)}
	c.Memlock = cmp.Or(found.Memlock, c.Memlock)
	if found.Wrote {
		c.Memlock = memlock
	}
	switch {
	case err != nil:
		p.unconfirmed(log, err, next(err))
	case low && !found.Wrote:
		p.unconfirmed(log, fmt.Errorf("its memlock is %s", c.Memlock.Soft), "rdma-spec repair raises it")
	case len(lacks.Devices) > 0:
		p.unconfirmed(log, fmt.Errorf("it lacks %s", lacks.DeviceNames()), "see which other plugin takes devices away")
	default:
		log = log.WithFields(given(spec.Grant{Memlock: c.Memlock.Soft, Devices: grant.Devices})).
			WithField("ipc_lock", found.IPCLock)
		if low && found.Memlock.Soft != 0 { // else nothing has set one, and the container would have had the runtime's
			log = log.WithField("from", found.Memlock.Soft.String())
		}
		if low && result == grantConfirmed {
			result = grantRaised
		}
		p.metrics.grants.WithLabelValues(result).Inc()
		if result == grantLate {
			log.Info("adjusted: " + cameLate)
			return
		}
		log.Info("adjusted")
	}
}

// errUnseen means that the first process of a created container cannot be seen.
var errUnseen = errors.New("the first process of a created container cannot be seen")

// has returns what a created container has, once what it lacks of a grant is added, if that can be written.
func (p *Plugin) has(ctx context.Context, c policy.Container, ctr *api.Container,
	grant spec.Grant) (storedspec.Found, error) {
	specs := p.specs()
	switch {
	case specs == nil:
		has, err := p.firstMemlock(ctr, p.Limits.Containers)
		return storedspec.Found{Memlock: has}, err
	case grant.IPCLock == spec.IPCLockNo && c.Memlock.Soft >= grant.Memlock: // the event says so, from containerd 2.3 on
		return storedspec.Found{Memlock: c.Memlock}, nil
	}
	return specs.Confirm(ctx, ctr.GetId(), grant)
}

// firstMemlock returns the RLIMIT_MEMLOCK of a container's first process; errUnseen where that cannot be seen. All
// processes are asked for it only where the runtime does not name it: CRI-O 1.34 has no PID in a container's events
// (internal/nri/container.go), and no runtime lists one.
func (p *Plugin) firstMemlock(ctr *api.Container, running func() (map[string][]int, error)) (spec.Rlimit, error) {
	pid := int(ctr.GetPid())
	if pid == 0 {
		all, err := running()
		if err != nil {
			return spec.Rlimit{}, fmt.Errorf("%w: %w", errUnseen, err)
		}
		if len(all[ctr.GetId()]) == 0 {
			return spec.Rlimit{}, errUnseen
		}
		pid = all[ctr.GetId()][0]
	}
	limit, err := p.Limits.MemlockIn(ctr.GetId(), pid)
	if err != nil {
		return spec.Rlimit{}, fmt.Errorf("%w: %w", errUnseen, err)
	}
	return limit, nil
}

// given returns a grant as fields of a log line.
func given(grant spec.Grant) logrus.Fields {
	fields := logrus.Fields{}
	if grant.Memlock != 0 {
		fields["memlock"] = grant.Memlock.String()
	}
	if grant.IPCLock != spec.IPCLockNo {
		fields["ipc_lock"] = string(grant.IPCLock)
	}
	if len(grant.Devices) > 0 {
		fields["devices"] = grant.DeviceNames()
	}
	return fields
}

// answered counts and logs a grant where nothing shows what the container got.
func (p *Plugin) answered(log logrus.FieldLogger, grant spec.Grant) {
	p.metrics.grants.WithLabelValues(grantAnswered).Inc()
	log.WithFields(given(grant)).Info("answered")
}

// cannotConfirm says, once a registration, why nothing shows what containers got.
func (p *Plugin) cannotConfirm(why error) {
	if !p.unseen.Swap(true) {
		p.Log.WithError(why).Warn("what RDMA containers got cannot be confirmed here: the log says answered, not adjusted, " +
			"and where containerd's socket is missing, they get no CAP_IPC_LOCK")
	}
}

// unconfirmed counts and logs a grant that the container may not have got, or not all of it.
func (p *Plugin) unconfirmed(log logrus.FieldLogger, err error, next string) {
	p.metrics.grants.WithLabelValues(grantUnconfirmed).Inc()
	log.WithError(err).Warn("not confirmed: the container may lack what it was granted; " + next)
}

// next returns what somebody can do about a grant that is not confirmed.
func next(err error) string {
	if errors.Is(err, storedspec.ErrStarted) {
		return "processes of later execs have it; if the running ones need it, recreate the pod"
	}
	return "see rdma-spec status, and recreate the pod or run rdma-spec repair; if containerd is often this slow, let " +
		"it wait longer for plugins: plugin_request_timeout in its configuration"
}

const (
	// settledWithin is how long the runtime may take from CreateContainer to PostCreateContainer.
	settledWithin = 10 * time.Second
	giveUpEvery   = 5 * time.Second
)

var (
	errDropped = errors.New("containerd had dropped this plugin before: it may have ignored all that was granted")
	errHidden  = errors.New("the runtime has created it and has not asked this plugin again: another plugin's " +
		"PostCreateContainer fails, see the runtime's log")
)

// dropped gives up what is owed to containers that the runtime lists when the plugin registers again: it has created
// them without asking.
func (p *Plugin) dropped(containers []*api.Container) {
	for _, ctr := range containers {
		p.giveUp(ctr.GetId(), errDropped)
	}
}

// giveUp counts and logs a promise that PostCreateContainer will not settle, and leaves it to repair.
func (p *Plugin) giveUp(id string, why error) {
	if made, owed := p.owed.take(id); owed {
		p.unconfirmed(p.about(made), why, next(why))
	}
}

// giveUpAll gives up overdue promises until the context is done.
func (p *Plugin) giveUpAll(ctx context.Context) {
	again := time.NewTicker(giveUpEvery)
	defer again.Stop()
	missing := map[string]bool{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-again.C:
			p.giveUpOverdue(ctx, missing)
		}
	}
}

// giveUpOverdue gives up the promises to containers that were created long ago. A container that is missing then is
// still being created, or will never be: it is not looked for again.
func (p *Plugin) giveUpOverdue(ctx context.Context, missing map[string]bool) {
	all := p.owed.all()
	maps.DeleteFunc(missing, func(id string, _ bool) bool { _, owed := all[id]; return !owed })
	for id, made := range all {
		if missing[id] || time.Since(made.Since) < settledWithin {
			continue
		}
		if p.RunningSpecs != nil && p.specs() != nil {
			_, err := p.RunningSpecs.Read(ctx, id)
			missing[id] = errors.Is(err, storedspec.ErrNotFound)
		}
		if !missing[id] {
			p.giveUp(id, errHidden)
		}
	}
}
