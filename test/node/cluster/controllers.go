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

// controllers are the controllers that workloads need. The node lifecycle controller makes a node that has joined
// available to all pods, and the garbage collector deletes the pods of a deleted workload.
const controllers = "--controllers=daemonset-controller,deployment-controller,replicaset-controller,job-controller," +
	"node-lifecycle-controller,garbage-collector-controller"

// StartControllers runs the controllers that workloads need, and the scheduler. They end with the cluster.
func (c *Cluster) StartControllers() error {
	parts, err := node.Parts()
	if err != nil {
		return err
	}
	for program, args := range map[string][]string{
		"kube-controller-manager": {controllers, "--node-monitor-grace-period=5m"}, // heartbeats are late on a busy emulated CPU
		"kube-scheduler":          nil,
	} {
		// Nothing connects to their ports.
		args = append(args, "--kubeconfig="+kubeconfig, "--leader-elect=false", "--secure-port=0")
		p, err := daemon.Start(nil, filepath.Join(parts.Kubernetes(), program), args...)
		if err != nil {
			return err
		}
		c.controllers = append(c.controllers, p)
	}
	return nil
}

// Kubectl runs kubectl, and returns its standard output.
func (*Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	parts, err := node.Parts()
	if err != nil {
		return "", err
	}
	return outputOf(ctx, filepath.Join(parts.Kubernetes(), "kubectl"), args)
}

// Helm runs Helm, and returns its standard output.
func (*Cluster) Helm(ctx context.Context, args ...string) (string, error) {
	parts, err := node.Parts()
	if err != nil {
		return "", err
	}
	return outputOf(ctx, parts.Helm(), args)
}

func outputOf(ctx context.Context, program string, args []string) (string, error) {
	out, err := exec.CommandContext(ctx, program, append([]string{"--kubeconfig", kubeconfig}, args...)...).Output()
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		err = fmt.Errorf("%s %s: %w: %s", filepath.Base(program), strings.Join(args, " "), err, ended.Stderr)
	}
	return string(out), err
}
