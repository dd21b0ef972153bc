// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/sirupsen/logrus"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec"
	"github.com/rdma-spec/rdma-spec/spec"
)

// confirmer finds out what became of grants. It knows those that are pending, and says of each once what the container
// has: that the plugin has answered does not mean that the container got it (docs/design/confirm.md).
type confirmer struct {
	log     logrus.FieldLogger
	metrics *metrics
	pending pendingGrants
	stored  func() StoredSpecs // nil where no stored spec can be edited
	running RunningSpecs       // nil: there are none
	limits  Limits             // nil: nobody can read them
	// unseenLogged: since the registration, the log says that what containers got cannot be confirmed.
	unseenLogged atomic.Bool
}

// confirm compares what a created container has with its grant, once what it lacks is added where that can be done, and
// counts and logs it. The grant of a container whose device came late was never answered.
func (f *confirmer) confirm(ctx context.Context, c policy.Container, ctr *api.Container, pending pendingGrant,
	late bool) {
	start := time.Now()
	found, err := f.complete(ctx, c, ctr, pending.Grant)
	f.metrics.confirmDuration.Observe(time.Since(start).Seconds())
	log := pending.Subject.log(f.log)
	switch {
	case errors.Is(err, storedspec.ErrNoSocket), errors.Is(err, errUnseen):
		f.cannotConfirm(err)
		withoutIPCLock := pending.Grant
		withoutIPCLock.IPCLock = spec.IPCLockNo
		f.answered(log, withoutIPCLock)
	case err != nil:
		f.unconfirmed(log, err, nextStep(err))
	default:
		f.report(log, outcomeOf(c, pending.Grant, found), late)
	}
}

// outcome is what became of a grant.
type outcome struct {
	memlock spec.Limit // that the container has; 0 where that is unknown
	before  spec.Limit // the lower memlock that it had instead of the granted one; 0 where nothing had set one
	raised  bool       // its memlock was lower than the granted one
	ipcLock bool
	granted spec.Grant
	lacks   spec.Grant
}

// outcomeOf compares a container with its grant. What was found comes from its stored spec or its first process; the
// container itself is as the event has it.
func outcomeOf(c policy.Container, grant spec.Grant, found storedspec.Found) outcome {
	has := hasOf(&c)
	has.IPCLock = found.IPCLock
	has.Memlock = found.Memlock.Soft
	raised := grant.Lacks(has).Memlock != 0
	o := outcome{granted: grant, raised: raised, ipcLock: found.IPCLock, memlock: found.Memlock.Soft}
	switch {
	case raised && found.Wrote:
		o.before = found.Memlock.Soft
		o.memlock = grant.Memlock
	case found.Memlock == spec.Rlimit{}: // the spec sets none
		o.memlock = c.Memlock.Soft
	}
	if found.Wrote {
		has.Memlock = max(has.Memlock, grant.Memlock)
	}
	o.lacks = grant.Lacks(has)
	return o
}

// report counts and logs an outcome.
func (f *confirmer) report(log logrus.FieldLogger, o outcome, late bool) {
	switch {
	case o.lacks.Memlock != 0:
		f.unconfirmed(log, fmt.Errorf("its memlock is %s", o.memlock), "rdma-spec repair raises it")
		return
	case len(o.lacks.Devices) > 0:
		f.unconfirmed(log, fmt.Errorf("it lacks %s", o.lacks.DeviceNames()), "another plugin removes devices: find "+
			"out which")
		return
	}
	log = log.WithFields(fieldsOf(spec.Grant{Memlock: o.memlock, Devices: o.granted.Devices})).
		WithField("ipc_lock", o.ipcLock)
	if o.before != 0 { // else the container would have had the runtime's own
		log = log.WithField("from", o.before.String())
	}
	switch {
	case late:
		f.metrics.grants.WithLabelValues(grantLate).Inc()
		log.Info("adjusted: " + cameLate)
	case o.raised:
		f.metrics.grants.WithLabelValues(grantRaised).Inc()
		log.Info("adjusted")
	default:
		f.metrics.grants.WithLabelValues(grantConfirmed).Inc()
		log.Info("adjusted")
	}
}

// errUnseen means that the first process of a created container is not visible.
var errUnseen = errors.New("the first process of a created container is not visible")

// complete adds what a created container lacks of a grant, devices aside, if that can be written, and returns what it
// has.
func (f *confirmer) complete(ctx context.Context, c policy.Container, ctr *api.Container,
	grant spec.Grant) (storedspec.Found, error) {
	specs := f.stored()
	switch {
	case specs == nil:
		has, err := firstMemlock(f.limits, ctr, f.limits.Newest)
		return storedspec.Found{Memlock: has}, err
	case grant.IPCLock == spec.IPCLockNo && c.Memlock.Soft >= grant.Memlock: // the event says so, from containerd 2.3 on
		return storedspec.Found{Memlock: c.Memlock}, nil
	}
	return specs.Confirm(ctx, ctr.GetId(), grant)
}

