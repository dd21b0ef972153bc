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

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/agents"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec/places"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/baseline"
	"github.com/rdma-spec/rdma-spec/spec/files"
)

// processCRIO is the name of CRI-O's process. The name of containerd's process is the runtime's name.
const processCRIO = "crio"

// Read returns the container runtimes of the node under a root.
func Read(ctx context.Context, root string) (Runtimes, error) {
	n := node{root: root, table: process.ReadTable(root)}
	n.processes = slices.DeleteFunc(n.table.Called(NameContainerd, processCRIO),
		func(p process.Process) bool { return !p.OnNode })
	var looks []func() Runtime
	for _, p := range n.processes {
		if p.Comm == processCRIO {
			looks = append(looks, func() Runtime { return n.crio(ctx, p) })
		}
	}
	if looks == nil && installedCRIO(root) {
		looks = append(looks, func() Runtime { return n.crio(ctx, process.Process{}) })
	}
	for _, d := range containerd.FindAmong(n.table) {
		looks = append(looks, func() Runtime { return n.containerd(ctx, d) })
	}
	answer := Runtimes{Runtimes: make([]Runtime, len(looks)), Endpoint: agents.Endpoint(n.table)}
	var asked sync.WaitGroup
	for i, look := range looks {
		asked.Go(func() { answer.Runtimes[i] = look() })
	}
	asked.Wait()
	return answer, nil
}

// node is a node whose runtimes are queried, and the runtimes' processes.
type node struct {
	root      string
	table     process.Table
	processes []process.Process // the runtimes' processes
}

// onNode replaces file paths under the root in a text with the paths on the node.
func (n *node) onNode(text string) string {
	root := strings.TrimSuffix(files.Below(n.root, "/"), "/")
	if root == "" {
		return text
	}
	absolute, _ := filepath.Abs(root) // fails only without a working directory
	return strings.NewReplacer(absolute+"/", "/", root+"/", "/").Replace(text)
}

// containerd examines a containerd.
func (n *node) containerd(ctx context.Context, d containerd.Daemon) (r Runtime) {
	p := d.Process
	if p.Exe != "" && !strings.HasSuffix(p.Exe, process.Deleted) {
		program := files.Below(n.root, p.Exe)
		_, missing := os.Stat(program)
		d.Program = containerd.Binary(program)
		r.NotMounted = errors.Is(missing, fs.ErrNotExist)
	}
	all, _ := d.Files(ctx, nil) // the next line returns the same error
	if tree, err := d.Effective(ctx, nil); err == nil {
		r.readContainerd(tree, all)
		for _, i := range d.Ignored(ctx, all, tree) {
			r.Ignored = append(r.Ignored, Ignored{File: i.Name, By: i.By, Reason: i.Reason, Fix: n.onNode(i.Fix)})
		}
	} else if !errors.As(err, new(containerd.NotRun)) {
		r.ConfigError = n.onNode(err.Error())
	}
	r.Name = NameContainerd
	r.PID = p.PID
	r.Config = d.Config
	n.daemon(&r, p, d.Units)
	r.Socket = cmp.Or(p.Flag("--address", "-a"), r.Socket)
	if r.Socket == "" && p.PID > 0 {
		r.Socket = places.Containerds[0].Socket
	}
	for i := range r.Handlers {
		n.handler(ctx, &r.Handlers[i])
	}
	r.NRI.Socket = cmp.Or(r.NRI.Socket, places.NRISocket)
	if !r.CRIDisabled {
		n.askCRI(ctx, &r)
	}
	if r.Version == "" && d.Program != nil {
		r.Version, _ = d.Program.Version(ctx) // "" if unknown
	}
	n.nri(&r)
	return r
}

// crio examines CRI-O.
func (n *node) crio(ctx context.Context, p process.Process) Runtime {
	r := Runtime{Name: NameCRIO, PID: p.PID, Socket: places.CRIO.Socket, Config: places.CRIO.Config}
	n.daemon(&r, p, places.CRIO.Units)
	if _, err := os.Stat(filepath.Join(n.root, "etc")); errors.Is(err, fs.ErrNotExist) {
		r.NotMounted = true
	} else if err := r.readCRIO(n.table); err != nil {
		r.ConfigError = n.onNode(err.Error())
	}
	n.askCRI(ctx, &r)
	n.nri(&r)
	return r
}

