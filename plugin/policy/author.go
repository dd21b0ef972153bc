// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"bytes"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"
)

// Some NRI plugins give a container any of the node's devices that an annotation of its pod names. If one of them is on
// the node, a pod's author can inject a verbs device, so holding one does not prove that an administrator allowed it.

// deviceAnnotations returns the keys that these plugins read. By NRI's convention, the annotation is
// KEY/container.NAME, KEY/pod, or KEY.
func deviceAnnotations() []string {
	return []string{
		"devices.gke.io",               // GKE's device injector: a YAML list of paths
		"nvidia.cdi.k8s.io",            // NVIDIA's container toolkit: comma-separated names of CDI devices
		"devices.noderesource.dev",     // NRI's device-injector: a YAML list of paths with numbers
		"cdi-devices.noderesource.dev", // NRI's device-injector: a YAML list of names of CDI devices
		"devices.nri.io",               // the former names of the two above, which are still read
		"cdi-devices.nri.io",
	}
}

// deviceAnnotationKey matches a domain, the form of key that Annotations keeps.
var deviceAnnotationKey = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+$`)

func checkDeviceAnnotations(keys []string) error {
	for _, key := range keys {
		if !deviceAnnotationKey.MatchString(key) || !isDomain([]byte(key)) { // guard: device-annotation
			return fmt.Errorf("%q is not a valid annotation key: write the domain alone, such as devices.gke.io",
				key)
		}
		if key == AnnotationKey {
			return fmt.Errorf("%s is this plugin's own annotation: remove it, and use optIn.namespaces", key)
		}
	}
	return nil
}

// scopes returns the suffixes of the annotation keys that can apply to a container. Plugins differ in which of several
// annotations they use, and one of NVIDIA's supports a star, so all of them are considered.
func scopes(container string) []string {
	return []string{"/container." + container, "/container.*", "/pod", ""}
}

// inScope reports from its key alone whether an annotation can apply to a container.
func inScope(key, container string) bool {
	if i := strings.IndexByte(key, '/'); i >= 0 {
		return slices.Contains(scopes(container), key[i:])
	}
	return isDomain([]byte(key))
}

// runtimesOwn are the prefixes of the dozen or so annotations that runtimes write into each pod.
var runtimesOwn = []string{"io.kubernetes.", "io.containerd.", "io.container."}

// isDomain reports whether another plugin can read an annotation with this key, which has no scope.
func isDomain(key []byte) bool {
	return bytes.IndexByte(key, '.') >= 0 &&
		!slices.ContainsFunc(runtimesOwn, func(begin string) bool { return bytes.HasPrefix(key, []byte(begin)) })
}

// MayRead reports whether a decision about one of a pod's containers can depend on the pod's annotation with this key,
// whatever the configuration says.
func MayRead(key []byte) bool {
	domain, scope, scoped := bytes.Cut(key, []byte("/"))
	switch {
	case !scoped:
		return isDomain(key)
	case string(domain) == AnnotationKey:
		return true
	}
	return string(scope) == "pod" || bytes.HasPrefix(scope, []byte("container."))
}

// Reads reports whether a decision under this configuration can depend on an annotation with this key.
func (o *OptIn) Reads(key string) bool {
	domain, _, _ := strings.Cut(key, "/")
	return domain == AnnotationKey || slices.Contains(o.DeviceAnnotations, domain)
}

// maxDeviceAnnotation bounds how many bytes of another plugin's annotation are read. It leaves room for 64 paths.
const maxDeviceAnnotation = 4096

// heldIsSignal reports whether the container's verbs device makes it an RDMA container. If the pod's author may have
// named the device, it does so only where an annotation alone could, or if the kubelet reports that it allocated an HCA
// to the container.
func (d *evaluation) heldIsSignal() bool {
	by := d.authorAnnotation()
	if by == "" || d.mayOptIn() { // guard: author-namespace, else true
		return true
	}
	held := d.askKubelet()
	if slices.ContainsFunc(held.names, d.namedRDMA) { // guard: author-resource, else true
		return true
	}
	d.Authored = by
	d.Unknown = held.err != nil
	return false
}

// authorAnnotation returns the annotation with which the pod's author may have named all of the container's verbs
// devices; "" if the author cannot have named at least one of them.
func (d *evaluation) authorAnnotation() string {
	named, open := d.config.authorsDevices(&d.container)
	if open != "" {
		return open
	}
	by := ""
	for _, held := range d.container.Devices {
		if len(named) == 0 || !isCharacter(held) {
			continue
		}
		v, verbs, err := d.facts.Verbs(held.number())
		if err != nil || !verbs {
			continue
		}
		i := slices.IndexFunc(named, func(n namedDevice) bool { return n.matches(held) })
		if i < 0 {
			d.held = &v
			return ""
		}
		by = named[i].by
	}
	return by
}

// authorsDevices returns the devices that the pod's author names for a container in other plugins' annotations, by the
// path or the number that they have in the container. If an annotation may name any device, it returns that annotation
// as open.
func (c *Config) authorsDevices(of *Container) (named []namedDevice, open string) {
	for _, key := range c.OptIn.DeviceAnnotations {
		for _, scope := range scopes(of.Name) {
			value, found := of.Annotations[key+scope]
			if !found {
				continue
			}
			devices, all := namedDevices(value)
			if !all || slices.ContainsFunc(devices, func(n namedDevice) bool { return n.unplaced(of.Devices) }) { // guard: author-path, else !all
				return nil, key + scope
			}
			for _, device := range devices {
				device.by = key + scope
				named = append(named, device)
			}
		}
	}
	return named, ""
}

// AuthorNames returns the other plugin's annotation with which the pod's author may name a verbs device for a
// container; "" if there is none. It ignores the container's devices.
func (p *Policy) AuthorNames(c Container) string {
	c.Devices = nil
	_, open := p.config.authorsDevices(&c)
	return open
}

// namedDevice is a device that an annotation names.
type namedDevice struct {
	paths   []string
	numbers []int64 // the major and minor numbers, in any order
	by      string  // the annotation
}

// matches reports whether this is a container's device: the plugins give a device the path that the annotation names.
func (n namedDevice) matches(held Device) bool {
	if slices.Contains(n.paths, path.Clean(held.Path)) { // guard: author-held-path
		return true
	}
	return slices.Contains(n.numbers, held.Major) && slices.Contains(n.numbers, held.Minor) // guard: author-number, else false
}

// unplaced reports whether the container has no device at a named path, so that any of its devices may be the one that
// is meant. Well-known paths of other kinds of devices are ignored: no verbs device is meant by them.
func (n namedDevice) unplaced(held []Device) bool {
	return slices.ContainsFunc(n.paths, func(named string) bool {
		for _, prefix := range othersPaths {
			if strings.HasPrefix(named, prefix) {
				return false
			}
		}
		return !slices.ContainsFunc(held, func(h Device) bool { return path.Clean(h.Path) == named })
	})
}

// othersPaths are the prefixes of paths that never belong to verbs devices.
var othersPaths = []string{"/dev/nvidia", "/dev/dmabuf_import_helper", "/dev/dri/", "/dev/kfd", "/dev/vfio/",
	"/dev/fuse", "/dev/kvm", "/dev/net/tun"}

// othersKinds are the kinds of CDI devices that are never verbs devices. They match exactly, since nvidia.com/mofed is
// HCAs.
var othersKinds = []string{"nvidia.com/gpu", "management.nvidia.com/gpu", "k8s.device-plugin.nvidia.com/gpu",
	"runtime.nvidia.com/gpu", "k8s.gpu.nvidia.com/claim", "k8s.gpu.nvidia.com/device", "nvidia.com/imex-channel",
	"amd.com/gpu", "intel.com/gpu", "gpu.intel.com/igpu", "npu.intel.com/npu"}

// cdiName matches the name of a CDI device: KIND=NAME.
var cdiName = regexp.MustCompile(`^([A-Za-z][-.\w]*/[A-Za-z][-.\w]*)=[-.:\w]+$`)

// namedDevices parses another plugin's annotation, in any form that these plugins support. It returns all as false if
// the annotation may name devices that are missing from the result: CDI devices of an unknown kind, or devices in an
// unknown form.
func namedDevices(value string) (devices []namedDevice, all bool) {
	if len(value) > maxDeviceAnnotation { // guard: author-size
		return nil, false
	}
	if strings.TrimSpace(value) == "" {
		return nil, true
	}
	if strings.ContainsAny(value, "&*!") { // anchors and aliases take long to read
		return nil, false
	}
	var items []any
	if err := yaml.Unmarshal([]byte(value), &items); err != nil {
		for name := range strings.SplitSeq(value, ",") {
			items = append(items, strings.TrimSpace(name))
		}
	}
	for _, item := range items {
		name, isName := item.(string)
		fields, isDevice := item.(map[string]any)
		switch {
		case isName && othersName(name):
			continue
		case !isDevice: // guard: author-kind
			return nil, false
		}
		device, read := readNamedDevice(fields)
		if !read { // guard: author-form
			return nil, false
		}
		devices = append(devices, device)
	}
	return devices, true
}

// othersName reports whether a CDI device is certainly not a verbs device.
func othersName(name string) bool {
	found := cdiName.FindStringSubmatch(name)
	return found != nil && slices.Contains(othersKinds, found[1])
}

// readNamedDevice reads a device's paths and numbers, whatever the keys are called.
func readNamedDevice(fields map[string]any) (device namedDevice, read bool) {
	for _, value := range fields {
		switch value := value.(type) {
		case string:
			n, err := strconv.ParseInt(value, 0, 64)
			switch {
			case strings.HasPrefix(value, "/"):
				device.paths = append(device.paths, path.Clean(value))
			case err == nil:
				device.numbers = append(device.numbers, n)
			case !slices.Contains([]string{"b", "c", "p", "u"}, value):
				return device, false
			}
		case float64:
			device.numbers = append(device.numbers, int64(value))
		default:
			return device, false
		}
	}
	return device, true
}
