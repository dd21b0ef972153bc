// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package explain says what the plugin would do with the containers of a manifest: the same decision, asked of what the manifest
// says. What only a node knows, whether a device plugin injects verbs devices, is assumed or left open.
package explain

import (
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/plugin/manifest"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// Verdict is what becomes of a container, one word of a fixed set.
type Verdict string

// The verdicts.
const (
	RDMA    Verdict = "rdma"
	NotRDMA Verdict = "not-rdma"
	// IfInjected hangs on the device plugin: Decision is what holds if it injects verbs devices, Otherwise what holds if not.
	IfInjected Verdict = "if-injected"
	Refused    Verdict = "refused"
)

// Container is what the plugin would do with a container.
type Container struct {
	Name string `json:"name"`
	// Kind is container, init or sidecar, which is an init container that is restartable.
	Kind    string  `json:"kind"`
	Verdict Verdict `json:"verdict"`
	// Summary is all of it on one line.
	Summary string `json:"summary"`
	// Decision is the plugin's.
	Decision  policy.Decision  `json:"decision"`
	Otherwise *policy.Decision `json:"otherwise,omitempty"`
	// Sources are the extended resources and DRA claims that could bring verbs devices: rdma/hca_shared_devices_a, claim/nic.
	Sources []string `json:"sources,omitempty"`
	// Changes are what the decision's grant changes in the container's OCI spec.
	Changes []Change `json:"changes,omitempty"`
	// Notes are what else its author should know.
	Notes []string `json:"notes,omitempty"`
}

// Fails says whether the container's creation fails, as far as can be told: where the verdict is left open, whether it fails if
// its device plugin does inject verbs devices.
func (c Container) Fails() bool { return c.Decision.Refusal != nil }

// Explainer holds what all containers are explained with.
type Explainer struct {
	Policy *policy.Policy
	Node   *hca.Node
	// Assume are globs: a container that requests a resource or has a claim that matches is assumed to be given the node's first verbs
	// device, and others none. Nil leaves it open.
	Assume []string
	// Base is the OCI spec that containers start from, JSON; without it no changes are given.
	Base []byte
}

// Container explains a container of a pod.
func (e Explainer) Container(pod manifest.Pod, c manifest.Container) (Container, error) {
	out := Container{Name: c.Name, Kind: kind(c), Sources: sources(c)}
	given := e.decide(c.Container, e.assumed(out.Sources))
	var note string
	switch injected := e.decide(c.Container, true); {
	case e.Assume != nil || len(out.Sources) == 0 || alike(given, injected):
		out.Decision = given
	case given.Grant != nil:
		out.Decision = given
		note = "if its device plugin injects verbs devices (" + strings.Join(out.Sources, ", ") + "): " + summary(injected)
	default:
		out.Decision, out.Otherwise = injected, &given
	}
	out.Verdict, out.Summary = verdict(out)
	var err error
	out.Changes, err = e.changes(c, out.Decision.Grant)
	if note != "" {
		out.Notes = append(out.Notes, note)
	}
	out.Notes = append(out.Notes, e.notes(pod, c, out)...)
	return out, err
}

// alike says whether two decisions come to the same for the container, whatever led to them.
func alike(a, b policy.Decision) bool {
	return a.Reason == b.Reason && reflect.DeepEqual(a.Grant, b.Grant) && reflect.DeepEqual(a.Refusal, b.Refusal)
}

// decide is the plugin's decision, where injected with a verbs device that a device plugin has put into the container.
func (e Explainer) decide(c policy.Container, injected bool) policy.Decision {
	device := e.firstVerbs()
	if injected {
		c.Devices = append(slices.Clip(c.Devices), policy.Device{Path: device.Path, Type: "c", Major: int64(device.Major), Minor: int64(device.Minor)})
	}
	return e.Policy.Decide(c, policy.Node{
		// The manifest names no other character device than the one that is injected.
		Verbs: func(n hca.Number) (hca.Device, bool, error) { return device, n == device.Number, nil },
		HCAs:  func() (*hca.Node, error) { return e.Node, nil },
	})
}

// firstVerbs gives the verbs device that a device plugin is taken to inject: the node's first, one made up where it has none.
func (e Explainer) firstVerbs() hca.Device {
	for _, h := range e.Node.HCAs {
		if d, ok := h.Verbs(); ok {
			return d
		}
	}
	return SyntheticNode([]string{"an HCA"}).HCAs[0].Devices[0]
}

func (e Explainer) assumed(sources []string) bool {
	return slices.ContainsFunc(sources, func(source string) bool {
		return slices.ContainsFunc(e.Assume, func(glob string) bool {
			ok, err := path.Match(glob, source)
			return ok && err == nil
		})
	})
}

// sources gives what could bring verbs devices into a container. For a privileged one they would be no signal.
func sources(c manifest.Container) []string {
	if c.AllDevices {
		return nil
	}
	all := slices.Clone(c.Held)
	for _, claim := range c.Claims {
		all = append(all, "claim/"+claim)
	}
	return all
}

func kind(c manifest.Container) string {
	switch {
	case c.Restartable:
		return "sidecar"
	case c.Init:
		return "init"
	}
	return "container"
}
