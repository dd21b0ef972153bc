// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"slices"

	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// Decide makes the decision about a container's grant. No other code makes this decision. For a container without a
// signal, Decide returns as early as possible, without queries.
func (p *Policy) Decide(c Container, facts Facts) Decision {
	d := &evaluation{Policy: p, container: c, facts: facts}
	d.Signal = SignalNone
	if err := d.decide(); err != nil {
		return Decision{Signal: d.Signal, Evidence: d.Evidence, Rule: d.Rule, Refusal: err, Authored: d.Authored,
			Unknown: d.Unknown}
	}
	return d.Decision
}

// evaluation is the state of a decision in progress.
type evaluation struct {
	*Policy
	Decision
	container Container
	facts     Facts

	annotated, own bool // the pod has an annotation; the annotation applies to this container alone
	request        request
	held           *hca.Device // one of the container's verbs devices
	unknown        error       // the reason why the container's verbs devices are unknown
	resources      resources
}

func (d *evaluation) decide() *Refusal {
	c := &d.container
	var value string
	value, d.own, d.annotated = annotation(c.Annotations, c.Name)
	skipped := matchesAny(d.config.SkipRuntimeHandlers, c.RuntimeHandler)
	if skipped || c.Sandboxed { // guard: skipped-handler
		switch {
		case !d.annotated && d.heldVerbs() == nil:
		case skipped:
			d.Reason = fmt.Sprintf("runtime handler %s is in skipRuntimeHandlers", quoted(c.RuntimeHandler))
		default:
			d.Reason = fmt.Sprintf("runtime handler %s runs the container on a separate kernel", quoted(c.RuntimeHandler))
		}
		return nil
	}
	if d.annotated {
		asked, err := parseAnnotation(value)
		switch {
		case err != nil: // guard: unreadable
			return refuse(CauseUnreadable, "invalid annotation %s: %v", AnnotationKey, err)
		case asked.optOut: // guard: opt-out
			d.Reason = "opted out by annotation"
			return nil
		}
		d.request = asked
	}
	if d.missing != nil { // guard: no-policy
		return d.withoutPolicy()
	}
	d.findSignal()
	if d.Signal == SignalNone { // guard: no-signal
		return d.withoutSignal()
	}
	candidates, refusal := d.candidates()
	if refusal != nil {
		return refusal
	}
	return d.grant(candidates)
}

// withoutPolicy makes the decision if the node has no valid configuration.
func (d *evaluation) withoutPolicy() *Refusal {
	held := d.heldVerbs()
	switch {
	case held != nil:
		d.Signal = SignalDevice
		d.Evidence = held.Path
	case d.annotated && (d.own || !d.request.onlyLowers()):
		d.Signal = SignalAnnotation
		d.Evidence = AnnotationKey
	default:
		return d.leaveAlone()
	}
	return refuse(CauseNoPolicy,
		"the container is an RDMA container, but the plugin has no valid configuration: %s: "+
			"correct the configuration file (the plugin then reloads it)", oneLine(d.missing.Error()))
}

// withoutSignal makes the decision about a container without a signal. If the pod's author requested a grant, the
// container might be refused. If the author requested nothing, the container is left unchanged.
func (d *evaluation) withoutSignal() *Refusal {
	if !d.annotated {
		return d.leaveAlone()
	}
	return d.refuseAnnotation()
}

// leaveAlone leaves a container unchanged, because nobody requested a larger grant for the container. If the decision
// needs an explanation, leaveAlone sets the reason.
func (d *evaluation) leaveAlone() *Refusal {
	switch {
	case d.Authored != "":
		d.Reason = fmt.Sprintf("the container's verbs device might come from the pod's annotation %s, and pods in this "+
			"namespace cannot opt in by annotation: request the RDMA device plugin's resource, or add namespace %s to "+
			"optIn.namespaces",
			quoted(d.Authored), quoted(d.container.Namespace))
		if err := d.resources.err; err != nil && !errors.Is(err, ErrNoKubelet) {
			d.Reason += "; " + d.resources.problem()
		}
	case d.annotated:
		d.Reason = "the pod's annotation only lowers values, and nothing else makes the container an RDMA container"
	case d.resources.err != nil:
		d.Reason = d.resources.problem()
	case d.container.AllDevices && slices.ContainsFunc(d.container.Devices, likelyVerbs):
		d.Reason = "the container is privileged and can access all devices, so its devices do not make it an RDMA " +
			"container"
	}
	return nil
}

