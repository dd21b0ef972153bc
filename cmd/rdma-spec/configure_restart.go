// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/configure"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/cri"
)

// nodeRestart restarts a unit of the node.
func nodeRestart(unit string) *configure.Restart {
	return &configure.Restart{Unit: unit, Systemd: systemctl{}, CRI: nodeCRI{}, Within: 30 * time.Second, Every: 500 * time.Millisecond}
}

// systemctl is the node's systemd.
type systemctl struct{}

// Reload implements configure.Systemd.
func (s systemctl) Reload(ctx context.Context) error { return s.run(ctx, "daemon-reload") }

// Restart implements configure.Systemd.
func (s systemctl) Restart(ctx context.Context, unit string) error {
	if err := s.run(ctx, "reset-failed", unit); err != nil { // else a unit that failed too often is not started again
		return err
	}
	return s.run(ctx, "restart", unit)
}

func (systemctl) run(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, "systemctl", args...).CombinedOutput()
	if err != nil {
		first, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
		return fmt.Errorf("systemctl %s: %w: %s", strings.Join(args, " "), err, first)
	}
	return nil
}

// nodeCRI is whatever serves CRI on the node.
type nodeCRI struct{}

// Running implements configure.CRI.
func (nodeCRI) Running(ctx context.Context) ([]string, error) {
	runtimes, _, err := cri.Connect(ctx, "", "/")
	if err != nil {
		return nil, err
	}
	var all []string
	for _, r := range runtimes {
		defer r.Close()
		ids, err := r.Running(ctx)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.Socket, err)
		}
		all = append(all, ids...)
	}
	return all, nil
}
