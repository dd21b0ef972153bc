// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri/critest"
	"github.com/rdma-spec/rdma-spec/plugin"
	hcas "github.com/rdma-spec/rdma-spec/plugin/inventory"
	"github.com/rdma-spec/rdma-spec/plugin/nritest"
	"github.com/rdma-spec/rdma-spec/plugin/policy/inforce"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
)

// A container that CRI-O was creating while the plugin registered is neither in what CRI-O tells the plugin then, nor
// is the plugin asked about it later. CRI lists it, so status and doctor find it.
func TestContainerThatThePluginHasNeverSeen(t *testing.T) {
	files := hcatest.V100Node().Files()
	addProcess(files, 1, "8388608 8388608", plain)
	files["run/"] = ""
	root := files.Root(t)
	log := logrus.New()
	log.SetOutput(io.Discard)
	nri := nritest.New(t, "cri-o", "1.34.0")
	nri.Start(t)
	p := plugin.New(plugin.Options{
		Name: "rdma", Index: "90", Socket: nri.Socket, Log: log,
		Inventory: hcas.New(root, log), Publisher: &inforce.Writer{Root: root},
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	await.That(t, await.Patience, "the plugin's policy", func() bool {
		_, err := inforce.Read(root)
		return p.Registered() && err == nil
	})
	cri := critest.Serve(t, critest.Options{Name: "cri-o", Version: "1.34.0"}, holder(1, 0, "train-0", memlockOf(8<<20)))
	const remedy = "recreate the pod" // CRI-O stores no spec that can be edited
	for _, test := range []struct{ args, want string }{
		{"status", "below  memlock is 8Mi, the policy gives unlimited: " + remedy},
		{"doctor --only container-memlock",
			"wrong container-memlock: container ml/train-0 main: It holds mlx5_0 and can register 8Mi at " +
				"most: the policy gives it more"},
		{"doctor --only container-memlock", "fix (with care): kubectl -n ml delete pod train-0\n"},
	} {
		stdout, stderr, status := runCommand(t, append(strings.Fields(test.args), "--root", root,
			"--runtime-endpoint", cri.Socket)...)
		if status != 1 || !strings.Contains(stdout, test.want) {
			t.Errorf("%s: exit status %d, want 1 and %q:\n%s%s", test.args, status, test.want, stdout, stderr)
		}
	}
}
