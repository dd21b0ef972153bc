// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/cdi"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	tree "github.com/rdma-spec/rdma-spec/spec/files"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// Dirs are the directories in which runtimes look for CDI files, relative to a node's root. Later directories have
// priority.
var Dirs = []string{"etc/cdi", "run/cdi"}

// fileMost is the maximum size of a CDI file, in bytes. A file with hundreds of devices is smaller.
const fileMost = 4 << 20

// Found is a CDI file on a node.
type Found struct {
	// Path is the file's path on the node, without the root.
	Path string `json:"path"`
	// Kind is the kind of the file's devices. It is omitted if the file cannot be read.
	Kind string `json:"kind,omitempty"`
	// Problem is what is wrong with the whole file: it cannot be read, its hook is missing, or it lacks devices.
	Problem string `json:"problem,omitempty"`
	// Devices are the devices that the file defines.
	Devices []Device `json:"devices,omitempty"`
}

// Ours reports whether the file has the kind that Build creates, no matter which program wrote the file.
func (f Found) Ours() bool { return f.Kind == Kind }

// RDMA reports whether the file defines verbs devices. Either rdma-spec or a device plugin wrote such a file.
func (f Found) RDMA() bool {
	return f.Ours() || slices.ContainsFunc(f.Devices,
		func(d Device) bool { return slices.ContainsFunc(d.Nodes, process.IsVerbs) })
}

// Sound reports whether nothing is wrong with the file and its devices.
func (f Found) Sound() bool {
	return f.Problem == "" && !slices.ContainsFunc(f.Devices, func(d Device) bool { return d.Problem != "" })
}

// Device is a device that a CDI file defines.
type Device struct {
	// Name is the qualified name, such as rdma.noderesource.dev/hca=mlx5_0.
	Name string `json:"name"`
	// Nodes are the paths of the device nodes. Device nodes that all devices of the file share are last.
	Nodes []string `json:"nodes"`
	// Hooks are the paths of the hooks.
	Hooks []string `json:"hooks,omitempty"`
	// Problem is the reason why a container that requests the device does not get the expected device nodes.
	Problem string `json:"problem,omitempty"`
}

// Look reads all CDI files of the node under a root, by increasing priority, and compares them with the node's devices.
// Look changes no files. A node without CDI files is not an error. Look calls scan, which returns the node's HCAs, only
// if a file has the kind that Build creates, because scan can take seconds if an HCA does not respond.
func Look(root string, scan func() (*hca.Inventory, error)) ([]Found, error) {
	names, err := fileNames(root)
	if err != nil || len(names) == 0 {
		return nil, err
	}
	listed, err := hca.List(root)
	if err != nil {
		return nil, err
	}
	all, err := tree.Open(root)
	if err != nil {
		return nil, err
	}
	defer func() { _ = all.Close() }() // opened only for reading
	l := looking{root: root, files: all, devices: map[string]hca.Device{}, scan: scan}
	for _, h := range listed.HCAs {
		for _, d := range h.Devices {
			l.devices[d.Path] = d
		}
	}
	if listed.RDMACM != nil {
		l.devices[listed.RDMACM.Path] = *listed.RDMACM
	}
	var files []Found
	for _, name := range names {
		found, err := l.look(name)
		if err != nil {
			return nil, err
		}
		files = append(files, found)
	}
	markConflicts(files)
	return files, nil
}

