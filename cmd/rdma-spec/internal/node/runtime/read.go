// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec/places"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/baseline"
	"github.com/rdma-spec/rdma-spec/spec/files"
)

// processCRIO is the name of CRI-O's process. That of containerd's is the runtime's name.
const processCRIO = "crio"

// Read answers which container runtimes the node below a root has.
func Read(ctx context.Context, root string) (Runtimes, error) {
	n := node{root: root, processes: process.List(root, process.Called(NameContainerd, processCRIO))}
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
	var left []process.Process
	for _, p := range n.processes {
		if p.Comm == processCRIO {
			all = append(all, func(ctx context.Context) Runtime { return n.crio(ctx, p) })
			continue
		}
		left = append(left, p)
	}
	for _, d := range containerd.Find(n.root) {
		var runs process.Process // none if it is installed, and does not run
		if i := slices.IndexFunc(left, func(p process.Process) bool {
			return d.Loads(filepath.Join(n.root, containerd.ConfigOf(p)))
		}); i >= 0 {
			runs = left[i]
			left = slices.Delete(left, i, i+1)
		}
		all = append(all, func(ctx context.Context) Runtime { return n.containerd(ctx, d, runs) })
	}
	for _, p := range left { // it runs without a configuration of its own
		d := containerd.Daemon{Root: n.root, Name: NameContainerd, File: filepath.Join(n.root, containerd.DefaultConfig)}
		all = append(all, func(ctx context.Context) Runtime { return n.containerd(ctx, d, p) })
	}
	return all
}

// containerd looks at a containerd; p is its process, if it runs.
func (n *node) containerd(ctx context.Context, d containerd.Daemon, p process.Process) Runtime {
	r := Runtime{Name: NameContainerd, PID: p.PID,
		Config: filepath.Join("/", strings.TrimPrefix(d.File, filepath.Clean(n.root)))} // on the node
	if p.Exe != "" && !strings.HasSuffix(p.Exe, process.Deleted) {
		program := filepath.Join(n.root, p.Exe)
		_, missing := os.Stat(program)
		d.Program, r.NotMounted = containerd.Binary(program), errors.Is(missing, fs.ErrNotExist)
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
	r := Runtime{Name: NameCRIO, PID: p.PID, Socket: places.CRIO.Socket, Config: places.CRIO.Config}
	n.daemon(&r, p, places.CRIO.Units)
	if _, err := os.Stat(filepath.Join(n.root, "etc")); errors.Is(err, fs.ErrNotExist) {
		r.NotMounted = true
	} else if err := r.readCRIO(n.root); err != nil {
		r.ConfigError = err.Error()
	}
	n.serves(ctx, &r)
	n.nri(&r)
	return r
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

// noLimit leaves it to the context how long a runtime may take to answer.
const noLimit = time.Hour

// serves asks a runtime over CRI.
func (n *node) serves(ctx context.Context, r *Runtime) {
	if r.Socket == "" {
		return
	}
	answering, _, err := cri.Connect(ctx, filepath.Join(n.root, r.Socket), n.root, noLimit)
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

// handler looks at a runtime handler: its base spec, and its OCI runtime.
func (n *node) handler(ctx context.Context, s containerd.Setting) Handler {
	h := Handler{Name: s.Name, BaseSpec: s.BaseSpec}
	if s.Program != "" {
		h.Program = filepath.Base(s.Program)
	}
	if h.Program == "crun" { // it refuses versions of the spec that runc takes
		out, _ := exec.CommandContext(ctx, s.Program, "--version").Output() // without it, the version is unknown
		_, version, _ := strings.Cut(string(out), "crun version ")
		version, _, _ = strings.Cut(version, "\n")
		h.Program = strings.TrimSpace("crun " + version)
	}
	if s.BaseSpec != "" {
		if err := readBaseSpec(filepath.Join(n.root, s.BaseSpec), &h); err != nil {
			h.Error = err.Error()
		}
	}
	return h
}

// readBaseSpec reads what a base spec says.
func readBaseSpec(file string, h *Handler) error {
	opened, err := os.Open(file)
	if err != nil {
		return files.Cause(err)
	}
	defer func() { _ = opened.Close() }() // it was only read
	text, err := baseline.Read(opened)
	if err != nil {
		return err
	}
	var said specs.Spec
	if err := json.Unmarshal(text, &said); err != nil {
		return err
	}
	h.OCIVersion, h.CapsFiles = said.Version, baseline.CapsFiles(text)
	if said.Process == nil {
		return nil
	}
	for _, limit := range said.Process.Rlimits {
		if limit.Type == spec.RlimitMemlock { // the last one wins
			memlock := spec.Limit(limit.Soft)
			h.Memlock = &memlock
		}
	}
	return nil
}
