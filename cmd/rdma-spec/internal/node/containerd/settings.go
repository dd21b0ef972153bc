// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"syscall"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
)

// NotRun is the error where the program could not be asked, which says nothing about the configuration.
type NotRun struct{ error }

// Settings returns the effective configuration that the installed program makes of the files. The error is NotRun, or
// why they cannot be loaded.
func (d Daemon) Settings(ctx context.Context) (map[string]any, error) {
	if d.Program == nil {
		return nil, NotRun{fmt.Errorf("no program of %s was found", d.Name)}
	}
	tree, err := d.Effective(ctx, Contents{})
	if err != nil && (ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) ||
		errors.As(err, new(*exec.ExitError)) || errors.As(err, new(syscall.Errno))) {
		err = NotRun{err}
	}
	return tree, err
}

// CRIPlugins are the names of the plugin that knows runtime handlers, the newest one first.
var CRIPlugins = []string{"io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri", "cri"}

// BaseSpecKey is the key of a handler that names its base spec.
const BaseSpecKey = "base_runtime_spec"

// Handlers returns the handlers of an effective configuration, and the plugin that has them.
func Handlers(tree map[string]any) (plugin string, all map[string]any) {
	for _, plugin := range CRIPlugins {
		if found, exists := tomledit.Lookup(tree, "plugins", plugin, "containerd", "runtimes"); exists {
			all, _ = found.(map[string]any) // containerd prints a table
			return plugin, all
		}
	}
	return "", nil
}

// NRIPlugin is the name of containerd's plugin for NRI.
const NRIPlugin = "io.containerd.nri.v1.nri"
