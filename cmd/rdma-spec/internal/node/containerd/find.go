// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec/places"
	"github.com/rdma-spec/rdma-spec/spec/files"
)

// Daemon is a containerd of the node, in the state at its next start.
type Daemon struct {
	Root    string // the directory with the node's files; empty means /
	Name    string // the platform's name: containerd, k3s, …
	Config  string // the configuration's path on the node; the file might not exist
	Program Program
	// Told means that the daemon's command line names the configuration. In this case, the daemon does not start without
	// the file.
	Told bool

	// Template is the file from which the platform renders Config at each start; empty if people edit Config itself. If
	// several templates exist, Source returns the template that applies.
	Template string
	// DropIns is the directory whose files the platform loads; empty if the configuration itself lists directories.
	DropIns string
	// Units are the systemd units that can run the daemon.
	Units []string
	// Process is the running daemon. If the daemon is not running, Process is the process that its unit starts, with PID
	// 0.
	Process process.Process
}

// File returns the configuration's path under the root, with links resolved under the root. The configuration is read
// and written at this path.
func (d Daemon) File() string { return files.Below(d.Root, d.Config) }

// Units returns the systemd units of all platforms. One of them runs a node's containerd.
func Units() (all []string) {
	for _, p := range places.Containerds {
		all = append(all, p.Units...)
	}
	return all
}

// Find returns the containerds of the node under a root: those at a path that a platform documents, and those that are
// running. The program and the configuration come from the running process, or else from the unit that starts it, or
// else from the documented paths.
func Find(root string) []Daemon { return FindAmong(process.ReadTable(root)) }

