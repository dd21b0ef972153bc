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

// Some NRI plugins inject any device of the node that a pod's annotation names. On a node with such a plugin, a pod's
// author can inject a verbs device. A container's verbs device therefore does not prove that an administrator allowed
// the device.

// deviceAnnotations returns the annotation keys that other NRI plugins read. By NRI's convention, the key of the
// annotation is KEY/container.NAME, KEY/pod, or KEY.
func deviceAnnotations() []string {
	return []string{
		"devices.gke.io",               // GKE's device injector: a YAML list of paths
		"nvidia.cdi.k8s.io",            // NVIDIA's container toolkit: comma-separated names of CDI devices
		"devices.noderesource.dev",     // NRI's device-injector: a YAML list of paths with numbers
		"cdi-devices.noderesource.dev", // NRI's device-injector: a YAML list of names of CDI devices
		"devices.nri.io",               // NRI's device-injector: the former names of the two keys, which it still reads
		"cdi-devices.nri.io",
	}
}

// deviceAnnotationKey matches a domain, which is the form of key that the function Annotations keeps.
var deviceAnnotationKey = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+$`)

func checkDeviceAnnotations(keys []string) error {
	for _, key := range keys {
		if !deviceAnnotationKey.MatchString(key) || !isDomain([]byte(key)) { // guard: device-annotation
			return fmt.Errorf("%q is not a valid annotation key: write only the domain, such as devices.gke.io", key)
		}
		if key == AnnotationKey {
			return fmt.Errorf("%s is this plugin's own annotation: remove the key, and use optIn.namespaces", key)
		}
	}
	return nil
}

// scopes returns the suffixes of annotation keys that can apply to a container. If several annotations apply, plugins
// differ in which annotation they use, and an NVIDIA plugin accepts a star as the container's name. The decision
// therefore considers all suffixes.
func scopes(container string) []string {
	return []string{"/container." + container, "/container.*", "/pod", ""}
}

// inScope reports whether an annotation with the given key can apply to a container.
func inScope(key, container string) bool {
	if i := strings.IndexByte(key, '/'); i >= 0 {
		return slices.Contains(scopes(container), key[i:])
	}
	return isDomain([]byte(key))
}

// runtimesOwn are the key prefixes of annotations that runtimes write into each pod. A pod has about a dozen of these
// annotations.
var runtimesOwn = []string{"io.kubernetes.", "io.containerd.", "io.container."}

// isDomain reports whether another plugin can read an annotation with the given key, which must not contain a scope.
func isDomain(key []byte) bool {
	return bytes.IndexByte(key, '.') >= 0 &&
		!slices.ContainsFunc(runtimesOwn, func(begin string) bool { return bytes.HasPrefix(key, []byte(begin)) })
}

// MayRead reports whether a decision about a container of a pod can depend on the pod's annotation with the given key,
// regardless of the configuration.
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

// Reads reports whether a decision under this configuration can depend on an annotation with the given key.
func (o *OptIn) Reads(key string) bool {
	domain, _, _ := strings.Cut(key, "/")
	return domain == AnnotationKey || slices.Contains(o.DeviceAnnotations, domain)
}

// maxDeviceAnnotation is the maximum length of another plugin's annotation in bytes. A value of this length can contain
// 64 paths.
const maxDeviceAnnotation = 4096

// heldIsSignal reports whether the container's verbs device makes the container an RDMA container. A device that the
// pod's author might have named makes the container an RDMA container in only two cases: an annotation alone could make
// the container an RDMA container, or the kubelet reports that it allocated an HCA to the container.
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

// authorAnnotation returns the key of the annotation in which the pod's author might have named all verbs devices of
// the container. If the author cannot have named at least one of these devices, the result is "".
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

// authorsDevices returns the devices that the pod's author names for a container in the annotations of other plugins.
// Each device is identified by its path or its number in the container. If an annotation might name any device,
// authorsDevices returns only the key of this annotation, as open.
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

// AuthorNames returns the key of another plugin's annotation in which the pod's author might name a verbs device for a
// container. If the pod has no such annotation, the result is "". AuthorNames ignores the container's devices.
func (p *Policy) AuthorNames(c Container) string {
	c.Devices = nil
	_, open := p.config.authorsDevices(&c)
	return open
}

// namedDevice is a device that an annotation names.
type namedDevice struct {
	paths   []string
	numbers []int64 // the major and minor numbers, in any order
	by      string  // the key of the annotation
}

// matches reports whether the annotation names the given device of a container, by path or by number. A plugin injects
// a device at the path that the annotation names.
func (n namedDevice) matches(held Device) bool {
	if slices.Contains(n.paths, path.Clean(held.Path)) { // guard: author-held-path
		return true
	}
	return slices.Contains(n.numbers, held.Major) && slices.Contains(n.numbers, held.Minor) // guard: author-number, else false
}

// unplaced reports whether the container lacks a device at a path that the annotation names. A path without a device
// might mean any of the container's devices. unplaced ignores well-known paths of other kinds of devices, because these
// paths never mean a verbs device.
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

// othersKinds are the kinds of CDI devices that are never verbs devices. Each kind must match exactly, because the
// devices of nvidia.com/mofed are HCAs.
var othersKinds = []string{"nvidia.com/gpu", "management.nvidia.com/gpu", "k8s.device-plugin.nvidia.com/gpu",
	"runtime.nvidia.com/gpu", "k8s.gpu.nvidia.com/claim", "k8s.gpu.nvidia.com/device", "nvidia.com/imex-channel",
	"amd.com/gpu", "intel.com/gpu", "gpu.intel.com/igpu", "npu.intel.com/npu"}

// cdiName matches the name of a CDI device: KIND=NAME.
var cdiName = regexp.MustCompile(`^([A-Za-z][-.\w]*/[A-Za-z][-.\w]*)=[-.:\w]+$`)

// namedDevices parses another plugin's annotation in any form that the other plugins support. If the annotation might
// name devices that are missing from the result, all is false. Such devices are CDI devices of an unknown kind, or
// devices in an unknown form.
func namedDevices(value string) (devices []namedDevice, all bool) {
	if len(value) > maxDeviceAnnotation { // guard: author-size
		return nil, false
	}
	if strings.TrimSpace(value) == "" {
		return nil, true
	}
	if strings.ContainsAny(value, "&*!") { // parsing anchors and aliases can take a long time
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

// readNamedDevice reads the paths and numbers of a device, regardless of the names of the keys.
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
