// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package explain shows the plugin's decisions for the containers in a manifest. It makes the same decisions as the
// plugin, but from the manifest. Only the node knows whether a device plugin or a DRA driver injects verbs devices.
// Therefore, explain assumes the answer, or reports it as unknown.
package explain

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/internal/explain/manifest"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/plugin/policy/resource"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// Verdict is the result for a container, one word of a fixed set.
type Verdict string

// The verdicts.
const (
	RDMA    Verdict = "rdma"
	NotRDMA Verdict = "not-rdma"
	// IfInjected means that the verdict depends on the device plugin or DRA driver. If the device plugin or DRA driver
	// injects verbs devices, Decision applies. If not, Otherwise applies.
	IfInjected Verdict = "if-injected"
	Refused    Verdict = "refused"
)

// Container contains the plugin's decision for a container.
type Container struct {
	// Name is the container's name.
	Name string `json:"name"`
	// Kind is the kind of container.
	Kind manifest.Kind `json:"kind"`
	// Verdict is the result for the container.
	Verdict Verdict `json:"verdict"`
	// Summary is the verdict in one line.
	Summary string `json:"summary"`
	// Decision is the plugin's decision. If the verdict is "if-injected", the decision applies only if the device plugin
	// or DRA driver injects verbs devices.
	Decision policy.Decision `json:"decision"`
	// Otherwise contains the plugin's decision if no verbs device is injected. The field is present only if the verdict
	// is "if-injected".
	Otherwise *policy.Decision `json:"otherwise,omitempty"`
	// Sources are the extended resources and DRA claims that could provide verbs devices, such as rdma/ib and
	// claim/nic.
	Sources []string `json:"sources,omitempty"`
	// Spec is an OCI spec that contains only what the decision's grant adds.
	Spec json.RawMessage `json:"spec,omitempty"`
	// Notes are further facts for the pod's author.
	Notes []string `json:"notes,omitempty"`
	// Advice lists settings that the pod's author can remove from the pod's spec, because the plugin makes them
	// unnecessary.
	Advice []string `json:"advice,omitempty"`
}

// Explainer contains the policy, node, and assumptions for explaining containers.
type Explainer struct {
	Policy *policy.Policy
	Node   *hca.Inventory
	// Assume contains globs for resources and, with the prefix claim/, for DRA claims. A source that matches a glob
	// provides the node's first verbs device. If globs exist for resources, other resources provide no device, and the
	// same applies to claims. Without globs for its kind, a source stays undecided.
	Assume []string
}

// Container explains a container of a pod.
func (e Explainer) Container(pod manifest.Pod, c manifest.Container) (Container, error) {
	out := e.verdict(c)
	out.Advice = e.advice(c)
	if by := e.Policy.AuthorNames(c.Container); by != "" {
		out.Notes = append(out.Notes, "annotation "+by+
			" might name a verbs device; if an NRI plugin on the node injects this device, the verdict is: "+
			summary(e.decide(c, true), ""))
	}
	switch {
	case c.MOFED && out.Verdict == NotRDMA && out.Decision.Reason == "":
		out.Notes = append(out.Notes, "the plugin does not see the HCAs that NVIDIA's container runtime adds with "+
			"NVIDIA_MOFED=enabled: in optIn.mofedRuntimeHandlers, list the runtime handlers that act on the variable")
	case !c.SaysMOFED:
		c.MOFED = true
		if set := e.verdict(c).Summary; set != out.Summary {
			out.Notes = append(out.Notes, "if the image, or an object to which the manifest refers, sets "+
				"NVIDIA_MOFED=enabled, the verdict is: "+set)
		}
		c.MOFED = false
	}
	if len(c.Held) > 0 {
		c.Kubelet.Resources = nil
		c.Kubelet.Known = false
		if unlisted := e.verdict(c); unlisted.Summary != out.Summary {
			out.Notes = append(out.Notes, "if DRA backs "+strings.Join(c.Held, ", ")+
				" (the kubelet does not list such resources), the verdict is: "+unlisted.Summary)
		}
	}
	var err error
	switch {
	case out.Decision.Grant != nil:
		err = out.grant(pod, c)
	case out.Decision.Refusal == nil && pod.OwnUsers &&
		slices.Contains(spec.BoundingSet(c.AddCapabilities, c.DropCapabilities), spec.CapIPCLock):
		out.Notes = append(out.Notes, noEffect+"; without a higher memlock, the container cannot register memory")
	}
	return out, err
}

