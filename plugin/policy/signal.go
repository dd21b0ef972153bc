// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/plugin/policy/resource"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// findSignal sets the reason why the container is an RDMA container. findSignal asks the kubelet last, and only if the
// answer can change the decision.
func (d *evaluation) findSignal() {
	c := &d.container
	d.held = d.heldVerbs()
	switch {
	case d.annotated && d.mayOptIn(): // guard: annotation-namespace, else d.annotated
		d.Signal = SignalAnnotation
		d.Evidence = AnnotationKey
	case d.config.OptIn.Devices && d.held != nil && d.heldIsSignal(): // guard: author, else d.held != nil
		d.Signal = SignalDevice
		d.Evidence = d.held.Path
		if d.held.HCA != "" {
			d.Evidence += " (" + d.held.HCA + ")"
		}
	case c.MOFED && matchesAny(d.config.OptIn.MOFEDRuntimeHandlers, c.RuntimeHandler): // guard: mofed-handler, else c.MOFED
		d.Signal = SignalEnvironment
		d.Evidence = "NVIDIA_MOFED=enabled"
	default:
		d.findResource()
	}
}

// mayOptIn reports whether an annotation alone makes a container in this namespace an RDMA container.
func (d *evaluation) mayOptIn() bool {
	return matchesAny(d.config.OptIn.Namespaces, d.container.Namespace) || d.mayInject()
}

// mayInject reports whether an annotation can request HCAs in the container's namespace.
func (d *evaluation) mayInject() bool {
	return matchesAny(d.config.Inject.Namespaces, d.container.Namespace)
}

// heldVerbs returns one of the node's verbs devices that the container has, or nil if the container has no verbs
// device. The device number decides, because any device can have any path. The path only determines which devices are
// checked first. heldVerbs ignores the devices of a container that can access all of the host's devices.
func (d *evaluation) heldVerbs() *hca.Device {
	if d.container.AllDevices { // guard: privileged
		return nil
	}
	for _, likely := range []bool{true, false} {
		for _, dev := range d.container.Devices {
			if likelyVerbs(dev) != likely {
				continue
			}
			if !isCharacter(dev) { // guard: character-device
				continue
			}
			v, ok, err := d.facts.Verbs(dev.number())
			if err != nil && d.unknown == nil {
				d.unknown = err
				d.warn(devicesUnknown, oneLine(err.Error()))
			}
			if ok { // guard: verbs-number, else true
				return &v
			}
		}
	}
	return nil
}

// likelyVerbs reports whether a device has the usual path of a verbs device.
func likelyVerbs(d Device) bool { return strings.HasPrefix(d.Path, "/dev/infiniband/uverbs") }

// HoldsVerbs reports whether a container has one of the node's verbs devices. A decision uses the same check.
func HoldsVerbs(c Container, facts Facts) bool {
	return (&evaluation{container: c, facts: facts}).heldVerbs() != nil
}

// isCharacter reports whether a device is a character device whose number fits into the kernel's type. A larger number
// would overflow.
func isCharacter(d Device) bool {
	const most = int64(^uint32(0))
	if d.Major < 0 || d.Minor < 0 || d.Major > most || d.Minor > most { // guard: device-number
		return false
	}
	return d.Type == "c" || d.Type == "u"
}

func (d Device) number() hca.Number {
	return hca.Number{Major: uint32(d.Major), Minor: uint32(d.Minor)}
}

// findResource asks the kubelet for the container's resources, if a resource can make the container an RDMA container.
// A resource that the kubelet does not report cannot make the container an RDMA container.
func (d *evaluation) findResource() {
	globs := d.resourceGlobs()
	if len(globs) == 0 {
		return
	}
	held := d.askKubelet()
	if i := slices.IndexFunc(held.names, func(name string) bool { return matchesAny(globs, name) }); i >= 0 {
		d.Signal = SignalResource
		d.Evidence = held.names[i]
		return
	}
	d.Unknown = !held.known
}

// resourceGlobs returns globs that match resources. A container in this namespace is an RDMA container if it has one of
// these resources.
func (d *evaluation) resourceGlobs() []string {
	globs := slices.Clone(d.config.OptIn.Resources)
	for i := range d.rules {
		if match := &d.rules[i].match; match.matchesNamespace(&d.container) {
			globs = append(globs, match.Resources...)
		}
	}
	return globs
}

