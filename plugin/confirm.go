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

// confirmer checks whether containers received their grants, since the runtime might not apply the plugin's response
// (docs/design/confirm.md). confirmer stores the pending grants, and reports the result once for each grant.
type confirmer struct {
	log     logrus.FieldLogger
	metrics *metrics
	pending pendingGrants
	stored  func() StoredSpecs // nil if stored specs cannot be edited
	running RunningSpecs       // nil if stored specs cannot be read
	limits  Limits             // nil if limits cannot be read
	// unseenLogged is true if the plugin has logged, since the last registration, that it cannot confirm grants.
	unseenLogged atomic.Bool
}

// If possible, confirm adds the missing part of a created container's grant. confirm then compares the container with
// the grant, and counts and logs the result. The flag late means that the container's verbs device appeared after the
// plugin's response, so that the response contained no grant.
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

// outcome describes which parts of its grant a container received.
type outcome struct {
	memlock spec.Limit // the container's memlock; 0 if unknown
	before  spec.Limit // the memlock before the plugin raised it; 0 if none was set
	raised  bool       // the memlock was lower than the grant
	ipcLock bool
	granted spec.Grant
	lacks   spec.Grant
}

// outcomeOf compares a container with its grant. The container c comes from the event. The value found comes from the
// container's stored spec or first process.
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
	case found.Memlock == spec.Rlimit{}: // the spec sets no memlock
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
		f.reportUnconfirmed(log, fmt.Errorf("the container's memlock is %s", o.memlock),
			"to raise memlock, run rdma-spec repair")
		return
	case len(o.lacks.Devices) > 0:
		f.reportUnconfirmed(log, fmt.Errorf("the container lacks %s", o.lacks.DeviceNames()),
			"find out which other plugin removes devices from containers")
		return
	}
	log = log.WithFields(fieldsOf(spec.Grant{Memlock: o.memlock, Devices: o.granted.Devices})).
		WithField("ipc_lock", o.ipcLock)
	if o.before != 0 { // with 0, the container had the runtime's default
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

// If the stored spec can be written, complete adds the missing part of a created container's grant, except devices.
// complete returns the memlock and the capability that it found.
func (f *confirmer) complete(ctx context.Context, c policy.Container, ctr *api.Container,
	grant spec.Grant) (storedspec.Found, error) {
	specs := f.stored()
	switch {
	case specs == nil:
		has, err := firstMemlock(f.limits, ctr, f.limits.Newest)
		return storedspec.Found{Memlock: has}, err
	case grant.IPCLock == spec.IPCLockNo && c.Memlock.Soft >= grant.Memlock: // reported by containerd 2.3 and later
		return storedspec.Found{Memlock: c.Memlock}, nil
	}
	return specs.Confirm(ctx, ctr.GetId(), grant)
}

// firstMemlock returns the RLIMIT_MEMLOCK of a container's first process. The error is errUnseen if the process is not
// visible. firstMemlock searches for the process only if the runtime does not report the PID. CRI-O 1.34 reports no PID
// in a container's events (internal/nri/container.go), and no runtime reports PIDs when it lists containers.
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
		f.log.WithError(cause).Warn("cannot confirm grants to RDMA containers, so the plugin logs \"answered\" instead " +
			"of \"adjusted\" (without containerd's socket, it cannot grant CAP_IPC_LOCK either)")
	}
}

// reportUnconfirmed counts and logs an unconfirmed grant. The container might lack part of the grant, or the whole
// grant.
func (f *confirmer) reportUnconfirmed(log logrus.FieldLogger, err error, next string) {
	f.metrics.grants.WithLabelValues(grantUnconfirmed).Inc()
	log.WithError(err).Warn("not confirmed, so the container might lack part of its grant: " + next)
}

// nextStep returns instructions for an administrator after an unconfirmed grant.
func nextStep(err error) string {
	if errors.Is(err, storedspec.ErrStarted) {
		return "processes that are started later with exec get the missing part; if the running processes also need it, " +
			"recreate the pod"
	}
	return "run rdma-spec status, then recreate the pod or run rdma-spec repair; if this warning recurs because " +
		"containerd is slow, increase plugin_request_timeout in containerd's configuration"
}

const (
	// confirmedWithin is the longest time between CreateContainer and PostCreateContainer. After this time, a grant is
	// overdue.
	confirmedWithin = 10 * time.Second
	expireEvery     = 5 * time.Second
)

var (
	errDropped = errors.New("containerd had already disconnected this plugin, and might have ignored the whole grant")
	errHidden  = errors.New("the runtime created the container but did not call this plugin's PostCreateContainer, " +
		"because another plugin's PostCreateContainer failed: see the runtime's log")
)

// dropListed gives up the pending grants of containers that the runtime lists when the plugin registers. The runtime
// created these containers without waiting for the plugin.
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

// expireOverdue gives up overdue grants. If a container has no stored spec, the runtime is still creating the
// container, or never created it. expireOverdue does not check a container without a stored spec again.
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