// noEffect is the note about CAP_IPC_LOCK in a user namespace. It also applies to privileged containers.
const noEffect = "with hostUsers: false, CAP_IPC_LOCK has no effect, because the kernel requires the capability in " +
	"the initial user namespace"

// verdict returns the result for a container. If it is unknown whether verbs devices are injected, verdict makes two
// decisions.
func (e Explainer) verdict(c manifest.Container) Container {
	out := Container{Name: c.Name, Kind: c.Kind, Sources: slices.Clone(c.Held)}
	for _, claim := range c.Claims {
		out.Sources = append(out.Sources, claimPrefix+claim)
	}
	injected, open := e.assumed(out.Sources)
	out.Decision = e.decide(c, injected)
	with := e.decide(c, true)
	out.Summary = summary(out.Decision, "")
	switch {
	case out.Decision.Refusal != nil:
		out.Verdict = Refused
	case out.Decision.Grant != nil:
		out.Verdict = RDMA
	default:
		out.Verdict = NotRDMA
		out.Summary = "not RDMA: " + reason(out.Sources, with)
	}
	alike := out.Decision.Reason == with.Reason && reflect.DeepEqual(out.Decision.Grant, with.Grant) &&
		reflect.DeepEqual(out.Decision.Refusal, with.Refusal) // the same effect, regardless of signal and rule
	if !open || alike {
		return out
	}
	drivers := map[bool]string{true: " or DRA driver"}[len(c.Claims) > 0]
	condition := "if its device plugin" + drivers + " injects verbs devices (" + strings.Join(out.Sources, ", ") + ")"
	if out.Decision.Grant != nil {
		out.Notes = append(out.Notes, condition+": "+summary(with, ""))
		return out
	}
	otherwise := out.Decision
	out.Decision = with
	out.Otherwise = &otherwise
	out.Verdict = IfInjected
	out.Summary = summary(with, condition)
	if otherwise.Refusal != nil || otherwise.Reason != "" {
		out.Summary += "; otherwise " + summary(otherwise, "")
	}
	return out
}

// reason explains why a container is not an RDMA container. with is the decision for injected verbs devices.
func reason(sources []string, with policy.Decision) string {
	switch {
	case with.Reason != "":
		return with.Reason
	case with.Grant == nil && with.Refusal == nil:
		return "optIn.devices is false, and optIn.resources lists no resource that the container requests"
	case len(sources) > 0:
		return "according to --assume-devices, no verbs device is injected for " + strings.Join(sources, ", ")
	}
	return "the container has no extended resource, DRA claim, or annotation for an HCA"
}

// advice lists settings of a container that the plugin makes unnecessary, and the result without these settings. If the
// container requests no resource that might provide HCAs, RDMA-RESOURCE is the placeholder for a resource of the node's
// device plugin.
func (e Explainer) advice(c manifest.Container) []string {
	if len(c.Excess) == 0 {
		return nil
	}
	privileged := c.AllDevices && e.verdict(c).Verdict != RDMA
	c.AllDevices = false
	likely := func(name string) bool { return strings.HasPrefix(name, claimPrefix) || resource.IsRDMA(name) }
	more := ""
	if v := e.verdict(c); v.Verdict != RDMA && !slices.ContainsFunc(v.Sources, likely) {
		c.Held = append(slices.Clip(c.Held), "RDMA-RESOURCE")
		more = " and add resources: {limits: {RDMA-RESOURCE: 1}}"
	}
	removed := "this setting"
	if len(c.Excess) > 1 {
		removed = "these settings"
	}
	advice := []string{fmt.Sprintf("with the plugin, RDMA does not need %s. If you remove %s%s, the result is: %s",
		strings.Join(c.Excess, ", "), removed, more, e.verdict(c).Summary)}
	if privileged {
		advice = append(advice, "a pod that must be privileged, such as the pod of a Slurm daemon, gets memlock through the "+
			"annotation "+policy.AnnotationKey+": \"true\", if optIn.namespaces lists the pod's namespace")
	}
	return advice
}

