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

// findSignal sets why the container counts as an RDMA container. It asks the kubelet last, and only if the answer can
// matter.
func (d *evaluation) findSignal() {
	c := &d.container
	d.held = d.heldVerbs()
	switch {
	case d.annotated && d.mayOptIn(): // guard: annotation-namespace, else d.annotated
		d.Signal = SignalAnnotation
		d.Evidence = AnnotationKey
	case d.config.OptIn.Devices && d.held != nil && d.counts(): // guard: author, else d.held != nil
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

// mayInject reports whether an annotation may ask for HCAs in the container's namespace.
func (d *evaluation) mayInject() bool {
	return matchesAny(d.config.Inject.Namespaces, d.container.Namespace)
}

// heldVerbs returns a verbs device of this node that the container holds, nil where it holds none. The number decides:
// a path proves nothing, and only sets where to look first. The devices of a container that may use every device of the
// host do not count.
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

// likelyVerbs reports whether a device is where verbs devices usually are.
func likelyVerbs(d Device) bool { return strings.HasPrefix(d.Path, "/dev/infiniband/uverbs") }

// HoldsVerbs reports whether a container holds a verbs device of this node, as a decision about it sees it.
func HoldsVerbs(c Container, facts Facts) bool {
	return (&evaluation{container: c, facts: facts}).heldVerbs() != nil
}

// isCharacter reports whether a device is a character device with a number that fits the kernel's: larger ones would
// wrap around.
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

// findResource asks the kubelet if a resource can make the container an RDMA container. Unknown resources do not make
// it one.
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
		if match := &d.rules[i].match; match.namespace(&d.container) {
			globs = append(globs, match.Resources...)
		}
	}
	return globs
}

// isRDMA reports whether a resource gives RDMA: by what is allotted of it or, since many device plugins have IDs that
// they alone know, by its name.
func (d *evaluation) isRDMA(held Allotted) bool {
	return d.isHCA(held.Devices) || d.namedRDMA(held.Resource)
}

// namedRDMA reports whether a resource gives RDMA, as far as its name and the configuration tell.
func (d *evaluation) namedRDMA(name string) bool {
	return resource.IsRDMA(name) || matchesAny(d.resourceGlobs(), name)
}

// isHCA reports whether one of a device plugin's IDs is that of an HCA of the node.
func (d *evaluation) isHCA(ids []string) bool {
	if len(ids) == 0 || d.facts.Known == nil {
		return false
	}
	known := d.facts.Known()
	return known != nil && slices.ContainsFunc(ids, known.Identifies)
}

// candidates returns the rules that might match, up to the first that certainly does: more than one if the kubelet does
// not report which resources the container holds. If it does not answer at all and they differ, the container is
// refused, since it will answer soon.
func (d *evaluation) candidates() ([]*rule, *Refusal) {
	var might []*rule
	certain := false
	for i := 0; i < len(d.rules) && !certain; i++ {
		r := &d.rules[i]
		if !r.match.namespace(&d.container) {
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
	might = slices.CompactFunc(might, func(a, b *rule) bool { return reflect.DeepEqual(a.gives, b.gives) })
	d.Rule = shortList(might, func(r *rule) string { return r.name })
	switch {
	case len(might) == 1:
	case d.resources.err != nil: // guard: kubelet-ceiling
		return nil, d.resources.refusal()
	default:
		d.Unknown = true
		d.warn("reduced grant: the kubelet does not report all resources of this container, so it gets the least "+
			"that the rules %s grant", d.Rule)
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

// namespace reports whether the container's namespace matches.
func (m *Match) namespace(c *Container) bool {
	return len(m.Namespaces) == 0 || matchesAny(m.Namespaces, c.Namespace) // guard: rule-namespaces, else true
}

// resources are the kubelet's answer about a container's resources.
type resources struct {
	asked bool
	names []string
	known bool // the container holds no others
	err   error
}

// ErrNoKubelet means that no kubelet runs on the node, so that none will answer later.
var ErrNoKubelet = errors.New("there is no kubelet to ask")

// askKubelet asks once. A kubelet that does not exist counts as one that does not answer.
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
		r.known = false // a claim's, which some kubelets do not report
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
