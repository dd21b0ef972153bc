// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/sirupsen/logrus"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// CreateContainer is called for every container that the runtime creates. It makes one decision and returns its
// adjustment. An error fails the container's creation; only refusals are errors, so that a fault of the plugin never
// costs a container.
func (p *Plugin) CreateContainer(ctx context.Context, pod *api.PodSandbox,
	ctr *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	start := time.Now()
	c, decision := p.decide(ctx, pod, ctr)
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
		p.repair.Created(watched(c, ctr, spec.Grant{}))
		return nil, nil, nil
	}
	grant := *decision.Grant
	if p.specs() == nil {
		grant.IPCLock = spec.IPCLockNo
	}
	adjustment, given := adjust(ctr, grant)
	if grant.IPCLock != spec.IPCLockNo {
		p.edits.put(ctr.GetId(), spec.Grant{IPCLock: grant.IPCLock})
	}
	p.repair.Created(watched(c, ctr, grant))
	log().WithFields(given).Info("adjusted")
	return adjustment, nil, nil
}

// PostCreateContainer is called for every container that the runtime has created: the runtime has stored it, and its
// task does not exist yet. Now the stored spec gets what NRI cannot express. If that fails, the container still has its
// memlock. No error is returned, since the runtime would only log it.
func (p *Plugin) PostCreateContainer(ctx context.Context, pod *api.PodSandbox, ctr *api.Container) error {
	grant, ok := p.edits.take(ctr.GetId())
	if !ok {
		return nil
	}
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, p.registration.RequestTimeout())
	defer cancel()
	changed, err := p.StoredSpecs.Apply(ctx, ctr.GetId(), grant)
	p.metrics.editDuration.Observe(time.Since(start).Seconds())
	log, result := p.logger(pod, ctr), editUnchanged
	switch {
	case errors.Is(err, storedspec.ErrStarted):
		result = editLate
		log.Warn("no CAP_IPC_LOCK in the running container: it started before its stored spec was changed; processes of " +
			"later execs have it; " +
			"if the running ones need it, recreate the pod; rdma-spec status names the container until then")
	case err != nil:
		p.notEdited(pod, ctr, grant, err)
		return nil
	case changed:
		result = editChanged
		log.Info("CAP_IPC_LOCK added to the stored spec")
	default:
		log.Debug("the stored spec needs no change for CAP_IPC_LOCK")
	}
	p.metrics.edits.WithLabelValues(result).Inc()
	return nil
}

// errDropped is the reason why a stored spec was not edited: the runtime has not asked for it.
var errDropped = errors.New("containerd had dropped this plugin before: it may have ignored the memlock, too")

// dropped finishes the edits of containers that the runtime lists when the plugin registers again: it has created them
// without asking.
func (p *Plugin) dropped(pods []*api.PodSandbox, containers []*api.Container) {
	for _, ctr := range containers {
		grant, owed := p.edits.take(ctr.GetId())
		if !owed {
			continue
		}
		var pod *api.PodSandbox
		if i := slices.IndexFunc(pods, func(s *api.PodSandbox) bool { return s.GetId() == ctr.GetPodSandboxId() }); i >= 0 {
			pod = pods[i]
		}
		p.notEdited(pod, ctr, grant, errDropped)
	}
}

// notEdited counts and logs a container whose stored spec was not edited before its start, as far as the plugin knows.
func (p *Plugin) notEdited(pod *api.PodSandbox, ctr *api.Container, grant spec.Grant, err error) {
	next := "recreate the pod to try again"
	if p.repair.Unfinished(ctr.GetId(), grant) {
		next = "the plugin tries again in the background, and logs the result"
	}
	p.logger(pod, ctr).WithError(err).Warn("no CAP_IPC_LOCK yet: containerd did not confirm the change of the stored " +
		"spec; SHM_LOCK, huge-page shared memory, and programs that check for the capability do not work; " + next +
		"; if containerd is often this slow, let it wait longer for plugins: plugin_request_timeout in its configuration")
	p.metrics.edits.WithLabelValues(editFailed).Inc()
}

// decide makes the one decision about a container, from the runtime's event and, on demand, the kubelet's answer. What
// it waits for has one deadline.
func (p *Plugin) decide(ctx context.Context, pod *api.PodSandbox,
	ctr *api.Container) (policy.Container, policy.Decision) {
	ctx, cancel := context.WithTimeout(ctx, p.budget())
	defer cancel()
	c, facts := ContainerOf(pod, ctr), p.facts
	if p.Resources != nil {
		c.Resources = func() ([]string, bool, error) {
			return p.Resources.Names(ctx, pod.GetId(), pod.GetNamespace(), pod.GetName(), ctr.GetName())
		}
	}
	facts.HCAs = func() (*hca.Inventory, error) { return p.Inventory.HCAs(ctx) }
	facts.Again = func() (*hca.Inventory, error) { return p.Inventory.Again(ctx) }
	return c, p.policy().Decide(c, facts)
}

// refuse returns the error that fails a container's creation. It logs it once, although the creation is tried again and
// again.
func (p *Plugin) refuse(log logrus.FieldLogger, subject string, refusal *policy.Refusal) error {
	if p.throttle.due(subject + refusal.Message) {
		log.WithField("cause", refusal.Cause).Error("refused: " + refusal.Message)
	}
	return fmt.Errorf("%s: %s: %w", p.Name, subject, refusal)
}

// decided returns a logger with a container's name and the decision about it.
func (p *Plugin) decided(pod *api.PodSandbox, ctr *api.Container, d policy.Decision) logrus.FieldLogger {
	fields := logrus.Fields{"signal": d.Signal, "evidence": d.Evidence, "rule": d.Rule}
	if len(d.LeftOut) > 0 {
		fields["left_out"] = strings.Join(d.LeftOut, ", ")
	}
	return p.logger(pod, ctr).WithFields(fields)
}
