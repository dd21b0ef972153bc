// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package explain shows what the plugin would do with the containers in a manifest: it makes the same decision, but
// from the manifest. Whether a device plugin or a DRA driver injects verbs devices is known only on a node, so explain
// assumes it, or reports it as unknown.
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

// Verdict is what happens to a container, one word of a fixed set.
type Verdict string

// The verdicts.
const (
	RDMA    Verdict = "rdma"
	NotRDMA Verdict = "not-rdma"
	// IfInjected depends on the device plugin or DRA driver: Decision applies if it injects verbs devices, and Otherwise
	// if it does not.
	IfInjected Verdict = "if-injected"
	Refused    Verdict = "refused"
)

// Container is what the plugin would do with a container.
type Container struct {
	// Name is the container's name.
	Name string `json:"name"`
	// Kind is the kind of container.
	Kind manifest.Kind `json:"kind"`
	// Verdict is what happens to the container.
	Verdict Verdict `json:"verdict"`
	// Summary is the verdict in one line.
	Summary string `json:"summary"`
	// Decision is the plugin's decision. If the verdict is "if-injected", it applies if the device plugin or DRA driver
	// injects verbs devices.
	Decision policy.Decision `json:"decision"`
	// Otherwise is the plugin's decision if no verbs device is injected. It is present only if the verdict is
	// "if-injected".
	Otherwise *policy.Decision `json:"otherwise,omitempty"`
	// Sources are the extended resources and DRA claims that could provide verbs devices: rdma/ib, claim/nic.
	Sources []string `json:"sources,omitempty"`
	// Spec is an OCI spec that contains only what the decision's grant adds.
	Spec json.RawMessage `json:"spec,omitempty"`
	// Notes are further facts for the pod's author.
	Notes []string `json:"notes,omitempty"`
	// Advice lists what the pod's author can remove from the pod's spec, because the plugin makes it unnecessary.
	Advice []string `json:"advice,omitempty"`
}

// Explainer holds what all containers are explained with.
type Explainer struct {
	Policy *policy.Policy
	Node   *hca.Inventory
	// Assume are globs of resources and, where they begin with claim/, of DRA claims. Sources that match one bring the
	// node's first verbs device, and others of the same sort bring none. Sources that no glob is for are left open: a
	// glob of resources does not decide claims.
	Assume []string
}

// Container explains a container of a pod.
func (e Explainer) Container(pod manifest.Pod, c manifest.Container) (Container, error) {
	out := e.verdict(c)
	out.Advice = e.advice(c)
	if by := e.Policy.AuthorNames(c.Container); by != "" {
		out.Notes = append(out.Notes, "annotation "+by+
			" might name a verbs device; if an NRI plugin on the node injects it, the verdict is: "+
			summary(e.decide(c, true), ""))
	}
	switch {
	case c.MOFED && out.Verdict == NotRDMA && out.Decision.Reason == "":
		out.Notes = append(out.Notes, "NVIDIA_MOFED=enabled: NVIDIA's container runtime adds HCAs after the NRI plugins "+
			"run, so the plugin does not see them: in optIn.mofedRuntimeHandlers, list the runtime handlers that act on the "+
			"variable")
	case !c.SaysMOFED:
		c.MOFED = true
		if set := e.verdict(c).Summary; set != out.Summary {
			out.Notes = append(out.Notes, "if its image, or an object to which the manifest refers, sets "+
				"NVIDIA_MOFED=enabled, the verdict is: "+set)
		}
		c.MOFED = false
	}
	if len(c.Held) > 0 {
		c.Kubelet.Resources = nil
		c.Kubelet.Known = false
		if unlisted := e.verdict(c); unlisted.Summary != out.Summary {
			out.Notes = append(out.Notes, "if DRA backs "+strings.Join(c.Held, ", ")+
				", the kubelet does not list it, and the verdict is: "+unlisted.Summary)
		}
	}
	var err error
	switch {
	case out.Decision.Grant != nil:
		err = out.grant(pod, c)
	case out.Decision.Refusal == nil && pod.OwnUsers &&
		slices.Contains(spec.BoundingSet(c.AddCapabilities, c.DropCapabilities), spec.CapIPCLock):
		out.Notes = append(out.Notes, noEffect+": it cannot register memory without a higher memlock")
	}
	return out, err
}