// firstMemlock returns the RLIMIT_MEMLOCK of a container's first process; errUnseen where that cannot be seen. It looks
// for the process only where the runtime does not name it: CRI-O 1.34 has no PID in a container's events
// (internal/nri/container.go), and no runtime has one in its list.
func firstMemlock(limits Limits, ctr *api.Container, find func(container string) (int, error)) (spec.Rlimit, error) {
	pid := int(ctr.GetPid())
	if pid == 0 {
		found, err := find(ctr.GetId())
		if err != nil {
			return spec.Rlimit{}, fmt.Errorf("%w: %w", errUnseen, err)
		}
		if found == 0 {
			return spec.Rlimit{}, errUnseen
		}
		pid = found
	}
	limit, err := limits.MemlockIn(ctr.GetId(), pid)
	if err != nil {
		return spec.Rlimit{}, fmt.Errorf("%w: %w", errUnseen, err)
	}
	return limit, nil
}

// fieldsOf returns a grant as fields of a log line.
func fieldsOf(grant spec.Grant) logrus.Fields {
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
func (f *confirmer) answered(log logrus.FieldLogger, grant spec.Grant) {
	f.metrics.grants.WithLabelValues(grantAnswered).Inc()
	log.WithFields(fieldsOf(grant)).Info("answered")
}

// cannotConfirm logs once a registration why nothing shows what containers got.
func (f *confirmer) cannotConfirm(cause error) {
	if !f.unseenLogged.Swap(true) {
		f.log.WithError(cause).Warn("cannot confirm grants of RDMA containers: the log has \"answered\" instead of " +
			"\"adjusted\"; without containerd's socket, containers get no CAP_IPC_LOCK")
	}
}

// unconfirmed counts and logs a grant that the container may not have got, or not all of it.
func (f *confirmer) unconfirmed(log logrus.FieldLogger, err error, next string) {
	f.metrics.grants.WithLabelValues(grantUnconfirmed).Inc()
	log.WithError(err).Warn("not confirmed: the container may lack part of its grant; " + next)
}

// nextStep returns what somebody can do about a grant that is not confirmed.
func nextStep(err error) string {
	if errors.Is(err, storedspec.ErrStarted) {
		return "processes that are executed later have it; if running ones need it, recreate the pod"
	}
	return "run rdma-spec status, then recreate the pod or run rdma-spec repair; if containerd is often this slow, " +
		"raise plugin_request_timeout in its configuration"
}

const (
	// confirmedWithin is how long the runtime may take from CreateContainer to PostCreateContainer.
	confirmedWithin = 10 * time.Second
	expireEvery     = 5 * time.Second
)

var (
	errDropped = errors.New("containerd had already dropped this plugin, and may have ignored the whole grant")
	errHidden  = errors.New("the runtime created the container but did not call this plugin's PostCreateContainer: " +
		"another plugin's fails; see the runtime's log")
)

// dropListed gives up the pending grants of containers that the runtime lists when the plugin registers: it has created
// them without asking.
func (f *confirmer) dropListed(containers []*api.Container) {
	for _, ctr := range containers {
		f.giveUp(ctr.GetId(), errDropped)
	}
}

// giveUp counts and logs a grant that PostCreateContainer will not confirm.
func (f *confirmer) giveUp(id string, cause error) {
	if pending, found := f.pending.take(id); found {
		f.unconfirmed(pending.Subject.log(f.log), cause, nextStep(cause))
	}
}

// expire gives up overdue grants until the context is done.
func (f *confirmer) expire(ctx context.Context) {
	tick := time.NewTicker(expireEvery)
	defer tick.Stop()
	missing := map[string]bool{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			f.expireOverdue(ctx, missing)
		}
	}
}

// expireOverdue gives up the grants of containers that were created long ago. A container that is missing then is still
// being created, or will never be: it is not looked for again.
func (f *confirmer) expireOverdue(ctx context.Context, missing map[string]bool) {
	all := f.pending.all()
	maps.DeleteFunc(missing, func(id string, _ bool) bool {
		_, pending := all[id]
		return !pending
	})
	for id, grant := range all {
		if missing[id] || time.Since(grant.Since) < confirmedWithin {
			continue
		}
		if f.running != nil && f.stored() != nil {
			_, err := f.running.Read(ctx, id)
			missing[id] = errors.Is(err, storedspec.ErrNotFound)
		}
		if !missing[id] {
			f.giveUp(id, errHidden)
		}
	}
}
