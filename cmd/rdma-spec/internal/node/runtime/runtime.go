// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package runtime reads the state of a node's container runtimes: their versions, configurations, handlers, and NRI. It
// does not read their containers; package cri does.
package runtime

import (
	"path"
	"slices"
	"strings"
	"time"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/plugin/requirement"
	"github.com/rdma-spec/rdma-spec/spec"
)

// NRI is what a runtime's effective configuration says about NRI, and what became of it.
type NRI struct {
	On           bool   `json:"on"`
	Off          string `json:"off,omitempty"` // the setting that turns it off: "disable = true"
	Socket       string `json:"socket,omitempty"`
	SocketExists bool   `json:"socketExists"`
	Listener     int    `json:"listener,omitempty"` // the process that listens at the socket; 0 where it is unknown

	Validator bool     `json:"validator"`          // the default validator is on
	Required  []string `json:"required,omitempty"` // the plugins that every container of the node must have

	// The timeouts of plugins; 0 where they are unknown.
	RegistrationTimeout time.Duration `json:"registrationTimeout,omitempty"`
	RequestTimeout      time.Duration `json:"requestTimeout,omitempty"`
}

// The runtimes as they call themselves over CRI.
const (
	NameContainerd = "containerd"
	NameCRIO       = "cri-o"
)

// Runtimes are the container runtimes that run on a node, or are installed.
type Runtimes struct {
	Runtimes []Runtime `json:"runtimes"`
	Endpoint string    `json:"endpoint,omitempty"` // the socket that the kubelet is told, where that is known
}

// Runtime is a container runtime: a daemon, its effective configuration, and how it answers.
type Runtime struct {
	Name    string      `json:"name"`              // containerd, cri-o
	Version string      `json:"version,omitempty"` // as the daemon or its program says
	PID     int         `json:"pid,omitempty"`     // 0 where no process was found
	Unit    string      `json:"unit,omitempty"`    // of systemd, where it is known
	Memlock *spec.Limit `json:"memlock,omitempty"` // the daemon's own soft limit, which containers inherit
	// Startable is the highest memlock of a container that it can start; nil where that is unknown.
	Startable *spec.Limit `json:"startable,omitempty"`

	Socket string `json:"socket,omitempty"`
	Serves bool   `json:"serves"`          // CRI
	Pods   int    `json:"pods"`            // how many it has
	Error  string `json:"error,omitempty"` // why CRI does not answer
	Late   bool   `json:"late,omitempty"`  // it did not respond in time

	Config      string `json:"config,omitempty"`      // the file
	ConfigError string `json:"configError,omitempty"` // why the runtime does not start with it
	// what it does not take over of its files, without a word
	Ignored []Ignored `json:"ignored,omitempty"`
	// a container does not have the file, or the program that reads it
	NotMounted bool `json:"notMounted,omitempty"`
	// the effective configuration is known: what follows is from it
	Known          bool        `json:"known"`
	CRIDisabled    bool        `json:"criDisabled,omitempty"` // as in a containerd that is Docker's
	DefaultHandler string      `json:"defaultHandler,omitempty"`
	DefaultMemlock *spec.Limit `json:"defaultMemlock,omitempty"` // what CRI-O's default_ulimits say
	Handlers       []Handler   `json:"handlers,omitempty"`
	NRI            NRI         `json:"nri"`
	CDIOff         bool        `json:"cdiOff,omitempty"`
	CDIDirs        []string    `json:"cdiDirs,omitempty"` // where it looks for CDI files; empty where it does not say
}

// Low reports whether a limit is known, and too low for RDMA: a kernel gives 8 MiB, and 64 KiB where it is older.
func Low(b *spec.Limit) bool { return b != nil && *b <= Enough }

// ForPods returns the runtimes that Kubernetes could use: the one at the kubelet's endpoint, or else those that run
// and, where none serves CRI, those that are installed.
func (all Runtimes) ForPods() []Runtime {
	for _, r := range all.Runtimes {
		if all.Endpoint != "" && process.SamePath(r.Socket, all.Endpoint) {
			return []Runtime{r}
		}
	}
	serves := slices.ContainsFunc(all.Runtimes, func(r Runtime) bool { return r.Serves })
	return slices.DeleteFunc(slices.Clone(all.Runtimes),
		func(r Runtime) bool { return r.CRIDisabled || serves && !r.Serves && r.PID == 0 })
}

// DropsRlimits reports whether a version of the runtime ignores the rlimits that an NRI plugin sets, and which one does
// not.
func (r Runtime) DropsRlimits() (drops bool, since string) {
	met, since := requirement.Adjusting.Met(r.Name, r.Version)
	return !met, since
}

// GivesMemlock reports whether the runtime's configuration raises memlock for some containers.
func (r Runtime) GivesMemlock() bool {
	return r.DefaultMemlock != nil && !Low(r.DefaultMemlock) ||
		slices.ContainsFunc(r.Handlers, func(h Handler) bool { return h.Memlock != nil && !Low(h.Memlock) && !h.Sandboxed })
}

// Ignored is a file of which some settings do not count.
type Ignored struct {
	File   string `json:"file"`
	By     string `json:"by,omitempty"` // the file that replaces them
	Reason string `json:"reason"`       // it was not merged, or is of an older version
	Fix    string `json:"fix"`          // by hand
}

// Handler is a runtime handler: what a RuntimeClass names.
type Handler struct {
	Name   string `json:"name"`
	NoType bool   `json:"noType,omitempty"` // it has no runtime_type, so its pods do not start
	// Sandboxed says that its containers have a kernel of their own, which limits on the node say nothing of.
	Sandboxed bool   `json:"sandboxed,omitempty"`
	File      string `json:"file,omitempty"`     // that says something of it last
	BaseSpec  string `json:"baseSpec,omitempty"` // the file that replaces the runtime's default spec
	Error     string `json:"error,omitempty"`    // why the runtime cannot use that file
	// What the file says.
	Memlock    *spec.Limit `json:"memlock,omitempty"`
	CapsFiles  bool        `json:"capsFiles,omitempty"` // it limits every container to 1024 open files
	OCIVersion string      `json:"ociVersion,omitempty"`

	// the OCI runtime and its version: "crun 1.8.1"; without a version where it does not matter
	Program string `json:"program,omitempty"`
}

// Hooks reports whether the handler starts NVIDIA's container runtime, which gives GPUs by a hook unless its mode is
// another one, or that of Habana, whose older versions do so.
func (h Handler) Hooks() bool {
	program, _, _ := strings.Cut(h.Program, " ")
	name := path.Base(program)
	return strings.HasPrefix(name, "nvidia-container-runtime") && name != "nvidia-container-runtime.cdi" ||
		name == "habana-container-runtime"
}
