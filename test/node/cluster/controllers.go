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

// controllers are those that workloads need. The node's lifecycle makes a node that has joined one for every pod, and
// the garbage collector ends the pods of a workload that is deleted.
const controllers = "--controllers=daemonset-controller,deployment-controller,replicaset-controller,job-controller," +
	"node-lifecycle-controller,garbage-collector-controller"

// StartControllers runs what workloads need: their controllers, and the scheduler. They end with the cluster.
func (c *Cluster) StartControllers() error {
	parts, err := node.Parts()
	if err != nil {
		return err
	}
	for program, args := range map[string][]string{
		"kube-controller-manager": {controllers, "--node-monitor-grace-period=5m"}, // a busy emulated CPU is late
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
	return outputOf(ctx, filepath.Join(parts.Kubernetes(), "kubectl"), args)
}

// Helm runs Helm and gives what it prints on standard output.
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