// FindAmong is Find for a process table that has already been read.
func FindAmong(t process.Table) (found []Daemon) {
	root, _ := filepath.Abs(t.Root + "/") // a relative root starts at the working directory
	running := daemons(t)
	for _, p := range places.Containerds {
		p = movedPlace(root, p, running)
		d := Daemon{Root: root, Name: p.Name, Config: p.Config, Units: p.Units}
		if p.DropIns != "" && isManaged(d.File()) {
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
		for _, unit := range p.Units {
			if starts := process.Starts(root, unit); starts.Comm == "containerd" && d.Process.Args == nil {
				d.fillFrom(starts)
			}
		}
		if d.Program != nil || Exists(d.File()) {
			found = append(found, d)
		}
	}
	for _, p := range running {
		if !p.OnNode {
			continue
		}
		d := Daemon{Root: root, Name: "containerd", Config: places.Containerds[0].Config}
		d.fillFrom(p)
		unit := p.Unit(root)
		i := slices.IndexFunc(found, func(other Daemon) bool {
			return other.Config == d.Config || slices.Contains(other.Units, unit) || other.rendered() == d.File()
		})
		switch {
		case i < 0:
			found = append(found, d)
		case found[i].Process.PID == 0: // skips a process that containerd has just forked
			before := found[i]
			found[i].fillFrom(p)
			if before.rendered() != "" {
				found[i].Config = before.Config
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(found), func(d Daemon) bool {
		return slices.ContainsFunc(found, func(other Daemon) bool { return other.replaces(d) })
	})
}

// replaces reports whether a daemon has replaced another platform's daemon with the same socket. For example, RKE2
// replaces K3s on a node on which K3s has left its directory.
func (d Daemon) replaces(of Daemon) bool {
	likely := func(d Daemon) int {
		switch {
		case d.Process.PID > 0:
			return 2
		case slices.ContainsFunc(d.Units, func(unit string) bool { return process.HasUnit(d.Root, unit) }):
			return 1
		}
		return 0
	}
	return d.Name != of.Name && d.place().Socket == of.place().Socket && likely(d) > likely(of)
}

// place returns the daemon's entry in the table of places.
func (d Daemon) place() (is places.Place) {
	for _, p := range places.Containerds {
		if p.Name == d.Name {
			is = p
		}
	}
	return is
}

// daemons returns the processes of containerd, except those that print a configuration, as in Effective.
func daemons(t process.Table) []process.Process {
	return slices.DeleteFunc(t.Called("containerd"), func(p process.Process) bool {
		return len(p.Args) > 2 && p.Args[len(p.Args)-2] == "config"
	})
}

// Socket returns the daemon's socket. The path comes from the command line, or else from the configuration files, or
// else from the platform's defaults.
func (d Daemon) Socket(ctx context.Context) string {
	if address := d.Process.Flag("--address", "-a"); address != "" {
		return address
	}
	all, _ := d.Files(ctx, nil) // an unreadable file sets no address
	for _, f := range slices.Backward(all) {
		for _, table := range [][]string{{"grpc"}, {"plugins", "io.containerd.server.v1.grpc"}} {
			address, _ := tomledit.Lookup(f.Tree, append(table, "address")...)
			if text, _ := address.(string); text != "" {
				return text
			}
		}
	}
	return d.place().Socket
}

// fillFrom sets the daemon's process, configuration, and program from a process, or from the process that a unit
// starts.
func (d *Daemon) fillFrom(p process.Process) {
	d.Process = p
	if config := p.Flag("--config", "-c"); config != "" {
		dir, _ := os.Readlink(p.File(d.Root, "cwd")) // systemd starts units in /
		if !filepath.IsAbs(config) {
			config = filepath.Join("/", dir, config)
		}
		d.Config = config
		d.Told = true
	}
	if exe := files.Below(d.Root, p.Exe); filepath.IsAbs(p.Exe) && Exists(exe) { // otherwise, it was upgraded
		d.Program = Binary(exe)
	}
}

// movedPlace returns the place of K3s or RKE2 in the node's --data-dir. The --data-dir comes from the platform's
// configuration, or from the running containerd.
func movedPlace(root string, p places.Place, containerds []process.Process) places.Place {
	if p.Template == "" {
		return p
	}
	standard := "/var/lib/rancher/" + p.Name
	said := struct {
		DataDir string `json:"data-dir"`
	}{standard}
	main := files.Below(root, "/etc/rancher/"+p.Name+"/config.yaml")
	more, _ := filepath.Glob(main + ".d/*.y*ml") // the pattern is valid
	for _, file := range append([]string{main}, more...) {
		text, _ := os.ReadFile(file)    // the file is optional
		_ = yaml.Unmarshal(text, &said) // the platform does not start with an invalid document
	}
	for _, unit := range p.Units {
		said.DataDir = cmp.Or(process.Starts(root, unit).Flag("--data-dir", "-d"), said.DataDir)
	}
	for _, running := range containerds {
		dir, isOne := strings.CutSuffix(running.Flag("--config", "-c"), strings.TrimPrefix(p.Config, standard))
		if isOne && running.OnNode && strings.Contains(dir+running.Unit(root)+running.Exe, p.Name) {
			said.DataDir = dir
		}
	}
	p.Config = strings.Replace(p.Config, standard, said.DataDir, 1)
	p.Programs = slices.Clone(p.Programs)
	for i, program := range p.Programs {
		p.Programs[i] = strings.Replace(program, standard, said.DataDir, 1)
	}
	return p
}

// rendered returns the path of the file that MicroK8s renders from its template, the daemon's --config. The path is
// under the root, with links resolved under the root, in the directory of a revision. For other platforms, the path is
// empty.
func (d Daemon) rendered() string {
	if name, isTemplate := strings.CutSuffix(d.Config, "-template.toml"); isTemplate {
		return files.Below(d.Root, name+".toml")
	}
	return ""
}

// Exists reports whether a file or directory exists.
func Exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Choose returns the containerd whose configuration is in file. If file is empty, it returns the only containerd.
func Choose(found []Daemon, file, root string) (Daemon, error) {
	if file != "" {
		absolute, err := filepath.Abs(file)
		if err != nil {
			return Daemon{}, err
		}
		named := files.OnNode(root, absolute)
		absolute = files.Below(root, named)
		for _, d := range found {
			if slices.Contains([]string{d.File(), d.Template, d.rendered()}, absolute) {
				return d.usable()
			}
		}
		for _, d := range found { // a plain containerd with its configuration at another path
			if d.Name == "containerd" && d.Program != nil {
				d.Config = named
				d.Told = false
				return d, nil
			}
		}
		return Daemon{}, fmt.Errorf("found no containerd binary under %s, so %s cannot be loaded: install containerd "+
			"first", root, file)
	}
	switch len(found) {
	case 0:
		return Daemon{}, fmt.Errorf("found neither a containerd binary in the usual directories under %s nor a "+
			"containerd configuration: install containerd, or start it if it is installed elsewhere", root)
	case 1:
		return found[0].usable()
	}
	var named []string
	for _, d := range found {
		named = append(named, fmt.Sprintf("%s (--config %s)", d.Name, d.File()))
	}
	return Daemon{}, fmt.Errorf("the node has %d containerd installations, %s: use --config to select the "+
		"installation that the kubelet uses", len(found), strings.Join(named, ", "))
}

func (d Daemon) usable() (Daemon, error) {
	if d.Program == nil {
		return Daemon{}, fmt.Errorf("found no containerd binary under %s, although %s has a configuration file (%s): "+
			"install containerd first", d.Root, d.Name, d.File())
	}
	return d, nil
}
