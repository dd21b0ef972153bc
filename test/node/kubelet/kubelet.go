// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubelet runs a kubelet on the node, either alone, with static pods, or as the node of a cluster. It needs a
// running containerd and the node's Kubernetes parts. It does not know what is tested.
package kubelet

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/rdma-spec/rdma-spec/test/node"
	"github.com/rdma-spec/rdma-spec/test/node/daemon"
)

const (
	// PodResourcesSocket is the socket at which the kubelet reports which resources it allocated to containers.
	PodResourcesSocket = "/var/lib/kubelet/pod-resources/kubelet.sock"

	dir          = "/run/kubelet"
	manifests    = dir + "/manifests"
	startTimeout = 5 * time.Minute // it takes 20 s on an otherwise idle emulated CPU
	pace         = 500 * time.Millisecond
)

//go:embed config.yaml
var config []byte

// Kubelet is a running kubelet.
type Kubelet struct {
	process *daemon.Process
	conn    *grpc.ClientConn
	asked   podresources.PodResourcesListerClient
	node    string
}

// Start runs a kubelet without a cluster, and waits until device plugins can register.
func Start(ctx context.Context) (*Kubelet, error) { return start(ctx) }

// Join runs the kubelet as the node of a cluster, and waits as Start does. It also runs static pods. The cluster's API
// server can ask it to run commands in containers.
func Join(ctx context.Context, kubeconfig string) (*Kubelet, error) {
	return start(ctx, "--kubeconfig", kubeconfig, "--enable-server")
}

func start(ctx context.Context, args ...string) (*Kubelet, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	parts, err := node.Parts()
	if err != nil {
		return nil, err
	}
	program := filepath.Join(parts.Kubernetes(), "kubelet")
	if _, err := os.Stat(program); err != nil {
		return nil, fmt.Errorf("no kubelet: %w: run rdma-node with --parts all, which builds it", err)
	}
	k := &Kubelet{}
	if k.node, err = os.Hostname(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(manifests, 0o755); err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(file, config, 0o644); err != nil {
		return nil, err
	}
	if k.conn, err = grpc.NewClient("unix://"+PodResourcesSocket,
		grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		return nil, err
	}
	k.asked = podresources.NewPodResourcesListerClient(k.conn)
	// Remove the socket of an earlier kubelet, so that device plugins wait for the new one.
	if err := os.RemoveAll(deviceplugin.KubeletSocket); err != nil {
		return nil, err
	}
	if k.process, err = daemon.Start(nil, program, append([]string{"--config", file}, args...)...); err != nil {
		return nil, err
	}
	err = k.Await(ctx, "takes device plugins", func() bool {
		_, err := os.Stat(deviceplugin.KubeletSocket)
		return err == nil
	})
	if err != nil {
		k.Stop()
		return nil, err
	}
	return k, nil
}

// Stop ends the kubelet. Its pods continue to run.
func (k *Kubelet) Stop() {
	_ = k.conn.Close() // nothing is lost with it
	k.process.Stop()
}

// Await waits for a condition while the kubelet runs. It checks the condition only now and then, because a check can
// take CPU time from the kubelet.
func (k *Kubelet) Await(ctx context.Context, what string, condition func() bool) error {
	return daemon.Await(ctx, pace, what, condition, k.process)
}

// AwaitAdvertised waits until the kubelet can allocate resources to pods. A static pod that is created earlier fails
// for good.
func (k *Kubelet) AwaitAdvertised(ctx context.Context, resources ...string) error {
	return k.Await(ctx, "has "+strings.Join(resources, ", "), func() bool {
		answer, err := k.asked.GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
		have := map[string]bool{}
		for _, d := range answer.GetDevices() {
			have[d.GetResourceName()] = true
		}
		for _, r := range resources {
			if err != nil || !have[r] {
				return false
			}
		}
		return true
	})
}