// noEffect is said of CAP_IPC_LOCK, as privileged containers have it as well, in a user namespace.
const noEffect = "hostUsers: false: the kernel requires CAP_IPC_LOCK in the initial user namespace, so the " +
	"capability has no effect here"

// verdict decides about a container, twice where it is open whether verbs devices are injected.
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
		reflect.DeepEqual(out.Decision.Refusal, with.Refusal) // the same effect, whatever the signal and the rule
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

// reason says why a container is not an RDMA container; with is the decision if verbs devices were injected.
func reason(sources []string, with policy.Decision) string {
	switch {
	case with.Reason != "":
		return with.Reason
	case with.Grant == nil && with.Refusal == nil:
		return "optIn.devices is false, and optIn.resources lists no resource that the container requests"
	case len(sources) > 0:
		return "according to --assume-devices, no verbs device is injected for " + strings.Join(sources, ", ")
	}
	return "it has no extended resource, DRA claim, or annotation for an HCA"
}

// advice returns the smaller spec of a container that has more than RDMA needs with the plugin, and what it gets.
// RDMA-RESOURCE stands for one of the node's device plugin, where it requests none that may bring HCAs.
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
	advice := []string{fmt.Sprintf("with the plugin, RDMA does not need %s. If you remove this%s, the result is: %s",
		strings.Join(c.Excess, ", "), more, e.verdict(c).Summary)}
	if privileged {
		advice = append(advice, "a pod that has to be privileged, such as a Slurm daemon, "+
			"gets memlock through the annotation "+policy.AnnotationKey+": \"true\", in a namespace that optIn.namespaces lists")
	}
	return advice
}

const claimPrefix = "claim/"

// assumed reports whether a source is assumed to bring a verbs device and, if not, whether one is left open.
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

// decide is the plugin's decision; where injected, about the container with a verbs device that is put into it.
func (e Explainer) decide(c manifest.Container, injected bool) policy.Decision {
	device := SyntheticNode([]string{"an HCA"}).HCAs[0].Devices[0] // if the node has none
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
	// The manifest names no other character device than the one that is injected.
	facts.Verbs = func(n hca.Number) (hca.Device, bool, error) { return device, n == device.Number, nil }
	facts.HCAs = policy.ReadNow(func() (*hca.Inventory, error) { return e.Node, nil })
	return e.Policy.Decide(c.Container, facts)
}

// grant sets what the grant adds to the container's OCI spec, and notes on it.
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
			"no CAP_IPC_LOCK: the policy grants it only if the manifest adds IPC_LOCK; memlock suffices for RDMA")
	case !adds && grant.IPCLock != spec.IPCLockNo:
		out.Notes = append(out.Notes, "no CAP_IPC_LOCK: the manifest drops all capabilities; memlock suffices for RDMA")
	}
	grant.IPCLock = spec.IPCLockNo
	if adds {
		grant.IPCLock = spec.IPCLockYes
	}
	out.Spec, err = grant.Apply([]byte("{}"), spec.AllSets)
	return err
}

// summary returns a decision on one line, with the condition that it holds under where there is one.
func summary(d policy.Decision, condition string) string {
	switch {
	case d.Refusal != nil:
		return strings.TrimSpace("refused "+condition) + ": " + d.Refusal.Message
	case d.Grant != nil:
		return fmt.Sprintf("RDMA %s, rule %s: %s", cmp.Or(condition, "by "+string(d.Signal)), d.Rule, d.Grant)
	}
	return strings.TrimSuffix(strings.TrimSpace("not RDMA "+condition)+": "+d.Reason, ": ")
}
