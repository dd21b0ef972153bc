// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cdi builds the CDI file for a node's HCAs, reads the CDI files that exist on a node, and checks whether they
// are up to date.
//
// A CDI file identifies device nodes by path, not by number. Because the runtime reads the number when it creates a
// container, a number that changes at boot does no harm. However, the path of an HCA's device can also change at boot.
// Package hca decides which HCAs can be used. This package does not read containers.
package cdi

import (
	"fmt"
	"maps"
	"os"
	"slices"

	"tags.cncf.io/container-device-interface/pkg/parser"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/rdma-spec/rdma-spec/spec/files"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

const (
	// Kind is the prefix of device names, as in rdma.noderesource.dev/hca=mlx5_0.
	Kind = "rdma.noderesource.dev/hca"
	// File is the default path of the CDI file. The path is in memory because a name can refer to a different HCA after a
	// boot.
	File = "/var/run/cdi/rdma.yaml"
	// all is the name of the device that includes every HCA with an ACTIVE port.
	all = "all"
)

// Build creates the spec for a node's HCAs. The spec has devices for each usable HCA, with the HCA's name, PCI address,
// and netdevs as device names. One more device includes all HCAs with an ACTIVE port. The spec is nil if no HCA is
// usable. The notes list omitted HCAs and the reasons. missing lists HCAs in the options that the node lacks.
func Build(node *hca.Inventory, o Options) (built *specs.Spec, notes, missing []string) {
	b := builder{node: node, Options: o, devices: map[string][]hca.HCA{}}
	for _, h := range b.chosen() {
		if _, err := h.Usable(o.Management); err != nil {
			b.note("HCA %s is left out: %v", h.Name, err)
			continue
		}
		b.usable = append(b.usable, h)
	}
	if len(b.usable) == 0 {
		return nil, b.notes, b.missing
	}
	b.nameAll()
	for _, h := range b.usable {
		b.name(h.Name, h)
	}
	for _, h := range b.usable {
		if h.PCI != "" && h.Function != hca.FunctionScalable { // a scalable function has no PCI address of its own
			b.name(h.PCI, h)
		}
	}
	b.nameByNetdev()
	built = &specs.Spec{Kind: Kind, ContainerEdits: b.shared()}
	for _, name := range slices.Sorted(maps.Keys(b.devices)) {
		if hcas := b.devices[name]; len(hcas) > 0 {
			built.Devices = append(built.Devices, specs.Device{Name: name,
				ContainerEdits: specs.ContainerEdits{DeviceNodes: b.nodes(hcas)}})
		}
	}
	if len(built.Devices) == 0 { // CDI does not allow the name of any HCA
		return nil, b.notes, b.missing
	}
	built.Version, _ = specs.MinimumRequiredVersion(built) // never fails
	return built, b.notes, b.missing
}

type builder struct {
	node *hca.Inventory
	Options
	usable         []hca.HCA
	devices        map[string][]hca.HCA // by the name of the CDI device
	notes, missing []string
}

func (b *builder) note(format string, args ...any) {
	b.notes = append(b.notes, fmt.Sprintf(format, args...))
}

// chosen returns the HCAs that the options select.
func (b *builder) chosen() []hca.HCA {
	if b.All() {
		return b.node.HCAs
	}
	for _, name := range b.Devices {
		if _, found := b.node.Find(name); !found {
			b.missing = append(b.missing, name)
		}
	}
	return slices.DeleteFunc(slices.Clone(b.node.HCAs),
		func(h hca.HCA) bool { return !slices.Contains(b.Devices, h.Name) })
}

// name adds a device name for HCAs if CDI allows the name.
func (b *builder) name(name string, hcas ...hca.HCA) {
	if err := parser.ValidateDeviceName(name); err != nil {
		b.note("the CDI file has no device named %q: %v", name, err)
		return
	}
	if _, taken := b.devices[name]; !taken {
		b.devices[name] = hcas
	}
}

// nameAll collects the HCAs with an ACTIVE port. It includes virtual and scalable functions only if the options name
// them, because a device plugin might have allocated the others to a pod.
func (b *builder) nameAll() {
	active, _ := b.node.Active()
	active = slices.DeleteFunc(active, func(h hca.HCA) bool {
		named := slices.ContainsFunc(b.usable, func(u hca.HCA) bool { return u.Name == h.Name })
		return !named || b.All() && h.Function != hca.FunctionPhysical
	})
	if len(active) == 0 {
		b.note("the CDI file has no device named %s, because none of the file's HCAs has an ACTIVE port", all)
		b.devices[all] = nil // reserves the name
		return
	}
	b.name(all, active...)
}

// nameByNetdev adds devices named after the HCAs' netdevs. A bond's device includes all HCAs of the bond.
func (b *builder) nameByNetdev() {
	below := map[string][]hca.HCA{}
	for _, h := range b.usable {
		for _, p := range h.Ports {
			for _, netdev := range p.Netdevs {
				if !slices.ContainsFunc(below[netdev], func(other hca.HCA) bool { return other.Name == h.Name }) {
					below[netdev] = append(below[netdev], h)
				}
			}
		}
	}
	for _, netdev := range slices.Sorted(maps.Keys(below)) {
		b.name(netdev, below[netdev]...)
	}
}

// shared returns the edits that apply to a container with any of the devices.
func (b *builder) shared() (edits specs.ContainerEdits) {
	manager, ok, err := b.node.ConnectionManager(b.usable)
	if err != nil {
		b.note("%v", err)
	}
	if ok {
		edits.DeviceNodes = []*specs.DeviceNode{deviceNode(manager)}
	}
	if b.Memlock != 0 {
		edits.Hooks = []*specs.Hook{{HookName: "createRuntime", Path: b.Hook, Args: b.hookArgs()}}
	}
	return edits
}

// nodes returns the device nodes of HCAs.
func (b *builder) nodes(hcas []hca.HCA) (nodes []*specs.DeviceNode) {
	for _, h := range hcas {
		usable, _ := h.Usable(b.Management) // these HCAs are usable
		for _, d := range usable {
			nodes = append(nodes, deviceNode(d))
		}
	}
	return nodes
}

func deviceNode(d hca.Device) *specs.DeviceNode {
	mode := os.FileMode(d.Mode)
	uid := d.UID
	gid := d.GID
	return &specs.DeviceNode{Path: d.Path, Type: "c", FileMode: &mode, UID: &uid, GID: &gid, Permissions: "rw"}
}

// HookMissing returns an error if a container would not start because the hook's program is missing under a root, or is
// not executable.
func HookMissing(root, hook string) error {
	info, err := os.Stat(files.Below(root, hook))
	switch {
	case err != nil:
		return fmt.Errorf("the hook %s does not exist, so containers would not start: install it with 'rdma-spec "+
			"configure cdi', or set its path with --hook", hook)
	case !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0:
		return fmt.Errorf("the hook %s is not executable, so containers would not start: make it executable", hook)
	}
	return nil
}
