// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"slices"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

// Exclusive mode is right with rdma-cni, wherever a platform installs it.
func TestExclusiveModeWithRDMACNI(t *testing.T) {
	for name, text := range map[string]string{
		"opt/cni/bin/rdma": "", "var/lib/cni/bin/rdma": "", "var/lib/rancher/k3s/data/0f3/bin/rdma": "",
		"etc/cni/net.d/10-net.conflist": `{"plugins": [{"type": "rdma"}]}`,
	} {
		found := findings(t, healthyNode().With(hcatest.Files{"sys/module/ib_core/parameters/netns_mode": "N\n", name: text}))
		i := slices.IndexFunc(found, func(f Finding) bool { return f.Check == "netns-mode" })
		if found[i].Status != OK || !strings.Contains(found[i].Text, "as rdma-cni needs it") {
			t.Errorf("%s: %+v", name, found[i])
		}
	}
}
