// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package planted

import (
	"slices"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

// Exclusive mode is right with rdma-cni, installed or configured.
func TestExclusiveModeWithRDMACNI(t *testing.T) {
	for _, has := range []string{`{"installed": true}`, `{"configured": "/etc/cni/net.d/10-net.conflist"}`} {
		found := findings(t, healthyNode().With(hcatest.Files{
			"sys/module/ib_core/parameters/netns_mode": "N\n", node.AnswersFolder + "/rdma-cni.json": `{"answer": ` + has + `}`,
		}))
		i := slices.IndexFunc(found, func(f doctor.Finding) bool { return f.Check == "netns-mode" })
		if found[i].Status != doctor.OK || !strings.Contains(found[i].Text, "as rdma-cni needs it") {
			t.Errorf("%s: %+v", has, found[i])
		}
	}
}
