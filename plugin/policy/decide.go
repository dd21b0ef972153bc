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

// Decide decides what a container gets. It is the only code that does. It returns early, without a call, for a
// container without a signal.
func (p *Policy) Decide(c Container, facts Facts) Decision {
	d := &evaluation{Policy: p, container: c, facts: facts}
	d.Signal = SignalNone
	if err := d.decide(); err != nil {
		return Decision{Signal: d.Signal, Evidence: d.Evidence, Rule: d.Rule, Refusal: err, Authored: d.Authored,
			Unknown: d.Unknown}
	}
	return d.Decision
}

// evaluation is the state of a decision that is being made.
type evaluation struct {
	*Policy
	Decision
	container Container
	facts     Facts

	annotated, own bool // there is an annotation; it is for this container alone
	request        request
	held           *hca.Device // one of the container's verbs devices
	unknown        error       // why the container's verbs devices are unknown
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
			d.Reason = fmt.Sprintf("runtime handler %s runs it on a separate kernel", quoted(c.RuntimeHandler))
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

// withoutPolicy decides if there is no valid configuration.
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
		"it is an RDMA container, but the plugin has no valid configuration: %s: "+
			"correct the file; the plugin reloads it", oneLine(d.missing.Error()))
}

// withoutSignal decides about a container without a signal. The container is left unchanged unless its author requested
// something.
func (d *evaluation) withoutSignal() *Refusal {
	if !d.annotated {
		return d.leaveAlone()
	}
	return d.refuseAnnotation()
}

// leaveAlone leaves a container unchanged for which nobody requested more than it has. It sets the reason, if there is
// one.
func (d *evaluation) leaveAlone() *Refusal {
	switch {
	case d.Authored != "":
		d.Reason = fmt.Sprintf("the container's verbs device might come from the pod's annotation %s; a device that "+
			"an annotation requests makes a container an RDMA container only in a namespace where pods can opt in by "+
			"annotation: "+
			"request the RDMA device plugin's resource, or add namespace %s to optIn.namespaces",
			quoted(d.Authored), quoted(d.container.Namespace))
		if err := d.resources.err; err != nil && !errors.Is(err, ErrNoKubelet) {
			d.Reason += "; " + d.resources.problem()
		}
	case d.annotated:
		d.Reason = "the pod's annotation only lowers values, which does not make the container an RDMA container, and " +
			"nothing else does"
	case d.resources.err != nil:
		d.Reason = d.resources.problem()
	case d.container.AllDevices && slices.ContainsFunc(d.container.Devices, likelyVerbs):
		d.Reason = "it is privileged and can access all devices, so the devices do not make it an RDMA container"
	}
	return nil
}

// refuseAnnotation refuses a container whose annotation cannot make it an RDMA container, unless the annotation applies
// to the whole pod and is meant for other containers.
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
			"the policy does not allow pods in namespace %s to opt in by annotation, "+
				"and nothing else makes the container an RDMA container: "+
				"add the namespace to inject.namespaces (HCAs) or optIn.namespaces (memlock alone), "+
				"or request the RDMA device plugin's resource", quoted(d.container.Namespace))
	}
	d.Reason = "the pod has been allocated " + holds +
		", so its annotation applies only to its RDMA containers, and this container is not one of them"
	return nil
}

// podsRDMA returns the RDMA resource or claim that the kubelet allocated to the container's pod, if an annotation for
// the whole pod can refer to it; "" if there is none, or the node has no kubelet.
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

const devicesUnknown = "cannot tell whether the container has verbs devices: %s: run rdma-spec devices on the node"

// grant sets the grant from what the candidates grant and what was requested. Each field is the least of the
// candidates' values, since any candidate may be the rule that matches.
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

// memlock returns the limit to grant; 0, which is the least, leaves the container's limit unchanged.
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
		return 0, refuse(CauseMemoryLimit, "the annotation requests memlock: memory-limit, but the container has no "+
			"memory limit: set resources.limits.memory, or request a number of bytes")
	case asked > ceiling && ceiling == 0: // guard: memlock-unchanged
		return 0, refuse(CauseCeiling, "the annotation requests memlock: %s, but %s leaves memlock unchanged: remove "+
			"memlock from the annotation", asked, d.ruleNames(candidates))
	case asked > ceiling: // guard: memlock-ceiling
		return 0, refuse(CauseCeiling, "the annotation requests memlock: %s, but %s grants at most %s: lower the request",
			asked, d.ruleNames(candidates), ceiling)
	}
	return asked, nil
}

// startable lowers a limit to one with which the runtime can start the container. Without the right to raise its own
// hard limit, the runtime fails to start containers with a higher one. A limit that the author requested is refused,
// not lowered.
func (d *evaluation) startable(limit spec.Limit) (spec.Limit, *Refusal) {
	if d.facts.Startable == nil {
		return limit, nil
	}
	most := d.facts.Startable()
	if most == 0 || limit <= most { // guard: startable, else true
		return limit, nil
	}
	const remedy = "the container runtime lacks CAP_SYS_RESOURCE in the node's user namespace, and its own hard " +
		"limit is lower: set LimitMEMLOCK=infinity in its unit, or give it the capability, and restart it"
	if d.request.memlock != nil {
		return 0, refuse(CauseCeiling, "the annotation requests memlock: %s, "+
			"but no container with more than %s can start: %s",
			limit, most, remedy)
	}
	d.warn("memlock is lowered from %s to %s so that the container can start: %s", limit, most, remedy)
	return most, nil
}

// bytes returns a memlock's limit in bytes for the container, and whether there is one: memory-limit has none if the
// container has no memory limit. The limit is at most the node's memory, since a pod's author can write any number.
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

// ipcLock returns what the rule grants, or less. If the rule excludes containers that dropped all capabilities, a
// request does not include them: an administrator may have dropped the capabilities with Pod Security.
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
		return "", refuse(CauseCeiling, "the annotation requests ipcLock, but %s does not grant it: remove ipcLock "+
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
