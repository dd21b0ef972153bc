// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/plugin/policy/inforce"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// Of a service and a DaemonSet on one node, the second one stays out, whichever that is: it is ready, as one that waits
// behind a registered plugin is, and says whom it found.
func TestPlugin_Rival(t *testing.T) {
	for name, test := range map[string]struct{ first, second, says string }{
		"the chart first": {"DaemonSet.rdma-spec.nri-rdma", "", "not registering: the rdma-spec/nri-rdma DaemonSet " +
			"serves"},
		"the service first": {"", "DaemonSet.rdma-spec.nri-rdma",
			"not registering: an nri-rdma process outside Kubernetes, such as the systemd service, serves"},
	} {
		t.Run(name, func(t *testing.T) {
			root := scratch.Dir(t, "run")
			options := func(deployment string) Options {
				return Options{Policy: mustPolicy(t, "{}"), Deployment: deployment, Root: root}
			}
			runtime, _ := registered(t, options(test.first))
			await.That(t, await.Timeout, "published", func() bool { return inforce.CheckWriter(root) == nil })
			o := options(test.second)
			o.Socket = runtime.Socket
			second := run(t, o)
			await.That(t, await.Timeout, "ready, and out", func() bool {
				state, err := second.Ready()
				return err == nil && strings.HasPrefix(state, test.says)
			})
			if second.Registered() || runtime.Synchronised() != 1 {
				t.Errorf("%d plugins have registered, want 1", runtime.Synchronised())
			}
		})
	}
}