// fileNames returns the paths that the CDI files have on the node.
func fileNames(root string) (names []string, err error) {
	for _, dir := range Dirs {
		entries, err := os.ReadDir(tree.Below(root, dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("cannot read %s: %w", tree.Below(root, dir), tree.Cause(err))
		}
		for _, entry := range entries {
			if extension := filepath.Ext(entry.Name()); !entry.IsDir() && (extension == ".yaml" || extension == ".json") {
				names = append(names, path.Join("/", dir, entry.Name()))
			}
		}
	}
	return names, nil
}

// Naming returns the CDI files of the node under a root that use a hook. If such a file defines devices other than
// HCAs, Naming fails, because rdma-spec must not remove the file.
func Naming(root, hook string) (files []string, err error) {
	names, err := fileNames(root)
	for _, name := range names {
		file := tree.Below(root, name)
		read, err := cdi.ReadSpec(file, 0)
		if err != nil {
			continue // runtimes ignore the file
		}
		edits := []specs.ContainerEdits{read.ContainerEdits}
		for _, d := range read.Devices {
			edits = append(edits, d.ContainerEdits)
		}
		named := func(h *specs.Hook) bool { return h.Path == hook }
		switch {
		case !slices.ContainsFunc(edits, func(e specs.ContainerEdits) bool { return slices.ContainsFunc(e.Hooks, named) }):
		case read.Kind != Kind:
			return nil, fmt.Errorf("the CDI file %s uses the hook %s: remove the CDI file first", file, hook)
		default:
			files = append(files, file)
		}
	}
	return files, err
}

// looking compares CDI files with a node.
type looking struct {
	root    string
	files   tree.Tree
	devices map[string]hca.Device // the node's devices, by path
	scan    func() (*hca.Inventory, error)
}

// look reads a CDI file. An error means that the node cannot be read.
func (l looking) look(name string) (Found, error) {
	found := Found{Path: name}
	text, err := l.files.Read(strings.TrimPrefix(name, "/"), fileMost)
	if err != nil {
		found.Problem = "cannot read the file: " + tree.Cause(err).Error()
		return found, nil
	}
	read, err := cdi.ReadSpec(tree.Below(l.root, name), 0)
	if err != nil {
		found.Problem = "runtimes ignore the file: " + strings.ReplaceAll(err.Error(), l.root, "/")
		return found, nil
	}
	found.Kind = read.Kind
	shared := &read.ContainerEdits
	for _, d := range read.Devices {
		device := Device{Name: read.Kind + "=" + d.Name}
		for _, edits := range []*specs.ContainerEdits{&d.ContainerEdits, shared} {
			for _, n := range edits.DeviceNodes {
				device.Nodes = append(device.Nodes, n.Path)
				if device.Problem == "" {
					device.Problem = l.nodeProblem(n)
				}
			}
			for _, h := range edits.Hooks {
				device.Hooks = append(device.Hooks, h.Path)
			}
		}
		found.Devices = append(found.Devices, device)
	}
	if found.Ours() {
		err = l.compare(&found, read.Spec, string(text))
	}
	return found, err
}

// nodeProblem returns the reason why a device node differs from the CDI file. For nodes that do not belong to an HCA,
// it can only check whether they exist, and only on the node itself.
func (l looking) nodeProblem(n *specs.DeviceNode) string {
	name := n.HostPath
	if name == "" {
		name = n.Path
	}
	known, found := l.devices[path.Clean(name)]
	switch {
	case found && n.Major != 0 && (n.Major != int64(known.Major) || n.Minor != int64(known.Minor)):
		return fmt.Sprintf("%s has the device number %s on this node, but %d:%d in the file", name, known.Number, n.Major,
			n.Minor)
	case found && !known.Sound():
		return known.Problem
	case found:
		return ""
	case strings.HasPrefix(name, "/dev/infiniband/"):
		return fmt.Sprintf("%s does not exist on this node", name)
	}
	if _, err := os.Lstat(name); filepath.Clean(l.root) == "/" && errors.Is(err, fs.ErrNotExist) {
		return fmt.Sprintf("%s does not exist on this node", name)
	}
	return ""
}

// compare compares a file of rdma-spec with the file that rdma-spec would write now.
func (l looking) compare(found *Found, file *specs.Spec, text string) error {
	node, err := l.scan()
	if err != nil {
		return err
	}
	for _, h := range node.HCAs {
		if h.Unread != "" {
			return fmt.Errorf("HCA %s cannot be read: %s", h.Name, h.Unread)
		}
	}
	for _, h := range file.ContainerEdits.Hooks {
		if err := HookMissing(l.root, h.Path); err != nil {
			found.Problem = err.Error()
		}
	}
	o, known := optionsOf(text)
	if !known {
		o = Options{Devices: []string{all}, Management: strings.Contains(text, "/umad")}
	}
	now, _, _ := Build(node, o)
	if now == nil {
		now = &specs.Spec{}
	}
	for i := range found.Devices {
		d := &found.Devices[i]
		at := indexOf(now.Devices, file.Devices[i].Name)
		switch {
		case d.Problem != "":
		case at < 0:
			d.Problem = "this node has no usable HCA with this name"
		default:
			d.Problem = deviceDifference(file.Devices[i].ContainerEdits.DeviceNodes, now.Devices[at].ContainerEdits.DeviceNodes)
		}
	}
	for _, d := range now.Devices {
		if known && found.Problem == "" && indexOf(file.Devices, d.Name) < 0 {
			found.Problem = fmt.Sprintf("the file does not define %s: run '%s --to %s'", d.Name, o.command(), found.Path)
		}
	}
	return nil
}

func indexOf(devices []specs.Device, name string) int {
	return slices.IndexFunc(devices, func(d specs.Device) bool { return d.Name == name })
}

// deviceDifference describes how a device's current nodes differ from the nodes in the CDI file.
func deviceDifference(file, now []*specs.DeviceNode) string {
	paths := func(nodes []*specs.DeviceNode) string {
		var all []string
		for _, n := range nodes {
			all = append(all, path.Base(n.Path))
		}
		return strings.Join(all, ",")
	}
	had := paths(file)
	has := paths(now)
	if had != has {
		return fmt.Sprintf("the device now has %s, but the file lists %s", has, had)
	}
	return ""
}

// markConflicts marks devices that several files define. If two files in the same directory define a device, runtimes
// refuse the device. A later directory overrides an earlier directory.
func markConflicts(files []Found) {
	first := map[string]*Device{}
	from := map[string]string{}
	for i := range files {
		for j := range files[i].Devices {
			d := &files[i].Devices[j]
			if earlier, twice := first[d.Name]; twice {
				if path.Dir(from[d.Name]) == path.Dir(files[i].Path) {
					earlier.Problem = "runtimes refuse this device because " + files[i].Path + " also defines it"
					d.Problem = "runtimes refuse this device because " + from[d.Name] + " also defines it"
				} else {
					earlier.Problem = "runtimes use the device from " + files[i].Path + " instead"
				}
			}
			first[d.Name] = d
			from[d.Name] = files[i].Path
		}
	}
}
