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

// Daemon is a containerd of the node, as its next start will find it.
type Daemon struct {
	Root    string // below which the node's files are; empty is the same as /
	Name    string // of the platform: containerd, k3s, …
	Config  string // the configuration as the daemon is told it, on the node; it may not exist
	Program Program
	// Told says that the daemon is told its configuration on its command line: then it does not start without the file.
	Told bool

	// Template is the file from which the platform renders Config each time it starts; empty where Config itself is
	// written by people. Source has the one of several that counts.
	Template string
	// DropIns is the directory whose files the platform loads; empty where the configuration names directories.
	DropIns string
	// Units are the systemd units of which one runs the daemon.
	Units []string
	// Process is the daemon where it runs; where it does not, its PID is 0, and it is what its unit starts.
	Process process.Process
}

// File is the configuration below the root, with links resolved there: where it is read and written.
func (d Daemon) File() string { return files.Below(d.Root, d.Config) }

// Units returns the systemd units of all platforms, of which one runs a node's containerd.
func Units() (all []string) {
	for _, p := range places.Containerds {
		all = append(all, p.Units...)
	}
	return all
}

// Find returns the containerds of the node below a root: those that are installed in a place that a platform documents,
// and those that run. The process that runs says which program and which configuration count, or else the unit that
// would start it, or else the place.
func Find(root string) []Daemon { return FindAmong(process.ReadTable(root)) }

// FindAmong is Find where the processes have been read.
func FindAmong(t process.Table) (found []Daemon) {
	root, _ := filepath.Abs(t.Root + "/") // a relative one is below the working directory, which has a name
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
		case found[i].Process.PID == 0: // a second one has just been forked
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

// replaces reports whether a daemon is the node's, and another one, of a platform with the same socket, was: RKE2 where
// K3s has left its directory.
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

// place is the daemon's in the table of places.
func (d Daemon) place() (is places.Place) {
	for _, p := range places.Containerds {
		if p.Name == d.Name {
			is = p
		}
	}
	return is
}

// daemons returns the processes of containerd, but for those that print a configuration, as Effective has them do.
func daemons(t process.Table) []process.Process {
	return slices.DeleteFunc(t.Called("containerd"), func(p process.Process) bool {
		return len(p.Args) > 2 && p.Args[len(p.Args)-2] == "config"
	})
}

// Socket returns where the daemon listens: as its command line says, its files, or its place.
func (d Daemon) Socket(ctx context.Context) string {
	if address := d.Process.Flag("--address", "-a"); address != "" {
		return address
	}
	all, _ := d.Files(ctx, nil) // what it cannot read says nothing
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

// fillFrom has a daemon be a process, or what its unit starts: its configuration, and its program.
func (d *Daemon) fillFrom(p process.Process) {
	d.Process = p
	if config := p.Flag("--config", "-c"); config != "" {
		dir, _ := os.Readlink(p.File(d.Root, "cwd")) // systemd's is /
		if !filepath.IsAbs(config) {
			config = filepath.Join("/", dir, config)
		}
		d.Config = config
		d.Told = true
	}
	if exe := files.Below(d.Root, p.Exe); filepath.IsAbs(p.Exe) && Exists(exe) { // else it was upgraded since
		d.Program = Binary(exe)
	}
}

// movedPlace returns a place of K3s or RKE2 in the --data-dir of the node: of their configuration, or of the containerd
// that runs.
func movedPlace(root string, p places.Place, containerds []process.Process) places.Place {
	if p.Template == "" {
		return p
	}
	standard := "/var/lib/rancher/" + p.Name
	said := struct {
		DataDir string `json:"data-dir"`
	}{standard}
	main := files.Below(root, "/etc/rancher/"+p.Name+"/config.yaml")
	more, _ := filepath.Glob(main + ".d/*.y*ml") // the pattern is a good one
	for _, file := range append([]string{main}, more...) {
		text, _ := os.ReadFile(file)    // it needs not be there
		_ = yaml.Unmarshal(text, &said) // the platform does not start with another document
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

// rendered returns what MicroK8s makes of its template, which is the daemon's --config, below the root with links
// resolved there: in the directory of a revision. It is empty for other platforms.
func (d Daemon) rendered() string {
	if name, isTemplate := strings.CutSuffix(d.Config, "-template.toml"); isTemplate {
		return files.Below(d.Root, name+".toml")
	}
	return ""
}

// Exists reports whether there is a file or directory.
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
		named := files.OnNode(root, absolute)
		absolute = files.Below(root, named)
		for _, d := range found {
			if slices.Contains([]string{d.File(), d.Template, d.rendered()}, absolute) {
				return d.usable()
			}
		}
		for _, d := range found { // an ordinary containerd with its configuration elsewhere
			if d.Name == "containerd" && d.Program != nil {
				d.Config = named
				d.Told = false
				return d, nil
			}
		}
		return Daemon{}, fmt.Errorf("no containerd binary under %s, so %s cannot be loaded: install containerd "+
			"first", root, file)
	}
	switch len(found) {
	case 0:
		return Daemon{}, fmt.Errorf("no containerd binary in the usual directories under %s, and no containerd "+
			"configuration: install containerd, or start it", root)
	case 1:
		return found[0].usable()
	}
	var named []string
	for _, d := range found {
		named = append(named, fmt.Sprintf("%s (--config %s)", d.Name, d.File()))
	}
	return Daemon{}, fmt.Errorf("the node has %d containerd installations, %s: use --config to select the "+
		"installation that the kubelet uses",
		len(found), strings.Join(named, ", "))
}

func (d Daemon) usable() (Daemon, error) {
	if d.Program == nil {
		return Daemon{}, fmt.Errorf("no containerd binary under %s, although %s's configuration file %s exists: install "+
			"containerd first",
			d.Root, d.Name, d.File())
	}
	return d, nil
}
