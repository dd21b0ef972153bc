// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package explain shows what the plugin would do with the containers of a manifest: it makes the same decision from the
// manifest. Only a node knows whether a device plugin or a DRA driver injects verbs devices, so that is assumed or left
// open.
package explain

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/explain/manifest"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// Verdict is what happens to a container, one word of a fixed set.
type Verdict string

// The verdicts.
const (
	RDMA    Verdict = "rdma"
	NotRDMA Verdict = "not-rdma"
	// IfInjected depends on the device plugin or DRA driver: Decision holds if it injects verbs devices, Otherwise if
	// it does not.
	IfInjected Verdict = "if-injected"
	Refused    Verdict = "refused"
)

// Container is what the plugin would do with a container.
type Container struct {
	Name    string        `json:"name"`
	Kind    manifest.Kind `json:"kind"`
	Verdict Verdict       `json:"verdict"`
	// Summary is the verdict on one line.
	Summary string `json:"summary"`
	// Decision is the plugin's.
	Decision  policy.Decision  `json:"decision"`
	Otherwise *policy.Decision `json:"otherwise,omitempty"`
	// Sources are the extended resources and DRA claims that could bring verbs devices: rdma/hca_shared_devices_a,
	// claim/nic.
	Sources []string `json:"sources,omitempty"`
	// Spec is what the decision's grant adds to the container's OCI spec, in the form of one.
	Spec json.RawMessage `json:"spec,omitempty"`
	// Notes are further facts for its author.
	Notes []string `json:"notes,omitempty"`
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
	if c.AllDevices && len(out.Sources) > 0 {
		out.Notes = append(out.Notes, "it is privileged and holds every device of the node, so its devices are not a signal")
	}
	switch {
	case c.MOFED && out.Verdict == NotRDMA && out.Decision.Reason == "":
		out.Notes = append(out.Notes, "NVIDIA_MOFED=enabled: NVIDIA's container runtime adds HCAs after NRI, where the plugin "+
			"does not see them: optIn.mofedRuntimeHandlers lists the handlers under which the variable counts")
	case !c.SaysMOFED:
		c.MOFED = true
		if set := e.verdict(c).Summary; set != out.Summary {
			out.Notes = append(out.Notes, "if its image, or what the manifest refers to, sets NVIDIA_MOFED=enabled: "+set)
		}
		c.MOFED = false
	}
	if len(c.Held) > 0 {
		c.Resources = func() ([]string, bool, error) { return nil, false, nil }
		if unlisted := e.verdict(c); unlisted.Summary != out.Summary {
			out.Notes = append(out.Notes, "if DRA backs "+strings.Join(c.Held, ", ")+
				", the kubelet does not list it: "+unlisted.Summary)
		}
	}
	if out.Decision.Grant == nil {
		return out, nil
	}
	notes, err := out.grant(pod, c)
	out.Notes = append(out.Notes, notes...)
	return out, err
}

// verdict decides about a container, twice where it is open whether verbs devices are injected.
func (e Explainer) verdict(c manifest.Container) Container {
	out := Container{Name: c.Name, Kind: c.Kind, Sources: slices.Clone(c.Held)}
	for _, claim := range c.Claims {
		out.Sources = append(out.Sources, claimPrefix+claim)
	}
	injected, open := e.assumed(out.Sources)
	out.Decision = e.decide(c.Container, injected)
	switch out.Summary = summary(out.Decision, ""); {
	case out.Decision.Refusal != nil:
		out.Verdict = Refused
	case out.Decision.Grant != nil:
		out.Verdict = RDMA
	default:
		out.Verdict = NotRDMA
	}
	with := e.decide(c.Container, true)
	alike := out.Decision.Reason == with.Reason && reflect.DeepEqual(out.Decision.Grant, with.Grant) &&
		reflect.DeepEqual(out.Decision.Refusal, with.Refusal) // the same effect, whatever the signal and the rule
	if !open || alike {
		return out
	}
	condition := "if its device plugin injects verbs devices (" + strings.Join(out.Sources, ", ") + ")"
	if len(c.Claims) > 0 {
		condition = strings.Replace(condition, "plugin", "plugin or DRA driver", 1)
	}
	if out.Decision.Grant != nil {
		out.Notes = append(out.Notes, condition+": "+summary(with, ""))
		return out
	}
	without := out.Summary
	otherwise := out.Decision
	out.Decision, out.Otherwise = with, &otherwise
	out.Verdict, out.Summary = IfInjected, summary(with, condition)
	if without != "not RDMA" {
		out.Summary += "; otherwise " + without
	}
	return out
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
func (e Explainer) decide(c policy.Container, injected bool) policy.Decision {
	device := SyntheticNode([]string{"an HCA"}).HCAs[0].Devices[0] // if the node has none
	for _, h := range slices.Backward(e.Node.HCAs) {
		if first, ok := h.Verbs(); ok {
			device = first
		}
	}
	if injected {
		c.Devices = append(slices.Clip(c.Devices), policy.Device{Path: device.Path, Type: "c", Major: int64(device.Major),
			Minor: int64(device.Minor)})
	}
	return e.Policy.Decide(c, policy.Facts{
		// The manifest names no other character device than the one that is injected.
		Verbs: func(n hca.Number) (hca.Device, bool, error) { return device, n == device.Number, nil },
		HCAs:  func() (*hca.Inventory, error) { return e.Node, nil },
	})
}

// grant sets what the grant adds to the container's OCI spec, and returns notes on it.
func (out *Container) grant(pod manifest.Pod, c manifest.Container) (notes []string, err error) {
	grant := *out.Decision.Grant
	bounding := spec.BoundingSet(c.AddCapabilities, c.DropCapabilities)
	adds, own := grant.IPCLock.Adds(bounding), slices.Contains(bounding, spec.CapIPCLock)
	switch {
	case adds && pod.OwnUsers:
		notes = append(notes,
			"hostUsers: false: the kernel asks for CAP_IPC_LOCK in the node's user namespace, so it has no effect here; "+
				"memlock works")
	case !adds && own && grant.Memlock.Finite() && grant.Memlock != 0:
		notes = append(notes, "the manifest itself adds IPC_LOCK, which voids the memlock of "+grant.Memlock.String()+
			" for processes of root")
	case !adds && grant.IPCLock != spec.IPCLockNo:
		notes = append(notes, "no CAP_IPC_LOCK: the manifest drops all capabilities; memlock suffices for RDMA")
	}
	grant.IPCLock = spec.IPCLockNo
	if adds {
		grant.IPCLock = spec.IPCLockYes
	}
	out.Spec, err = grant.Apply([]byte("{}"), spec.AllSets)
	return notes, err
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
