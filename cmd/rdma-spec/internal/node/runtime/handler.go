// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/oserror"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/baseline"
)

// handler looks at a runtime handler: its base spec, and its OCI runtime.
func (n *node) handler(ctx context.Context, s containerd.Setting) Handler {
	h := Handler{Name: s.Name, BaseSpec: s.BaseSpec, Program: filepath.Base(s.Program)}
	if s.Program == "" {
		h.Program = ""
	}
	if h.Program == "crun" { // it refuses versions of the spec that runc takes
		h.Program = strings.TrimSpace("crun " + crunVersion(ctx, s.Program))
	}
	if s.BaseSpec != "" {
		if err := readBaseSpec(filepath.Join(n.root, s.BaseSpec), &h); err != nil {
			h.Error = err.Error()
		}
	}
	return h
}

// crunVersion returns the version of a crun; "" where it does not say.
func crunVersion(ctx context.Context, program string) string {
	out, _ := exec.CommandContext(ctx, program, "--version").Output() // it then says nothing
	_, version, _ := strings.Cut(string(out), "crun version ")
	version, _, _ = strings.Cut(version, "\n")
	return version
}

// readBaseSpec reads what a base spec says.
func readBaseSpec(file string, h *Handler) error {
	opened, err := os.Open(file)
	if err != nil {
		return oserror.Reason(err)
	}
	defer func() { _ = opened.Close() }() // it was only read
	text, err := baseline.Read(opened)
	if err != nil {
		return err
	}
	var said specs.Spec
	if err := json.NewDecoder(bytes.NewReader(text)).Decode(&said); err != nil {
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
