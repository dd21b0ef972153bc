// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/rdma-spec/rdma-spec/test/node"
	"github.com/rdma-spec/rdma-spec/test/node/daemon"
)

// StartControllers runs what DaemonSets need: their controller, and the scheduler. They end with the cluster.
func (c *Cluster) StartControllers() error {
	parts, err := node.Parts()
	if err != nil {
		return err
	}
	for program, args := range map[string][]string{
		"kube-controller-manager": {"--controllers=daemonset-controller"},
		"kube-scheduler":          nil,
	} {
		// Nobody asks them anything.
		args = append(args, "--kubeconfig="+kubeconfig, "--leader-elect=false", "--secure-port=0")
		p, err := daemon.Start(nil, filepath.Join(parts.Kubernetes(), program), args...)
		if err != nil {
			return err
		}
		c.controllers = append(c.controllers, p)
	}
	return nil
}

// Kubectl runs kubectl and gives what it prints on standard output.
func (*Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	parts, err := node.Parts()
	if err != nil {
		return "", err
	}
	out, err := exec.CommandContext(ctx, filepath.Join(parts.Kubernetes(), "kubectl"), append([]string{"--kubeconfig", kubeconfig}, args...)...).Output()
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		err = fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, ended.Stderr)
	}
	return string(out), err
}
