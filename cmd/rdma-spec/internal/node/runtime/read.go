// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec/places"
)

// The names of the runtimes' programs and processes.
const (
	processContainerd = "containerd"
	processCRIO       = "crio"
)

// Read answers which container runtimes the node below a root has.
func Read(ctx context.Context, root string) (Runtimes, error) {
	n := node{root: root, processes: process.List(root, process.Called(processContainerd, processCRIO))}
	n.processes = slices.DeleteFunc(n.processes, func(p process.Process) bool { return !p.OnNode })
	looks := n.looks()
	answer := Runtimes{Runtimes: make([]Runtime, len(looks))}
	var asked sync.WaitGroup
	for i, look := range looks {
		asked.Go(func() { answer.Runtimes[i] = look(ctx) })
	}
	asked.Wait()
	return answer, nil
}

// node is a node whose runtimes are asked.
type node struct {
	root      string
	processes []process.Process
}

// looks returns functions that look at a runtime each.
func (n *node) looks() (all []func(context.Context) Runtime) {
	known := containerd.Find(n.root)
	var left []process.Process
	for _, p := range n.processes {
		if p.Comm == processCRIO {
			all = append(all, func(ctx context.Context) Runtime { return n.crio(ctx, p) })
			continue
		}
		left = append(left, p)
	}
	for _, d := range known {
		p, _ := n.runs(d, &left) // else it is installed, and does not run
		all = append(all, func(ctx context.Context) Runtime { return n.containerd(ctx, d, p) })
	}
	for _, p := range left { // it runs without a configuration of its own
		d := containerd.Daemon{Root: n.root, Name: processContainerd, File: filepath.Join(n.root, containerd.DefaultConfig)}
		all = append(all, func(ctx context.Context) Runtime { return n.containerd(ctx, d, p) })
	}
	return all
}

// runs takes the process that runs a daemon from those that are left.
func (n *node) runs(d containerd.Daemon, left *[]process.Process) (process.Process, bool) {
	i := slices.IndexFunc(*left, func(p process.Process) bool {
		return d.Loads(filepath.Join(n.root, containerd.ConfigOf(p)))
	})
	if i < 0 {
		return process.Process{}, false
	}
	p := (*left)[i]
	*left = slices.Delete(*left, i, i+1)
	return p, true
}

// containerd looks at a containerd; p is its process, if it runs.
func (n *node) containerd(ctx context.Context, d containerd.Daemon, p process.Process) Runtime {
	r := Runtime{Name: processContainerd, PID: p.PID, Config: n.onNode(d.File)}
	if p.Exe != "" && !strings.HasSuffix(p.Exe, process.Deleted) {
		program := filepath.Join(n.root, p.Exe)
		_, missing := os.Stat(program)
		d.Program, r.NotSeen = containerd.Binary(program), errors.Is(missing, fs.ErrNotExist)
	}
	n.daemon(&r, p, d.Units)
	settings, err := d.Settings(ctx)
	if notRun := new(containerd.NotRun); err != nil && !errors.As(err, notRun) {
		r.ConfigError = err.Error()
	}
	r.Known = err == nil
	r.Socket = cmp.Or(p.Flag("--address", "-a"), settings.Socket)
	if r.Socket == "" && p.PID > 0 {
		r.Socket = places.Containerds[0].Socket
	}
	r.CRIDisabled = settings.CRIDisabled
	r.DefaultHandler = settings.DefaultHandler
	r.CDIOff, r.CDIFolders = settings.CDIOff, settings.CDIFolders
	for _, s := range settings.Handlers {
		r.Handlers = append(r.Handlers, n.handler(ctx, s))
	}
	r.NRI = NRI{
		On: r.Known && settings.NRIOff == "", Off: settings.NRIOff, Socket: cmp.Or(settings.NRISocket, places.NRISocket),
		Validator: settings.Validator, Required: settings.Required,
		RegistrationTimeout: settings.RegistrationTimeout, RequestTimeout: settings.RequestTimeout,
	}
	if !r.CRIDisabled {
		n.serves(ctx, &r)
	}
	if r.Version == "" && d.Program != nil {
		r.Version, _ = d.Program.Version(ctx) // "" is unknown
	}
	n.nri(&r)
	return r
}

// crio looks at CRI-O.
func (n *node) crio(ctx context.Context, p process.Process) Runtime {
	r := Runtime{Name: "cri-o", PID: p.PID, Socket: places.CRIO.Socket, Config: places.CRIO.Config}
	n.daemon(&r, p, places.CRIO.Units)
	settings, err := CRIO(n.root)
	_, missing := os.Stat(filepath.Join(n.root, "etc"))
	switch {
	case errors.Is(missing, fs.ErrNotExist):
		r.NotSeen = true
	case err != nil:
		r.ConfigError = err.Error()
	default:
		r.Known, r.Socket = true, cmp.Or(settings.Socket, r.Socket)
		r.DefaultMemlock = settings.Memlock
		r.NRI = NRI{On: settings.NRIOff == "", Off: settings.NRIOff, Socket: cmp.Or(settings.NRISocket, places.NRISocket)}
	}
	n.serves(ctx, &r)
	n.nri(&r)
	return r
}

// onNode returns the path, on the node, of a file below the root.
func (n *node) onNode(file string) string {
	return filepath.Join("/", strings.TrimPrefix(file, filepath.Clean(n.root)))
}

// daemon fills in what is known of a daemon's process.
func (n *node) daemon(r *Runtime, p process.Process, units []string) {
	if p.PID > 0 {
		r.Unit = p.Unit(n.root)
		if limit, err := limits.New(n.root).Memlock(p.PID); err == nil {
			r.Memlock = &limit.Soft
		}
	}
	for _, unit := range units {
		if r.Unit == "" && process.HasUnit(n.root, unit) {
			r.Unit = unit
		}
	}
}

// untilDeadline is how long an answer may take.
func untilDeadline(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return time.Until(deadline)
	}
	return cri.AnswersWithin
}

// serves asks a runtime over CRI.
func (n *node) serves(ctx context.Context, r *Runtime) {
	if r.Socket == "" {
		return
	}
	answering, _, err := cri.Connect(ctx, filepath.Join(n.root, r.Socket), n.root, untilDeadline(ctx))
	if err != nil {
		r.Error, r.Late = err.Error(), errors.Is(err, cri.ErrLate)
		if r.PID == 0 {
			r.Socket = "" // it does not run, and the socket is what it would listen at
		}
		return
	}
	defer answering[0].Close()
	r.Serves, r.Name, r.Version = true, answering[0].Name, answering[0].Version
	pods, _ := answering[0].Pods(ctx) // without an answer, there are none
	r.Pods = len(pods)
}

// nri looks at the socket of NRI.
func (n *node) nri(r *Runtime) {
	info, err := os.Stat(filepath.Join(n.root, r.NRI.Socket))
	r.NRI.SocketExists = err == nil && info.Mode().Type() == os.ModeSocket
	inodes := process.Listening(n.root, r.NRI.Socket)
	var last process.Process
	for _, p := range n.processes { // of several that listened there, the last one that started has the socket
		if len(inodes) > 0 && p.Holds(n.root, inodes) && (last.PID == 0 || !p.Started(n.root).Before(last.Started(n.root))) {
			last = p
		}
	}
	r.NRI.Listener = last.PID
}
