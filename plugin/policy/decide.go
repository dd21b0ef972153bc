// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"

	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// Decide says what a container gets. It is the only place that does.
//
// The order is that of the boundary: what an administrator forbids comes before anything that a pod's author wrote, and a
// container that nothing names is left before anybody is asked about it.
func (p *Policy) Decide(c Container, node Node) Decision {
	d := &deciding{Policy: p, container: c, node: node}
	d.Signal = SignalNone
	if err := d.decide(); err != nil {
		return Decision{Signal: d.Signal, Evidence: d.Evidence, Rule: d.Rule, Refusal: err} // which says it all
	}
	return d.Decision
}

// deciding is one decision in the making.
type deciding struct {
	*Policy
	Decision
	container Container
	node      Node

	request    request
	unreadable error // of the annotation
	annotated  bool  // an annotation other than an opt-out
	held       []hca.Device
	blind      error // why nobody can tell which verbs devices it holds
	kubelet    kubeletWord
}

func (d *deciding) decide() *Refusal {
	c := &d.container
	value, hasAnnotation := Annotation(c.Annotations, c.Name)
	if matchesAny(d.config.SkipRuntimeHandlers, c.RuntimeHandler) { // guard: skipped-handler
		if hasAnnotation {
			d.Reason = fmt.Sprintf("runtime handler %s is in skipRuntimeHandlers", quoted(c.RuntimeHandler))
		}
		return nil
	}
	if hasAnnotation {
		d.request, d.unreadable = parseAnnotation(value)
		d.annotated = d.unreadable != nil || !d.request.optOut
	}
	if kubelet := d.findSignal(); kubelet != nil {
		if d.annotated || d.config.OptIn.OnKubeletError == kubeletErrorFail { // guard: kubelet-signal
			return kubelet
		}
		d.Warnings = append(d.Warnings, kubelet.Message)
	}
	if d.Signal == SignalNone && !d.annotated { // guard: no-signal
		if d.request.optOut {
			d.Reason = optedOut
		}
		return nil
	}
	r, kubelet := d.findRule()
	if kubelet != nil {
		return d.withoutKubelet(kubelet)
	}
	d.Rule = r.name
	switch {
	case r.deny: // guard: deny
		return denied(c, r)
	case d.unreadable != nil: // guard: unreadable
		return refuse(CauseUnreadable, "annotation %s cannot be read: %v", AnnotationKey, d.unreadable)
	case d.request.optOut:
		d.Signal, d.Evidence, d.Reason = SignalNone, "", optedOut
		return nil
	case d.Signal == SignalNone && d.blind != nil:
		return refuse(CauseHCA, blind, oneLine(d.blind.Error()))
	case d.Signal == SignalNone: // guard: opt-in
		return refuse(CauseNamespace, "namespace %s may not opt in by annotation, and nothing else makes the container an RDMA container: "+
			"add the namespace to optIn.annotation.namespaces, or request the RDMA device plugin's resource", quoted(c.Namespace))
	}
	return d.grant(r)
}

const (
	optedOut = "opted out by annotation"
	blind    = "cannot tell whether the container holds verbs devices: %s: see rdma-spec devices on the node"
)

// withoutKubelet decides where a rule could match and the kubelet does not tell: an unknown ceiling is never taken for a high one.
func (d *deciding) withoutKubelet(kubelet *Refusal) *Refusal {
	if d.annotated || d.config.OptIn.OnKubeletError == kubeletErrorFail { // guard: kubelet-annotated
		return kubelet
	}
	d.Reason = kubelet.Message
	return nil
}

// grant makes the grant that a rule gives within what was asked for.
func (d *deciding) grant(r *rule) *Refusal {
	limit, refusal := d.memlock(r)
	if refusal != nil {
		return refusal
	}
	ipcLock, refusal := d.ipcLock(r, limit)
	if refusal != nil {
		return refusal
	}
	devices, refusal := d.devices(r)
	if refusal != nil {
		return refusal
	}
	d.Grant = &spec.Grant{Memlock: limit, IPCLock: ipcLock, Devices: devices}
	return nil
}

func (d *deciding) memlock(r *rule) (spec.Limit, *Refusal) {
	ceiling, ok := r.memlock.bytes(d.container.MemoryLimit)
	if !ok { // guard: no-memory-limit
		return 0, refuse(CauseMemoryLimit, "memlock is the container's memory limit (rule %q), and it has none: "+
			"set resources.limits.memory", r.name)
	}
	if d.request.memlock == nil {
		return ceiling, nil
	}
	asked, ok := d.request.memlock.bytes(d.container.MemoryLimit)
	switch {
	case !ok: // guard: asked-memory-limit
		return 0, refuse(CauseMemoryLimit, "the annotation asks for memlock: memory-limit, and the container has none: "+
			"set resources.limits.memory, or ask for a number of bytes")
	case asked > ceiling: // guard: memlock-ceiling
		return 0, refuse(CauseCeiling, "the annotation asks for memlock: %s, and rule %q gives %s: ask for that or less", asked, r.name, ceiling)
	}
	return asked, nil
}

// ipcLock gives what the rule gives, or less. Where the rule leaves out containers that dropped all capabilities, asking does not
// bring them back in: who dropped them may be the administrator, by Pod Security.
func (d *deciding) ipcLock(r *rule, limit spec.Limit) (spec.IPCLock, *Refusal) {
	given := r.ipcLock.grant(limit)
	asked := d.request.ipcLock
	switch {
	case asked == nil:
		return given, nil
	case !*asked:
		return spec.IPCLockNo, nil
	case given != spec.IPCLockNo:
		return given, nil // guard: ipc-lock-dropped, else spec.IPCLockYes
	case r.ipcLock == ipcLockFalse:
		return "", refuse(CauseCeiling, "the annotation asks for ipcLock, and rule %q gives none: remove ipcLock from the annotation", r.name)
	default:
		return "", refuse(CauseCeiling, "the annotation asks for ipcLock, which would void the memlock of %s: remove ipcLock from the annotation", limit)
	}
}

func denied(c *Container, r *rule) *Refusal {
	if r.message != "" {
		return refuse(CauseDenied, "rule %q denies RDMA here: %s", r.name, r.message)
	}
	return refuse(CauseDenied, "rule %q denies RDMA in namespace %s: remove the annotation %s and the RDMA resource, or ask the cluster's administrator",
		r.name, quoted(c.Namespace), AnnotationKey)
}

func refuse(cause Cause, format string, args ...any) *Refusal {
	return &Refusal{Cause: cause, Message: fmt.Sprintf(format, args...)}
}
