// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package baseline knows the spec that a runtime starts every container from: containerd's default one, and what a file
// that replaces it (base_runtime_spec) must look like.
//
// It is a package of its own so that the plugin, which needs none of it, does not carry containerd's library.
package baseline

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/rdma-spec/rdma-spec/spec"
)

// ociVersion is what the default spec is labelled with. containerd's library writes a newer one, which runtimes of
// today's distributions refuse ("unknown version specified"); nothing in the default spec is younger than 1.0.2.
const ociVersion = "1.0.2"

// rlimitFiles is how many files a process can have open.
const rlimitFiles = "RLIMIT_NOFILE"

// maxSize bounds a spec that is read, in bytes.
const maxSize = 16 << 20

// Default returns the JSON text of containerd's default spec for this machine's architecture, fit to be a
// base_runtime_spec.
//
// RLIMIT_NOFILE is left out: containerd removes its own default of 1024 files only where no base_runtime_spec is set,
// so it would cap every container. The cgroup path is left out as well: it belongs to a container.
func Default() ([]byte, error) {
	ctx := namespaces.WithNamespace(context.Background(), "k8s.io")
	s, err := oci.GenerateSpecWithPlatform(ctx, nil, "linux/"+runtime.GOARCH, &containers.Container{})
	if err != nil {
		return nil, fmt.Errorf("containerd's default spec for linux/%s: %w", runtime.GOARCH, err)
	}
	s.Version = ociVersion
	s.Process.Rlimits = slices.DeleteFunc(s.Process.Rlimits,
		func(l specs.POSIXRlimit) bool { return l.Type == rlimitFiles })
	s.Linux.CgroupsPath = ""
	return json.Marshal(s)
}

// Read takes a spec from somebody else, and refuses what cannot be one: nothing, something else than a JSON object, a
// spec that is not for Linux, more than 16 MiB. Errors do not name the source.
func Read(from io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(from, maxSize+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxSize {
		return nil, errors.New("larger than 16 MiB: expected an OCI runtime spec in JSON")
	}
	text = bytes.Trim(text, " \t\r\n")
	if len(text) == 0 {
		return nil, errors.New("empty: expected an OCI runtime spec in JSON")
	}
	var s struct {
		Version json.RawMessage `json:"ociVersion"`
		Linux   json.RawMessage `json:"linux"`
	}
	err = json.Unmarshal(text, &s)
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		return nil, fmt.Errorf("not JSON: %w: expected an OCI runtime spec", err)
	case text[0] != '{':
		return nil, errors.New("not a JSON object: expected an OCI runtime spec")
	case len(s.Version) <= len(`""`) || s.Version[0] != '"':
		return nil, errors.New("not an OCI runtime spec: it has no ociVersion")
	case len(s.Linux) == 0 || s.Linux[0] != '{':
		return nil, errors.New("not an OCI runtime spec for Linux: it has no linux section")
	}
	return text, nil
}

// Indent returns a spec's text for people: two spaces a level, a newline at the end; strings and numbers stay as they
// are.
func Indent(text []byte) ([]byte, error) {
	var out bytes.Buffer
	if err := json.Indent(&out, text, "", "  "); err != nil {
		return nil, err
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

// process is what a spec says of every container's processes.
type process struct {
	Rlimits      []specs.POSIXRlimit `json:"rlimits"`
	Capabilities map[string][]string `json:"capabilities"`
}

// processOf reads what it can.
func processOf(text []byte) process {
	var s struct {
		Process process `json:"process"`
	}
	_ = json.Unmarshal(text, &s) // what cannot be read counts as missing
	return s.Process
}

// CapsFiles reports whether a spec limits every container to the 1024 open files of containerd's unadapted default.
func CapsFiles(text []byte) bool {
	return slices.ContainsFunc(processOf(text).Rlimits,
		func(l specs.POSIXRlimit) bool { return l.Type == rlimitFiles && l.Soft == 1024 })
}

// HasIPCLock reports whether any capability set of a spec has CAP_IPC_LOCK.
func HasIPCLock(text []byte) bool {
	return slices.Contains(slices.Concat(slices.Collect(maps.Values(processOf(text).Capabilities))...), spec.CapIPCLock)
}

// WithoutFileLimit returns a spec without the limit of 1024 open files that containerd's unadapted default has. All
// else stays as it is, numbers that no float64 holds too.
func WithoutFileLimit(text []byte) ([]byte, error) {
	if !CapsFiles(text) {
		return text, nil
	}
	return spec.WithoutRlimit(text, rlimitFiles)
}