// refuseAnnotation refuses a container whose annotation cannot make the container an RDMA container. If the annotation
// applies to the whole pod and is meant for other containers, refuseAnnotation leaves the container unchanged.
func (d *evaluation) refuseAnnotation() *Refusal {
	switch {
	case d.unknown != nil:
		return refuse(CauseHCA, devicesUnknown, oneLine(d.unknown.Error()))
	case d.request.onlyLowers() && !d.own: // guard: own-annotation, else d.request.onlyLowers()
		return d.leaveAlone()
	case d.resources.err != nil: // guard: kubelet-signal
		return d.resources.refusal()
	}
	holds, refusal := d.podsRDMA()
	switch {
	case refusal != nil:
		return refusal
	case holds == "": // guard: opt-in
		return refuse(CauseNamespace,
			"the policy does not allow pods in namespace %s to opt in by annotation: "+
				"add the namespace to inject.namespaces (HCAs) or optIn.namespaces (memlock only), "+
				"or request the RDMA device plugin's resource", quoted(d.container.Namespace))
	}
	d.Reason = "the pod has been allocated " + holds + ", so its annotation applies only to RDMA containers, " +
		"and this container is not one"
	return nil
}

// podsRDMA returns the RDMA resource or claim that the kubelet allocated to the container's pod, if the annotation
// applies to the whole pod. If the pod has no such resource or claim, or the node has no kubelet, the result is "".
func (d *evaluation) podsRDMA() (string, *Refusal) {
	ask := d.facts.PodHolds
	if d.own || ask == nil { // guard: own-annotation-pod, else ask == nil
		return "", nil
	}
	held, claims, err := ask()
	i := slices.IndexFunc(held, d.isRDMA)
	switch {
	case errors.Is(err, ErrNoKubelet):
	case err != nil: // guard: kubelet-pod
		return "", (&resources{err: err}).refusal()
	case i >= 0:
		return quoted(held[i].Resource), nil
	case claims:
		return "a resource claim", nil
	}
	return "", nil
}

const devicesUnknown = "cannot determine whether the container has verbs devices: %s: run rdma-spec devices on the node"

// grant sets the grant according to the candidates and the request. Each field is the lowest of the candidates' values,
// because any candidate might be the rule that matches.
func (d *evaluation) grant(candidates []*rule) *Refusal {
	limit, refusal := d.memlock(candidates)
	if refusal != nil {
		return refusal
	}
	ipcLock, refusal := d.ipcLock(candidates, limit)
	if refusal != nil {
		return refusal
	}
	limit, refusal = d.startable(limit)
	if refusal != nil {
		return refusal
	}
	devices, refusal := d.devices(candidates)
	if refusal != nil {
		return refusal
	}
	d.Grant = &spec.Grant{Memlock: limit, IPCLock: ipcLock, Devices: devices}
	return nil
}

// memlock returns the limit to grant. The lowest limit, 0, leaves the container's limit unchanged.
func (d *evaluation) memlock(candidates []*rule) (spec.Limit, *Refusal) {
	ceiling := spec.Unlimited
	for _, r := range candidates {
		limit, ok := d.bytes(r.memlock)
		if !ok && len(candidates) == 1 { // guard: no-memory-limit
			return 0, refuse(CauseMemoryLimit, "rule %q sets memlock to the container's memory limit, but the container "+
				"has none: set resources.limits.memory", r.name)
		}
		if limit < ceiling { // guard: least-memlock
			ceiling = limit
		}
	}
	if d.request.memlock == nil {
		return ceiling, nil
	}
	asked, ok := d.bytes(*d.request.memlock)
	switch {
	case !ok: // guard: asked-memory-limit
		return 0, refuse(CauseMemoryLimit, "the annotation sets memlock to memory-limit, but the container has no "+
			"memory limit: set resources.limits.memory, or request a number of bytes")
	case asked > ceiling && ceiling == 0: // guard: memlock-unchanged
		return 0, refuse(CauseCeiling, "the annotation requests memlock %s, but %s leaves memlock unchanged: remove "+
			"memlock from the annotation", asked, d.ruleNames(candidates))
	case asked > ceiling: // guard: memlock-ceiling
		return 0, refuse(CauseCeiling, "the annotation requests memlock %s, but %s grants at most %s: lower the request",
			asked, d.ruleNames(candidates), ceiling)
	}
	return asked, nil
}

