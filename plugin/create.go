// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/sirupsen/logrus"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec"
)

// CreateContainer is called for every container that the runtime creates. It makes one decision and returns its adjustment. An error
// fails the container's creation; only refusals are errors, so that a fault of the plugin never costs a container.
func (p *Plugin) CreateContainer(_ context.Context, pod *api.PodSandbox, ctr *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	start := time.Now()
	c, decision := p.decide(pod, ctr)
	p.metrics.count(decision, start)
	// A function, since nearly all containers of a node need no logger.
	log := func() logrus.FieldLogger { return p.decided(pod, ctr, decision) }
	for _, warning := range decision.Warnings {
		log().Warn(warning)
	}
	switch {
	case decision.Refusal != nil:
		return nil, nil, p.refuse(log(), subject(pod, ctr), decision.Refusal)
	case decision.Grant == nil:
		switch {
		case decision.Reason == "":
		case decision.Signal == policy.SignalNone:
			log().Info("left alone: " + decision.Reason)
		default:
			log().Warn("left alone although it is an RDMA container: " + decision.Reason)
		}
		p.repair.Created(recorded(c, ctr, spec.Grant{}))
		return nil, nil, nil
	}
	grant := *decision.Grant
	if p.specs() == nil {
		grant.IPCLock = spec.IPCLockNo
	}
	adjustment, given := adjust(ctr, grant)
	if grant.Memlock != 0 && len(adjustment.GetRlimits()) == 0 {
		p.metrics.memlockSkipped.Inc()
	}
	if grant.IPCLock != spec.IPCLockNo {
		p.edits.put(ctr.GetId(), spec.Grant{IPCLock: grant.IPCLock})
	}
	p.repair.Created(recorded(c, ctr, grant))
	log().WithFields(given).Info("adjusted")
	return adjustment, nil, nil
}

// PostCreateContainer is called for every container that the runtime has created: the runtime has stored it, and its task does not exist
// yet. Now the stored spec gets what NRI cannot express. If that fails, the container still has its memlock. No error is returned, since
// the runtime would only log it.
func (p *Plugin) PostCreateContainer(ctx context.Context, pod *api.PodSandbox, ctr *api.Container) error {
	grant, ok := p.edits.take(ctr.GetId())
	if !ok {
		return nil
	}
	start := time.Now()
	changed, err := p.StoredSpecs.Apply(ctx, ctr.GetId(), grant)
	p.metrics.editDuration.Observe(time.Since(start).Seconds())
	log, result := p.logger(pod, ctr), editUnchanged
	switch {
	case err != nil:
		result = editFailed
		next := "recreate the pod to try again"
		if p.repair.Unfinished(ctr.GetId(), grant) {
			next = "the plugin tries again in the background, and logs the result"
		}
		log.WithError(err).Warn("no CAP_IPC_LOCK yet: containerd did not confirm the change of the stored spec; memlock is as the policy gives it, " +
			"and SHM_LOCK, huge-page shared memory, and programs that check for the capability do not work; " + next +
			"; if containerd is often this slow, increase --budget")
	case changed:
		result = editChanged
		log.Info("CAP_IPC_LOCK added to the stored spec")
	default:
		log.Debug("the stored spec needs no change for CAP_IPC_LOCK")
	}
	p.metrics.edits.WithLabelValues(result).Inc()
	return nil
}

// decide makes the one decision about a container, from the runtime's event.
func (p *Plugin) decide(pod *api.PodSandbox, ctr *api.Container) (policy.Container, policy.Decision) {
	c := p.container(pod, ctr)
	return c, p.policy().Decide(c, p.node)
}

// refuse returns the error that fails a container's creation. It logs it once, although the creation is tried again and again.
func (p *Plugin) refuse(log logrus.FieldLogger, subject string, refusal *policy.Refusal) error {
	if p.throttle.due(subject + refusal.Message) {
		log.WithField("cause", refusal.Cause).Error("refused: " + refusal.Message)
	}
	return fmt.Errorf("%s: %s: %w", p.Name, subject, refusal)
}

// decided returns a logger with a container's name and the decision about it.
func (p *Plugin) decided(pod *api.PodSandbox, ctr *api.Container, d policy.Decision) logrus.FieldLogger {
	fields := named(pod, ctr)
	fields["signal"], fields["evidence"], fields["rule"] = d.Signal, d.Evidence, d.Rule
	return p.Log.WithFields(fields)
}
