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

// NRI contains the NRI settings of a runtime's effective configuration, and the current state of NRI.
type NRI struct {
	On           bool   `json:"on"`
	Off          string `json:"off,omitempty"` // the setting that turns off NRI: "disable = true"
	Socket       string `json:"socket,omitempty"`
	SocketExists bool   `json:"socketExists"`
	Listener     int    `json:"listener,omitempty"` // the process that listens on the socket; 0 if unknown

	Validator bool     `json:"validator"`          // the default validator is on
	Required  []string `json:"required,omitempty"` // the plugins that every container on the node requires

	// The timeouts for plugins; 0 if unknown.
	RegistrationTimeout time.Duration `json:"registrationTimeout,omitempty"`
	RequestTimeout      time.Duration `json:"requestTimeout,omitempty"`
}

// The names that the runtimes report over CRI.
const (
	NameContainerd = "containerd"
	NameCRIO       = "cri-o"
)

// Runtimes are the running and installed container runtimes of a node.
type Runtimes struct {
	Runtimes []Runtime `json:"runtimes"`
	Endpoint string    `json:"endpoint,omitempty"` // the socket in the kubelet's configuration, if known
}

// Runtime is a container runtime: a daemon, its effective configuration, and its responses.
type Runtime struct {
	Name    string      `json:"name"`              // containerd, cri-o
	Version string      `json:"version,omitempty"` // from the daemon or its program
	PID     int         `json:"pid,omitempty"`     // 0 if no process was found
	Unit    string      `json:"unit,omitempty"`    // the systemd unit, if known
	Memlock *spec.Limit `json:"memlock,omitempty"` // the daemon's own soft limit, which containers inherit
	// Startable is the highest memlock with which the runtime can start a container; nil if unknown.
	Startable *spec.Limit `json:"startable,omitempty"`

	Socket string `json:"socket,omitempty"`
	Serves bool   `json:"serves"`          // CRI
	Pods   int    `json:"pods"`            // the number of pods
	Error  string `json:"error,omitempty"` // why CRI does not respond
	Late   bool   `json:"late,omitempty"`  // CRI did not respond in time

	Config      string `json:"config,omitempty"`      // the file
	ConfigError string `json:"configError,omitempty"` // why the runtime does not start with this configuration
	// files with settings that the runtime silently ignores
	Ignored []Ignored `json:"ignored,omitempty"`
	// in a container: the file, or the program that reads the file, is not mounted
	NotMounted bool `json:"notMounted,omitempty"`
	// the effective configuration is known; the fields below come from it
	Known          bool        `json:"known"`
	CRIDisabled    bool        `json:"criDisabled,omitempty"` // as in Docker's containerd
	DefaultHandler string      `json:"defaultHandler,omitempty"`
	DefaultMemlock *spec.Limit `json:"defaultMemlock,omitempty"` // from CRI-O's default_ulimits
	Handlers       []Handler   `json:"handlers,omitempty"`
	NRI            NRI         `json:"nri"`
	CDIOff         bool        `json:"cdiOff,omitempty"`
	CDIDirs        []string    `json:"cdiDirs,omitempty"` // the directories of CDI files; empty if not configured
}

// Low reports whether a limit is known and too low for RDMA. The kernel's default is 8 MiB. For older kernels, it is 64
// KiB.
func Low(b *spec.Limit) bool { return b != nil && *b <= Enough }

// ForPods returns the runtimes that Kubernetes could use: the runtime at the kubelet's endpoint, or else the running
// runtimes. If no runtime serves CRI, it also returns the installed runtimes.
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

// DropsRlimits reports whether the runtime's version ignores the rlimits that an NRI plugin sets. since is the first
// version that applies these rlimits.
func (r Runtime) DropsRlimits() (drops bool, since string) {
	met, since := requirement.Adjusting.Met(r.Name, r.Version)
	return !met, since
}

// GivesMemlock reports whether the runtime's configuration raises memlock for some containers.
func (r Runtime) GivesMemlock() bool {
	return r.DefaultMemlock != nil && !Low(r.DefaultMemlock) ||
		slices.ContainsFunc(r.Handlers, func(h Handler) bool { return h.Memlock != nil && !Low(h.Memlock) && !h.Sandboxed })
}

// Ignored is a file with settings that have no effect.
type Ignored struct {
	File   string `json:"file"`
	By     string `json:"by,omitempty"` // the file that replaces the settings
	Reason string `json:"reason"`       // not merged, or an older version
	Fix    string `json:"fix"`          // a manual fix
}

// Handler is a runtime handler, which a RuntimeClass selects.
type Handler struct {
	Name   string `json:"name"`
	NoType bool   `json:"noType,omitempty"` // the handler has no runtime_type, so its pods do not start
	// Sandboxed means that the handler's containers have their own kernel. Limits on the node do not apply in such
	// containers.
	Sandboxed bool   `json:"sandboxed,omitempty"`
	File      string `json:"file,omitempty"`     // the last file with settings of the handler
	BaseSpec  string `json:"baseSpec,omitempty"` // the file that replaces the runtime's default spec
	Error     string `json:"error,omitempty"`    // why the runtime cannot use BaseSpec
	// The content of the base spec.
	Memlock    *spec.Limit `json:"memlock,omitempty"`
	CapsFiles  bool        `json:"capsFiles,omitempty"` // the base spec limits each process to 1024 open files
	OCIVersion string      `json:"ociVersion,omitempty"`

	// the OCI runtime, with its version if relevant: "crun 1.8.1"
	Program string `json:"program,omitempty"`
}

// Hooks reports whether the handler starts the container runtime of NVIDIA or Habana. NVIDIA's runtime adds GPUs with a
// hook in its legacy mode, and older versions of Habana's runtime also add devices with a hook.
func (h Handler) Hooks() bool {
	program, _, _ := strings.Cut(h.Program, " ")
	name := path.Base(program)
	return strings.HasPrefix(name, "nvidia-container-runtime") && name != "nvidia-container-runtime.cdi" ||
		name == "habana-container-runtime"
}
