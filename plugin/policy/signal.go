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

// findSignal sets why the container is an RDMA container. It asks the kubelet last, and only if the answer can matter.
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

// mayOptIn reports whether an annotation alone makes a container of this namespace an RDMA container.
func (d *evaluation) mayOptIn() bool {
	return matchesAny(d.config.OptIn.Namespaces, d.container.Namespace) || d.mayInject()
}

// mayInject reports whether an annotation can request HCAs in the container's namespace.
func (d *evaluation) mayInject() bool {
	return matchesAny(d.config.Inject.Namespaces, d.container.Namespace)
}

// heldVerbs returns one of this node's verbs devices that the container has; nil if it has none. The number decides,
// since a path proves nothing; the path only sets which devices to check first. The devices of a container that can
// access all of the host's devices are ignored.
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

// HoldsVerbs reports whether a container has one of this node's verbs devices, according to the same test as in a
// decision.
func HoldsVerbs(c Container, facts Facts) bool {
	return (&evaluation{container: c, facts: facts}).heldVerbs() != nil
}

// isCharacter reports whether a device is a character device whose number fits into the kernel's type. A larger number
// would wrap around.
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

// findResource asks the kubelet, if a resource can make the container an RDMA container. Unknown resources cannot.
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

// resourceGlobs returns the globs of the resources that make a container of this namespace an RDMA container.
func (d *evaluation) resourceGlobs() []string {
	globs := slices.Clone(d.config.OptIn.Resources)
	for i := range d.rules {
		if match := &d.rules[i].match; match.matchesNamespace(&d.container) {
			globs = append(globs, match.Resources...)
		}
	}
	return globs
}

// isRDMA reports whether an allocated resource provides RDMA. It checks the IDs of the devices and the resource's name,
// since the IDs of many device plugins have no meaning elsewhere.
func (d *evaluation) isRDMA(held Allotted) bool {
	return d.isHCA(held.Devices) || d.namedRDMA(held.Resource)
}

// namedRDMA reports whether a resource provides RDMA, according to its name and the configuration.
func (d *evaluation) namedRDMA(name string) bool {
	return resource.IsRDMA(name) || matchesAny(d.resourceGlobs(), name)
}

// isHCA reports whether one of a device plugin's IDs identifies one of the node's HCAs.
func (d *evaluation) isHCA(ids []string) bool {
	if len(ids) == 0 || d.facts.Known == nil {
		return false
	}
	known := d.facts.Known()
	return known != nil && slices.ContainsFunc(ids, known.Identifies)
}

// candidates returns the rules that may match, up to the first one that certainly does. There is more than one if the
// kubelet does not report which resources it allocated to the container. If it does not answer at all and the rules
// differ, the container is refused, since the kubelet will answer soon.
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
		d.warn("reduced grant: the kubelet does not report all resources of this container, "+
			"so it gets the lowest grant of the rules %s", d.Rule)
	}
	return might, nil
}

// ruleNames names the rules that set a ceiling.
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

// resources are the kubelet's answer about a container's resources.
type resources struct {
	asked bool
	names []string
	known bool // the container has no others
	err   error
}

// ErrNoKubelet means that the node has no kubelet, so that asking again is pointless.
var ErrNoKubelet = errors.New("the node has no kubelet")

// askKubelet asks the kubelet, once. A missing kubelet is treated as one that does not answer.
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
		r.known = false // from a claim, which some kubelets do not report
	}
	return r
}

func (r *resources) problem() string {
	return fmt.Sprintf("the kubelet did not report the container's resources (%s)", oneLine(r.err.Error()))
}

func (r *resources) refusal() *Refusal {
	return refuse(CauseKubelet,
		"%s: the creation is retried; if it keeps failing, see the kubelet's log on the node", r.problem())
}
