// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Result is the result of a command in a container.
type Result struct {
	Out    string // stdout and stderr
	Status int32
}

// Exec runs a command in a running container, as `kubectl exec` does.
func (c *Client) Exec(ctx context.Context, id string, args ...string) (Result, error) {
	answer, err := c.runtime.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: id, Cmd: args, Timeout: 120})
	if err != nil {
		return Result{}, err
	}
	return Result{Out: string(answer.Stdout) + string(answer.Stderr), Status: answer.ExitCode}, nil
}

// Shell runs a script in a running container.
func (c *Client) Shell(ctx context.Context, id, script string) (Result, error) {
	return c.Exec(ctx, id, "/bin/busybox", "sh", "-c", script)
}

// Wait waits until a container's process has ended, and returns its output and its exit status.
func (s *Sandbox) Wait(ctx context.Context, id string) (Result, error) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		answer, err := s.client.runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id})
		if err != nil {
			return Result{}, err
		}
		if answer.Status.State == cri.ContainerState_CONTAINER_EXITED {
			return Result{Out: s.Log(answer.Status.Metadata.Name), Status: answer.Status.ExitCode}, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return Result{}, fmt.Errorf("container %s still runs: %w", id, ctx.Err())
		}
	}
}

// Log returns a container's output so far. It removes the time, stream, and tag that CRI's log format has before each
// line.
func (s *Sandbox) Log(name string) string {
	text, err := os.ReadFile(filepath.Join(s.config.LogDirectory, name+".log"))
	if err != nil {
		return ""
	}
	var out strings.Builder
	for line := range strings.Lines(string(text)) {
		if fields := strings.SplitN(line, " ", 4); len(fields) == 4 {
			out.WriteString(fields[3])
		}
	}
	return out.String()
}
