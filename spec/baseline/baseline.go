// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package baseline reads and writes base specs. A base spec is the OCI runtime spec from which containerd creates every
// container. The package contains containerd's default spec, and the requirements for a file that replaces the default
// spec (base_runtime_spec). The package does not apply a Grant to a spec.
//
// The package is separate from package spec so that the plugin, which needs no base spec, does not link containerd's
// library.
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

// ociVersion is the version of the default spec. containerd's library writes a newer version, which the OCI runtimes of
// current distributions refuse ("unknown version specified"). All fields of the default spec exist in version 1.0.2.
const ociVersion = "1.0.2"

// rlimitFiles is the type of the limit on the number of files that a process can have open.
const rlimitFiles = "RLIMIT_NOFILE"

// maxSize is the largest spec that Read accepts, in bytes.
const maxSize = 16 << 20

// Default returns the JSON text of containerd's default spec for this machine's architecture, for use as a
// base_runtime_spec.
//
// Default omits RLIMIT_NOFILE. containerd removes its own default of 1024 files only if no base_runtime_spec is set. In
// a base_runtime_spec, containerd's default would therefore limit every container. Default also omits the cgroup path,
// which is different for each container.
func Default() ([]byte, error) {
	ctx := namespaces.WithNamespace(context.Background(), "k8s.io")
	s, err := oci.GenerateSpecWithPlatform(ctx, nil, "linux/"+runtime.GOARCH, &containers.Container{})
	if err != nil {
		return nil, fmt.Errorf("cannot generate containerd's default spec for linux/%s: %w", runtime.GOARCH, err)
	}
	s.Version = ociVersion
	s.Process.Rlimits = slices.DeleteFunc(s.Process.Rlimits,
		func(l specs.POSIXRlimit) bool { return l.Type == rlimitFiles })
	s.Linux.CgroupsPath = ""
	return json.Marshal(s)
}

// Read reads a spec from an untrusted source. It returns an error if the text is empty, larger than 16 MiB, not a JSON
// object, or not an OCI runtime spec for Linux. The error does not name the source.
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
		return nil, fmt.Errorf("expected an OCI runtime spec, but the text is not JSON: %w", err)
	case text[0] != '{':
		return nil, errors.New("not a JSON object: expected an OCI runtime spec")
	case len(s.Version) <= len(`""`) || s.Version[0] != '"':
		return nil, errors.New("not an OCI runtime spec: ociVersion is missing")
	case len(s.Linux) == 0 || s.Linux[0] != '{':
		return nil, errors.New("not an OCI runtime spec for Linux: the linux section is missing")
	}
	return text, nil
}

// Indent returns a spec's text in a readable form: two spaces for each level, and a newline at the end. Strings and
// numbers keep their spelling.
func Indent(text []byte) ([]byte, error) {
	var out bytes.Buffer
	if err := json.Indent(&out, text, "", "  "); err != nil {
		return nil, err
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

// process contains the fields of a spec's process section that this package reads.
type process struct {
	Rlimits      []specs.POSIXRlimit `json:"rlimits"`
	Capabilities map[string][]string `json:"capabilities"`
}

// processOf reads the process section of a spec. A field that processOf cannot read counts as missing.
func processOf(text []byte) process {
	var s struct {
		Process process `json:"process"`
	}
	_ = json.Unmarshal(text, &s) // Unmarshal decodes the other fields even if one field has the wrong type
	return s.Process
}

// CapsFiles reports whether a spec limits every container to 1024 open files, as containerd's own default spec does.
func CapsFiles(text []byte) bool {
	return slices.ContainsFunc(processOf(text).Rlimits,
		func(l specs.POSIXRlimit) bool { return l.Type == rlimitFiles && l.Soft == 1024 })
}

// HasIPCLock reports whether any capability set in a spec contains CAP_IPC_LOCK.
func HasIPCLock(text []byte) bool {
	return slices.Contains(slices.Concat(slices.Collect(maps.Values(processOf(text).Capabilities))...), spec.CapIPCLock)
}

// WithoutFileLimit returns a spec without the limit of 1024 open files from containerd's own default spec. All other
// text stays the same, byte for byte, including numbers that do not fit into a float64.
func WithoutFileLimit(text []byte) ([]byte, error) {
	if !CapsFiles(text) {
		return text, nil
	}
	return spec.WithoutRlimit(text, rlimitFiles)
}