const claimPrefix = "claim/"

// assumed reports whether a source is assumed to provide a verbs device and, if not, whether a source is undecided.
func (e Explainer) assumed(sources []string) (injected, open bool) {
	for _, source := range sources {
		decided := false
		for _, glob := range e.Assume {
			if strings.HasPrefix(glob, claimPrefix) != strings.HasPrefix(source, claimPrefix) {
				continue
			}
			if ok, err := path.Match(glob, source); ok && err == nil {
				return true, false
			}
			decided = true
		}
		open = open || !decided
	}
	return false, open
}

// decide returns the plugin's decision. If injected is true, the decision is for the container with an injected verbs
// device.
func (e Explainer) decide(c manifest.Container, injected bool) policy.Decision {
	device := SyntheticNode([]string{"an HCA"}).HCAs[0].Devices[0] // if the node has no HCA
	for _, h := range slices.Backward(e.Node.HCAs) {
		if first, ok := h.Verbs(); ok {
			device = first
		}
	}
	if injected || c.AllDevices {
		c.Devices = append(slices.Clip(c.Devices), policy.Device{Path: device.Path, Type: "c", Major: int64(device.Major),
			Minor: int64(device.Minor)})
	}
	facts := c.Kubelet.Facts()
	// The manifest contains no character device other than the injected device.
	facts.Verbs = func(n hca.Number) (hca.Device, bool, error) { return device, n == device.Number, nil }
	facts.HCAs = policy.ReadNow(func() (*hca.Inventory, error) { return e.Node, nil })
	return e.Policy.Decide(c.Container, facts)
}

// grant sets the grant's additions to the container's OCI spec, and adds notes.
func (out *Container) grant(pod manifest.Pod, c manifest.Container) (err error) {
	grant := *out.Decision.Grant
	bounding := spec.BoundingSet(c.AddCapabilities, c.DropCapabilities)
	adds := grant.IPCLock.Adds(bounding)
	own := slices.Contains(bounding, spec.CapIPCLock)
	switch {
	case pod.OwnUsers && (adds || own):
		out.Notes = append(out.Notes, noEffect+"; memlock works")
	case !adds && own && grant.Memlock.Finite() && grant.Memlock != 0:
		out.Notes = append(out.Notes, "the manifest itself adds IPC_LOCK, which overrides the memlock of "+
			grant.Memlock.String()+" for processes that run as root")
	case !adds && grant.IPCLock == spec.IPCLockIfRequested:
		out.Notes = append(out.Notes,
			"CAP_IPC_LOCK is not granted, because the policy grants it only if the manifest adds IPC_LOCK; "+
				"memlock suffices for RDMA")
	case !adds && grant.IPCLock != spec.IPCLockNo:
		out.Notes = append(out.Notes,
			"CAP_IPC_LOCK is not granted, because the manifest drops all capabilities; memlock suffices for RDMA")
	}
	grant.IPCLock = spec.IPCLockNo
	if adds {
		grant.IPCLock = spec.IPCLockYes
	}
	out.Spec, err = grant.Apply([]byte("{}"), spec.AllSets)
	return err
}

// summary returns a decision on one line, with its condition, if any.
func summary(d policy.Decision, condition string) string {
	switch {
	case d.Refusal != nil:
		return strings.TrimSpace("refused "+condition) + ": " + d.Refusal.Message
	case d.Grant != nil:
		return fmt.Sprintf("RDMA %s, rule %s: %s", cmp.Or(condition, "by "+string(d.Signal)), d.Rule, d.Grant)
	}
	return strings.TrimSuffix(strings.TrimSpace("not RDMA "+condition)+": "+d.Reason, ": ")
}