// startable lowers a limit to the highest limit with which the runtime can start the container. A runtime that cannot
// raise its own hard limit fails to start containers with a higher limit. If the pod's author requested a limit that is
// too high, startable refuses the container instead.
func (d *evaluation) startable(limit spec.Limit) (spec.Limit, *Refusal) {
	if d.facts.Startable == nil {
		return limit, nil
	}
	most := d.facts.Startable()
	if most == 0 || limit <= most { // guard: startable, else true
		return limit, nil
	}
	const remedy = "the container runtime cannot exceed its own hard limit without CAP_SYS_RESOURCE in the node's user " +
		"namespace: set LimitMEMLOCK=infinity in the runtime's unit, or give the runtime this capability, and then " +
		"restart it"
	if d.request.memlock != nil {
		return 0, refuse(CauseCeiling, "the annotation requests memlock %s, "+
			"but no container with a memlock above %s can start, because %s",
			limit, most, remedy)
	}
	d.warn("memlock is lowered from %s to %s so that the container can start: %s", limit, most, remedy)
	return most, nil
}

// bytes returns the limit in bytes that a memlock means for the container. If the memlock is memory-limit and the
// container has no memory limit, ok is false. A memory limit counts as at most the node's memory, because a pod's
// author can write any number.
func (d *evaluation) bytes(m memlock) (limit spec.Limit, ok bool) {
	if !m.memoryLimit {
		return m.limit, true
	}
	bytes := max(d.container.MemoryLimit, 0)
	if d.facts.Memory > 0 && bytes > d.facts.Memory { // guard: node-memory
		bytes = d.facts.Memory
	}
	return spec.Limit(bytes), bytes > 0
}

// ipcLock returns the rule's grant of CAP_IPC_LOCK, or less if the annotation requests less. If the rule excludes
// containers that drop all capabilities, a request does not include these containers, because an administrator might
// have dropped the capabilities with Pod Security.
func (d *evaluation) ipcLock(candidates []*rule, limit spec.Limit) (spec.IPCLock, *Refusal) {
	mode := ipcLockAlways
	for _, r := range candidates {
		if r.ipcLock < mode { // guard: least-ipc-lock
			mode = r.ipcLock
		}
	}
	given := mode.grant(limit)
	asked := d.request.ipcLock
	switch {
	case asked == nil:
		return given, nil
	case !*asked:
		return spec.IPCLockNo, nil
	case given != spec.IPCLockNo:
		return given, nil // guard: ipc-lock-dropped, else spec.IPCLockYes
	case mode == ipcLockFalse || limit == 0:
		return "", refuse(CauseCeiling, "the annotation requests ipcLock, but %s does not grant IPC_LOCK: remove ipcLock "+
			"from the annotation", d.ruleNames(candidates))
	default:
		return "", refuse(CauseCeiling, "the annotation requests ipcLock, "+
			"but CAP_IPC_LOCK overrides the granted memlock of %s: "+
			"remove ipcLock from the annotation", limit)
	}
}

func refuse(cause Cause, format string, args ...any) *Refusal {
	return &Refusal{Cause: cause, Message: fmt.Sprintf(format, args...)}
}

func (d *evaluation) warn(format string, args ...any) {
	d.Warnings = append(d.Warnings, fmt.Sprintf(format, args...))
}
