// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec/places"
	"github.com/rdma-spec/rdma-spec/spec/files"
)

// Daemon is a containerd of the node.
type Daemon struct {
	Root    string // below which the node's files are; empty is the same as /
	Name    string // of the platform: containerd, k3s, …
	File    string // the configuration that it loads, which may not exist
	Program Program

	// Template is the file from which the platform renders File each time it starts; empty where File itself is the
	// configuration. One that does not exist begins with DefaultTemplate.
	Template string
	// DropIns is the folder whose files the platform loads; empty where File names folders.
	DropIns string
	// Units are the systemd units of which one runs the daemon.
	Units []string
	// Process is the daemon where it runs, and zero where it does not.
	Process process.Process
}

// DefaultTemplate is what a K3s or RKE2 template begins with, so that it adds to the platform's own configuration.
const DefaultTemplate = "{{ template \"base\" . }}\n"

// Units returns the systemd units of all platforms, of which one runs a node's containerd.
func Units() (all []string) {
	for _, p := range places.Containerds {
		all = append(all, p.Units...)
	}
	return all
}

// Find returns the containerds of the node below a root: those that are installed in a place that a platform documents,
// and those that run. Of one that is both, the program that runs counts.
func Find(root string) []Daemon {
	var found []Daemon
	for _, p := range places.Containerds {
		p = moved(root, p)
		d := Daemon{Root: root, Name: p.Name, File: files.Below(root, p.Config), Units: p.Units}
		if p.DropIns != "" {
			d.DropIns = files.Below(root, p.DropIns)
		}
		if p.Template != "" {
			d.Template = files.Below(root, filepath.Join(filepath.Dir(p.Config), p.Template))
		}
		for _, program := range p.Programs {
			if file := files.Below(root, program); Exists(file) {
				d.Program = Binary(file)
				break
			}
		}
		if d.Program != nil || Exists(d.File) {
			found = append(found, d)
		}
	}
	for _, running := range processes(root) {
		i := slices.IndexFunc(found, func(d Daemon) bool { return d.File == running.File || rendered(d) == running.File })
		switch {
		case i < 0:
			found = append(found, running)
		case found[i].Process.PID == 0: // a second one has just been forked
			found[i].Process = running.Process
			if running.Program != nil {
				found[i].Program = running.Program
			}
		}
	}
	return found
}

// moved returns a place of K3s or RKE2 in the --data-dir of the node: of their configuration, or of the containerd that
// runs.
func moved(root string, p places.Place) places.Place {
	if p.Template == "" {
		return p
	}
	standard := "/var/lib/rancher/" + p.Name
	var said struct {
		DataDir string `json:"data-dir"`
	}
	text, _ := os.ReadFile(files.Below(root, "/etc/rancher/"+p.Name+"/config.yaml")) // it needs not be there
	if err := yaml.Unmarshal(text, &said); err != nil || said.DataDir == "" {
		said.DataDir = standard
	}
	for _, running := range process.List(root, process.Called("containerd")) {
		dir, isOne := strings.CutSuffix(configOf(root, running), strings.TrimPrefix(p.Config, standard))
		if isOne && running.OnNode && strings.Contains(dir+running.Unit(root)+running.Exe, p.Name) {
			said.DataDir = dir
		}
	}
	p.Config, p.Programs = strings.Replace(p.Config, standard, said.DataDir, 1), slices.Clone(p.Programs)
	for i, program := range p.Programs {
		p.Programs[i] = strings.Replace(program, standard, said.DataDir, 1)
	}
	return p
}

// rendered returns what MicroK8s makes of its template, which is the daemon's --config.
func rendered(d Daemon) string { return strings.TrimSuffix(d.File, "-template.toml") + ".toml" }

// configOf returns the configuration file that a containerd was started with.
func configOf(root string, p process.Process) string {
	config := cmp.Or(p.Flag("--config", "-c"), places.Containerds[0].Config)
	if !filepath.IsAbs(config) {
		folder, _ := os.Readlink(p.File(root, "cwd")) // systemd's is /
		config = filepath.Join("/", folder, config)
	}
	return config
}

// processes returns the containerds that run on the node itself, not in a container.
func processes(root string) (running []Daemon) {
	for _, p := range process.List(root, process.Called("containerd")) {
		if !p.OnNode {
			continue
		}
		d := Daemon{Root: root, Name: "containerd", File: files.Below(root, configOf(root, p)), Process: p}
		if exe := files.Below(root, p.Exe); p.Exe != "" && Exists(exe) { // else it was upgraded since
			d.Program = Binary(exe)
		}
		running = append(running, d)
	}
	return running
}

// Exists reports whether there is a file or folder.
func Exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Choose returns the one containerd that is meant: the one with the configuration in file, or the only one.
func Choose(found []Daemon, file, root string) (Daemon, error) {
	if file != "" {
		absolute, err := filepath.Abs(file)
		if err != nil {
			return Daemon{}, err
		}
		absolute = files.Below(root, files.OnNode(root, absolute))
		for _, d := range found {
			if slices.Contains([]string{d.File, d.Template, rendered(d)}, absolute) {
				return d.usable()
			}
		}
		for _, d := range found { // an ordinary containerd with its configuration elsewhere
			if d.Name == "containerd" && d.Program != nil {
				return Daemon{Root: d.Root, Name: d.Name, File: absolute, Program: d.Program, Units: d.Units,
					Process: d.Process}, nil
			}
		}
		return Daemon{}, fmt.Errorf("no containerd binary below %s that could load %s: install containerd first", root, file)
	}
	switch len(found) {
	case 0:
		return Daemon{}, fmt.Errorf("no containerd binary below %s in a place that rdma-spec knows, and no configuration "+
			"of one: install containerd, or start it", root)
	case 1:
		return found[0].usable()
	}
	var named []string
	for _, d := range found {
		named = append(named, fmt.Sprintf("%s (--config %s)", d.Name, d.File))
	}
	return Daemon{}, fmt.Errorf("the node has %d containerds: %s: name the one that the kubelet uses with --config",
		len(found), strings.Join(named, ", "))
}

func (d Daemon) usable() (Daemon, error) {
	if d.Program == nil {
		return Daemon{}, fmt.Errorf("no containerd binary below %s: %s of %s is there without its program: install it first",
			d.Root, d.File, d.Name)
	}
	return d, nil
}