// isRDMA reports whether an allocated resource provides RDMA. isRDMA checks both the device IDs and the name of the
// resource, because the device IDs of many device plugins do not identify HCAs.
func (d *evaluation) isRDMA(held Allotted) bool {
	return d.isHCA(held.Devices) || d.namedRDMA(held.Resource)
}

// namedRDMA reports whether a resource provides RDMA, according to the resource's name and the configuration.
func (d *evaluation) namedRDMA(name string) bool {
	return resource.IsRDMA(name) || matchesAny(d.resourceGlobs(), name)
}

// isHCA reports whether a device ID from a device plugin identifies one of the node's HCAs.
func (d *evaluation) isHCA(ids []string) bool {
	if len(ids) == 0 || d.facts.Known == nil {
		return false
	}
	known := d.facts.Known()
	return known != nil && slices.ContainsFunc(ids, known.Identifies)
}

// candidates returns the rules that might match, up to the first rule that certainly matches. If the kubelet does not
// report all resources of the container, the result can contain several rules. If the kubelet does not answer at all
// and the rules differ, candidates refuses the container, because the kubelet will answer soon.
func (d *evaluation) candidates() ([]*rule, *Refusal) {
	var might []*rule
	certain := false
	for i := 0; i < len(d.rules) && !certain; i++ {
		r := &d.rules[i]
		if !r.match.matchesNamespace(&d.container) {
			continue
		}
		certain = len(r.match.Resources) == 0
		if !certain {
			held := d.askKubelet()
			certain = slices.ContainsFunc(held.names, func(name string) bool { return matchesAny(r.match.Resources, name) })
			if !certain && held.known { // guard: candidate, else !certain
				continue
			}
		}
		might = append(might, r)
	}
	if !certain {
		might = append(might, &d.defaults)
	}
	might = slices.CompactFunc(might, func(a, b *rule) bool { return reflect.DeepEqual(a.ruleValues, b.ruleValues) })
	d.Rule = shortList(might, func(r *rule) string { return r.name })
	switch {
	case len(might) == 1:
	case d.resources.err != nil: // guard: kubelet-ceiling
		return nil, d.resources.refusal()
	default:
		d.Unknown = true
		d.warn("reduced grant: the kubelet's list of this container's resources is incomplete, "+
			"so the container gets the lowest grant of the rules %s", d.Rule)
	}
	return might, nil
}

// ruleNames returns the names of the rules that limit a request, for a message.
func (d *evaluation) ruleNames(candidates []*rule) string {
	if len(candidates) == 1 {
		return fmt.Sprintf("rule %q", d.Rule)
	}
	return fmt.Sprintf("one of the rules %s (which one is unknown)", d.Rule)
}

// matchesNamespace reports whether the container's namespace matches.
func (m *Match) matchesNamespace(c *Container) bool {
	return len(m.Namespaces) == 0 || matchesAny(m.Namespaces, c.Namespace) // guard: rule-namespaces, else true
}

// resources contains the kubelet's answer about a container's resources.
type resources struct {
	asked bool
	names []string
	known bool // the container has no other resources
	err   error
}

// ErrNoKubelet means that the node has no kubelet. A retry is pointless.
var ErrNoKubelet = errors.New("the node has no kubelet")

// askKubelet asks the kubelet once for the container's resources. A missing kubelet counts as a kubelet that does not
// answer.
func (d *evaluation) askKubelet() *resources {
	r := &d.resources
	if r.asked {
		return r
	}
	r.asked = true
	r.err = ErrNoKubelet
	if d.facts.Resources != nil {
		r.names, r.known, r.err = d.facts.Resources()
	}
	switch {
	case r.err != nil:
		r.names = nil
		r.known = false
	case d.held != nil && len(r.names) == 0 && !d.container.Injected: // guard: unexplained-device
		r.known = false // the device comes from a claim, which some kubelets do not report
	}
	return r
}

func (r *resources) problem() string {
	return fmt.Sprintf("the kubelet did not report the container's resources (%s)", oneLine(r.err.Error()))
}

func (r *resources) refusal() *Refusal {
	return refuse(CauseKubelet,
		"%s: if the kubelet's retries also fail, check the kubelet's log on the node",
		r.problem())
}
