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

// confirmer finds out what containers got of their grants. It stores the pending grants, and reports once for each what
// the container has: the runtime may not apply what the plugin responds (docs/design/confirm.md).
type confirmer struct {
	log     logrus.FieldLogger
	metrics *metrics
	pending pendingGrants
	stored  func() StoredSpecs // nil if stored specs cannot be edited
	running RunningSpecs       // nil if there are none
	limits  Limits             // nil if they cannot be read
	// unseenLogged is true if the log says, since the last registration, that grants cannot be confirmed.
	unseenLogged atomic.Bool
}

// confirm adds what a created container lacks of its grant, if it can, then compares, counts, and logs the result. It
// is late if the container's verbs device appeared after the plugin responded, so that the response contained no grant.
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
		f.reportAnswered(log, withoutIPCLock)
	case err != nil:
		f.reportUnconfirmed(log, err, nextStep(err))
	default:
		f.report(log, outcomeOf(c, pending.Grant, found), late)
	}
}

// outcome is what a container got of its grant.
type outcome struct {
	memlock spec.Limit // the container's memlock; 0 if it is unknown
	before  spec.Limit // its memlock before it was raised; 0 if none was set
	raised  bool       // its memlock was lower than the granted one
	ipcLock bool
	granted spec.Grant
	lacks   spec.Grant
}

// outcomeOf compares a container with its grant. The container is as the event describes it; found comes from its
// stored spec or its first process.
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
		f.reportUnconfirmed(log, fmt.Errorf("its memlock is %s", o.memlock), "rdma-spec repair raises it")
		return
	case len(o.lacks.Devices) > 0:
		f.reportUnconfirmed(log, fmt.Errorf("it lacks %s", o.lacks.DeviceNames()),
			"another plugin removes devices: find out which one")
		return
	}
	log = log.WithFields(fieldsOf(spec.Grant{Memlock: o.memlock, Devices: o.granted.Devices})).
		WithField("ipc_lock", o.ipcLock)
	if o.before != 0 { // otherwise it would have had the runtime's default
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

// complete adds what a created container lacks of a grant except devices, if the stored spec can be written, and
// returns what the container has.
func (f *confirmer) complete(ctx context.Context, c policy.Container, ctr *api.Container,
	grant spec.Grant) (storedspec.Found, error) {
	specs := f.stored()
	switch {
	case specs == nil:
		has, err := firstMemlock(f.limits, ctr, f.limits.Newest)
		return storedspec.Found{Memlock: has}, err
	case grant.IPCLock == spec.IPCLockNo && c.Memlock.Soft >= grant.Memlock: // listed by containerd 2.3 and later
		return storedspec.Found{Memlock: c.Memlock}, nil
	}
	return specs.Confirm(ctx, ctr.GetId(), grant)
}

// firstMemlock returns the RLIMIT_MEMLOCK of a container's first process; errUnseen if the process is not visible. It
// searches for the process only if the runtime does not report its PID: CRI-O 1.34 reports none in a container's events
// (internal/nri/container.go), and no runtime reports PIDs in its list of containers.
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

// fieldsOf returns a grant as the fields of a log line.
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

// reportAnswered counts and logs a grant that cannot be confirmed.
func (f *confirmer) reportAnswered(log logrus.FieldLogger, grant spec.Grant) {
	f.metrics.grants.WithLabelValues(grantAnswered).Inc()
	log.WithFields(fieldsOf(grant)).Info("answered")
}

// cannotConfirm logs once for each registration why grants cannot be confirmed.
func (f *confirmer) cannotConfirm(cause error) {
	if !f.unseenLogged.Swap(true) {
		f.log.WithError(cause).Warn("cannot confirm grants of RDMA containers: the log has \"answered\" instead of " +
			"\"adjusted\"; without containerd's socket, containers get no CAP_IPC_LOCK")
	}
}

// reportUnconfirmed counts and logs a grant that the container may lack in whole or in part.
func (f *confirmer) reportUnconfirmed(log logrus.FieldLogger, err error, next string) {
	f.metrics.grants.WithLabelValues(grantUnconfirmed).Inc()
	log.WithError(err).Warn("not confirmed: the container may lack part of its grant; " + next)
}

// nextStep returns what an administrator can do about an unconfirmed grant.
func nextStep(err error) string {
	if errors.Is(err, storedspec.ErrStarted) {
		return "processes that are started later with exec have this part; if processes that are already " +
			"running need it, recreate the pod"
	}
	return "run rdma-spec status, then recreate the pod or run rdma-spec repair; if containerd is often this slow, " +
		"raise plugin_request_timeout in its configuration"
}

const (
	// confirmedWithin is the time from CreateContainer to PostCreateContainer after which a grant is overdue.
	confirmedWithin = 10 * time.Second
	expireEvery     = 5 * time.Second
)

var (
	errDropped = errors.New("containerd had already dropped this plugin, and may have ignored the whole grant")
	errHidden  = errors.New("the runtime created the container but did not call this plugin's PostCreateContainer, " +
		"because another plugin's PostCreateContainer failed: see the runtime's log")
)

// dropListed gives up the pending grants of containers that the runtime lists when the plugin registers: it created
// them without waiting for the plugin.
func (f *confirmer) dropListed(containers []*api.Container) {
	for _, ctr := range containers {
		f.giveUp(ctr.GetId(), errDropped)
	}
}

// giveUp counts and logs a grant that PostCreateContainer will not confirm.
func (f *confirmer) giveUp(id string, cause error) {
	if pending, found := f.pending.take(id); found {
		f.reportUnconfirmed(pending.Subject.log(f.log), cause, nextStep(cause))
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

// expireOverdue gives up the grants of containers that were created too long ago. A container without a stored spec is
// still being created, or was never created, so it is not checked again.
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
