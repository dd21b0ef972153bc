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

// Some NRI plugins give a container whatever device of the node an annotation of its pod names. With one of them on the
// node, the author of a pod can give himself a verbs device, which then says nothing about an administrator's will.

// deviceAnnotations are the keys that these plugins read, by NRI's convention as KEY/container.NAME, KEY/pod, or KEY.
func deviceAnnotations() []string {
	return []string{
		"devices.gke.io",               // GKE's device injector: a list of paths, as YAML
		"nvidia.cdi.k8s.io",            // NVIDIA's container toolkit: names of CDI devices, with commas between them
		"devices.noderesource.dev",     // device-injector of the NRI project: a list of paths with numbers, as YAML
		"cdi-devices.noderesource.dev", // the same: a list of names of CDI devices
		"devices.nri.io",               // the names of both before NRI had a domain; they are still read
		"cdi-devices.nri.io",
	}
}

// deviceAnnotationKey matches a domain, which is what Annotations looks for.
var deviceAnnotationKey = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+$`)

func checkDeviceAnnotations(keys []string) error {
	for _, key := range keys {
		if !deviceAnnotationKey.MatchString(key) || !isDomain([]byte(key)) { // guard: device-annotation
			return fmt.Errorf("%q is not an annotation key without its scope: write a domain, such as "+
				"devices.gke.io", key)
		}
		if key == AnnotationKey {
			return fmt.Errorf("%s is this plugin's own annotation: remove it, and use optIn.namespaces", key)
		}
	}
	return nil
}

// scopes are the ends of the annotations that can be for a container. Plugins differ in which of several they take, and
// one of NVIDIA's knows a star, so all of them count.
func scopes(container string) []string {
	return []string{"/container." + container, "/container.*", "/pod", ""}
}

// inScope reports whether an annotation can be for a container, by its key alone.
func inScope(key, container string) bool {
	if i := strings.IndexByte(key, '/'); i >= 0 {
		return slices.Contains(scopes(container), key[i:])
	}
	return isDomain([]byte(key))
}

// runtimesOwn begin the annotations that runtimes write into each pod, a dozen of them.
var runtimesOwn = []string{"io.kubernetes.", "io.containerd.", "io.container."}

// isDomain reports whether an annotation without a scope can be one that another plugin reads.
func isDomain(key []byte) bool {
	return bytes.IndexByte(key, '.') >= 0 &&
		!slices.ContainsFunc(runtimesOwn, func(begin string) bool { return bytes.HasPrefix(key, []byte(begin)) })
}

// MayRead reports whether a decision about some container may read an annotation of its pod with this key, whatever the
// configuration says.
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

// Reads reports whether a decision may read an annotation of a pod with this key.
func (o *OptIn) Reads(key string) bool {
	domain, _, _ := strings.Cut(key, "/")
	return domain == AnnotationKey || slices.Contains(o.DeviceAnnotations, domain)
}

// maxDeviceAnnotation bounds how many bytes of another plugin's annotation are read. 64 paths fit.
const maxDeviceAnnotation = 4096

// counts reports whether the verbs device that the container holds makes it an RDMA container. One that the pod's
// author may have named himself does so where his annotation could, or where the kubelet says that the container was
// given an HCA.
func (d *evaluation) counts() bool {
	by := d.authored()
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

// authored returns the annotation by which the pod's author may have named every verbs device that the container holds;
// "" where one is certainly not his.
func (d *evaluation) authored() string {
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
		i := slices.IndexFunc(named, func(n namedDevice) bool { return n.is(held) })
		if i < 0 {
			d.held = &v
			return ""
		}
		by = named[i].by
	}
	return by
}

// authorsDevices returns the devices that the pod's author names for a container through other plugins, by the path or
// the number that the container has them at. Where an annotation may name any device, open is that annotation.
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

// AuthorNames returns the annotation of another plugin by which the pod's author may name a verbs device for a
// container; "" if there is none. What else gives the container devices is not asked.
func (p *Policy) AuthorNames(c Container) string {
	c.Devices = nil
	_, open := p.config.authorsDevices(&c)
	return open
}

// namedDevice is a device as an annotation names it.
type namedDevice struct {
	paths   []string
	numbers []int64 // in any order: which is the major number is not needed to recognize one
	by      string  // the annotation
}

// is reports whether an annotation names a device of a container: the plugins give it the path that is named.
func (n namedDevice) is(held Device) bool {
	if slices.Contains(n.paths, path.Clean(held.Path)) { // guard: author-held-path
		return true
	}
	return slices.Contains(n.numbers, held.Major) && slices.Contains(n.numbers, held.Minor) // guard: author-number, else false
}

// unplaced reports whether the container has no device at a path that is named, so that it may be any of its devices
// under another. Paths of well-known devices of others are that device or none.
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

// othersPaths begin the paths of devices that are never verbs devices.
var othersPaths = []string{"/dev/nvidia", "/dev/dmabuf_import_helper", "/dev/dri/", "/dev/kfd", "/dev/vfio/",
	"/dev/fuse", "/dev/kvm", "/dev/net/tun"}

// othersKinds are kinds of CDI devices that are never verbs devices. Each is exact: nvidia.com/mofed is HCAs.
var othersKinds = []string{"nvidia.com/gpu", "management.nvidia.com/gpu", "k8s.device-plugin.nvidia.com/gpu",
	"runtime.nvidia.com/gpu", "k8s.gpu.nvidia.com/claim", "k8s.gpu.nvidia.com/device", "nvidia.com/imex-channel",
	"amd.com/gpu", "intel.com/gpu", "gpu.intel.com/igpu", "npu.intel.com/npu"}

// cdiName matches the name of a CDI device: KIND=NAME.
var cdiName = regexp.MustCompile(`^([A-Za-z][-.\w]*/[A-Za-z][-.\w]*)=[-.:\w]+$`)

// namedDevices reads another plugin's annotation, in each of the forms that they have. All is false where it may name
// devices that are not in the result: a CDI device of a kind that is not known, or in a form that is not.
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

// othersName reports whether a CDI device is known to be no verbs device.
func othersName(name string) bool {
	found := cdiName.FindStringSubmatch(name)
	return found != nil && slices.Contains(othersKinds, found[1])
}

// readNamedDevice reads a device with a path and numbers, whatever the keys are called.
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
