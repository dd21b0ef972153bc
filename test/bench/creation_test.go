// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"io"
	"runtime"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/sirupsen/logrus"

	"github.com/rdma-spec/rdma-spec/plugin"
	"github.com/rdma-spec/rdma-spec/plugin/nritest"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

// BenchmarkCreation is what NRI adds to the creation of a container: an unrelated one, and one that holds a verbs device.
func BenchmarkCreation(b *testing.B) {
	root := hcatest.V100(b)
	node, err := hca.Scan(root)
	if err != nil {
		b.Fatal(err)
	}
	verbs, ok := node.HCAs[0].Verbs()
	if !ok {
		b.Fatal("the fixture's first HCA has no verbs device")
	}
	pod := &api.PodSandbox{Id: "sandbox", Name: "train-0", Namespace: "ml"}
	containers := map[string]*api.Container{
		"unrelated": {Id: "unrelated", Name: "main"},
		"rdma": {Id: "rdma", Name: "main", Linux: &api.LinuxContainer{Devices: []*api.LinuxDevice{
			{Path: verbs.Path, Type: "c", Major: int64(verbs.Major), Minor: int64(verbs.Minor)},
		}}},
	}
	for _, with := range []struct {
		name    string
		plugins []plugin.Options
	}{
		{"nothing", nil},
		{"plugin", []plugin.Options{{Name: "rdma"}}},
		{"plugin and validator", []plugin.Options{{Name: "rdma"}, {Name: "rdma-validator", Validate: true}}},
	} {
		b.Run(with.name, func(b *testing.B) {
			nri := nritest.New(b, "containerd", "v2.4.2")
			nri.Start(b)
			for i, o := range with.plugins {
				start(b, nri, root, o)
				for nri.Synchronised() <= i {
					runtime.Gosched()
				}
			}
			for name, ctr := range containers {
				b.Run(name, func(b *testing.B) {
					measure(b, func() {
						if _, err := nri.Create(b.Context(), pod, ctr); err != nil {
							b.Fatal(err)
						}
					})
				})
			}
		})
	}
}

// start runs a plugin until the benchmark ends.
func start(b *testing.B, nri *nritest.Runtime, root string, o plugin.Options) {
	b.Helper()
	log := logrus.New()
	log.SetOutput(io.Discard)
	defaults, err := policy.New(policy.Default())
	if err != nil {
		b.Fatal(err)
	}
	o.Index, o.Socket, o.Root, o.Log, o.Policy = "90", nri.Socket, root, log, defaults
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- plugin.New(o).Run(ctx) }()
	b.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			b.Error(err)
		}
	})
}
