// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri"
	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/plugin/limits/limitstest"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
)

// A survey decides about a container of the host's network as the plugin does: where HCAs belong to one network
// namespace, only such a container can open them.
func TestSurveyKnowsTheNetwork(t *testing.T) {
	files := hcatest.V100Node().Files()
	files["sys/module/ib_core/parameters/netns_mode"] = "N\n"
	root := files.Root(t)
	for pid, network := range map[string]string{"1": "net:[1]", "20": "net:[1]", "30": "net:[2]"} {
		if err := os.MkdirAll(filepath.Join(root, "proc", pid, "ns"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(network, filepath.Join(root, "proc", pid, "ns/net")); err != nil {
			t.Fatal(err)
		}
	}
	p, err := policy.FromText([]byte("inject: {namespaces: [ml]}"))
	if err != nil {
		t.Fatal(err)
	}
	s := snapshot(t, node.Options{Root: root, Processes: limits.On(&limitstest.Kernel{})}).Surveyor(p)
	asking := policy.Container{Namespace: "ml", Pod: "asks", Name: "main",
		Annotations: map[string]string{"rdma.noderesource.dev": "true"}}
	for pid, injected := range map[int]bool{20: true, 30: false} {
		asking.HostNetwork = injected // Listing reads it
		r, _ := s.Look(node.Listed{Container: cri.Container{Container: asking, PID: pid}})
		if (r.State == node.StateRefused) == injected || injected && len(r.Wanted.Devices) == 0 {
			t.Errorf("process %d: %s, %q: injected should be %t", pid, r.State, r.Problems, injected)
		}
	}
}

// A survey reads an HCA only to inject it, and then as its caller reads HCAs.
func TestSurveyReadsNoHCA(t *testing.T) {
	root := hcatest.V100(t)
	hcatest.Block(t, root, port+"state")
	p, err := policy.FromText([]byte("inject: {namespaces: [listed]}"))
	if err != nil {
		t.Fatal(err)
	}
	read := 0
	all := snapshot(t, node.Options{Root: root, Processes: limits.On(&limitstest.Kernel{})})
	all.HCAs = func() (*hca.Inventory, error) { read++; return nil, errors.New("mlx5_0 does not answer") }
	s := all.Surveyor(p)
	looked := make(chan node.Container, 1)
	look := func(c policy.Container) node.Container {
		go func() { r, _ := s.Look(node.Listed{Container: cri.Container{Container: c}}); looked <- r }()
		return await.Receive(t, 5*time.Second, "looked at "+c.Pod, looked)
	}
	holds := look(policy.Container{
		Namespace: "ml", Pod: "holds", Name: "main",
		Devices: []policy.Device{{Path: "/dev/infiniband/uverbs0", Type: "c", Major: hcatest.Major,
			Minor: hcatest.FirstVerbs}},
	})
	if !slices.Equal(holds.HCAs, []string{"mlx5_0"}) || read != 0 {
		t.Errorf("it has the HCAs %q, which were read %d times", holds.HCAs, read)
	}
	asks := look(policy.Container{Namespace: "listed", Pod: "asks", Name: "main",
		Annotations: map[string]string{"rdma.noderesource.dev": "true"}})
	if asks.State != node.StateRefused || !strings.Contains(asks.Problems[0], "mlx5_0 does not answer") || read != 1 {
		t.Errorf("%s: %q, and the HCAs were read %d times", asks.State, asks.Problems, read)
	}
}