// daemon sets the fields that come from a daemon's process.
func (n *node) daemon(r *Runtime, p process.Process, units []string) {
	if p.PID > 0 {
		r.Unit = p.Unit(n.root)
		if limit, err := limits.New(n.root).Memlock(p.PID); err == nil {
			r.Memlock = &limit.Soft
		}
		if most, err := limits.New(n.root).Startable(p.PID); err == nil {
			r.Startable = &most
		}
	}
	for _, unit := range units {
		if r.Unit == "" && process.HasUnit(n.root, unit) {
			r.Unit = unit
		}
	}
}

// noLimit is so long that only the context limits the time for a runtime's response.
const noLimit = time.Hour

// askCRI queries a runtime over CRI.
func (n *node) askCRI(ctx context.Context, r *Runtime) {
	if r.Socket == "" {
		return
	}
	answering, _, err := cri.Connect(ctx, files.Below(n.root, r.Socket), n.root, noLimit)
	if err != nil {
		r.Error = err.Error()
		r.Late = errors.Is(err, cri.ErrLate)
		if r.PID == 0 {
			r.Socket = "" // the runtime is not running, so it does not listen on the socket
		}
		return
	}
	defer answering[0].Close()
	r.Serves = true
	r.Name = answering[0].Name
	r.Version = answering[0].Version
	pods, _ := answering[0].Pods(ctx) // without a response, the count is 0
	r.Pods = len(pods)
}

// nri examines the NRI socket.
func (n *node) nri(r *Runtime) {
	info, err := os.Stat(files.Below(n.root, r.NRI.Socket))
	r.NRI.SocketExists = err == nil && info.Mode().Type() == os.ModeSocket
	inodes := process.Listening(n.root, r.NRI.Socket)
	var last process.Process
	for _, p := range n.processes { // if several processes listened, the last one to start has the socket
		if len(inodes) > 0 && p.Holds(n.root, inodes) && (last.PID == 0 || !p.Started(n.root).Before(last.Started(n.root))) {
			last = p
		}
	}
	r.NRI.Listener = last.PID
}

// handler examines a runtime handler's base spec and OCI runtime. At first, Program is a path.
func (n *node) handler(ctx context.Context, h *Handler) {
	program := h.Program
	if program != "" {
		h.Program = filepath.Base(program)
	}
	if h.Program == "crun" { // crun refuses spec versions that runc accepts
		out, _ := exec.CommandContext(ctx, n.installed(program), "--version").Output() // on error, the version is unknown
		_, version, _ := strings.Cut(string(out), "crun version ")
		version, _, _ = strings.Cut(version, "\n")
		h.Program = strings.TrimSpace("crun " + version)
	}
	if h.BaseSpec != "" {
		if err := readBaseSpec(files.Below(n.root, h.BaseSpec), h); err != nil {
			h.Error = err.Error()
		}
	}
}

// installed returns the path of a program that a daemon of the node calls by name or path.
func (n *node) installed(program string) string {
	if filepath.IsAbs(program) {
		return files.Below(n.root, program)
	}
	for _, dir := range []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
		if path := files.Below(n.root, dir+"/"+program); containerd.Exists(path) {
			return path
		}
	}
	return files.Below(n.root, "/"+program) // does not exist
}

// readBaseSpec reads the fields of a base spec.
func readBaseSpec(file string, h *Handler) error {
	opened, err := os.Open(file)
	if err != nil {
		return files.Cause(err)
	}
	defer func() { _ = opened.Close() }() // opened only for reading
	text, err := baseline.Read(opened)
	if err != nil {
		return err
	}
	var said specs.Spec
	if err := json.Unmarshal(text, &said); err != nil {
		return err
	}
	h.OCIVersion = said.Version
	h.CapsFiles = baseline.CapsFiles(text)
	if said.Process == nil {
		return nil
	}
	for _, limit := range said.Process.Rlimits {
		if limit.Type == spec.RlimitMemlock { // the last entry applies
			memlock := spec.Limit(limit.Soft)
			h.Memlock = &memlock
		}
	}
	return nil
}
