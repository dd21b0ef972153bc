// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

// A container that asks for all HCAs and runs with some has a note, unless they are of a device plugin.
func TestLeftOut(t *testing.T) {
	n := hcatest.EightHCANode()
	n.HCAs = n.HCAs[:8]
	n.HCAs[6].Ports[0].State = "2: INIT"
	n.HCAs[7].Ports[0] = n.HCAs[7].Ports[0].Down()
	root := n.Files().Root(t)
	node := policy.LiveFacts(root)
	node.HCAs = policy.ReadNow(func() (*hca.Inventory, error) { return hca.Scan(root) })
	s := &surveyor{policy: policyOf(t, "inject: {namespaces: [ml]}"), node: node}
	six := strings.Fields("mlx5_0 mlx5_1 mlx5_2 mlx5_3 mlx5_4 mlx5_5")
	for name, test := range map[string]struct {
		annotation string
		injected   bool
		holds      []string
		want       string
	}{
		"six of eight":     {"true", true, six, "mlx5_6 (INIT), mlx5_7 (DOWN)"},
		"one came up":      {"true", true, six[:5], "mlx5_6 (INIT), mlx5_7 (DOWN), mlx5_5 (ACTIVE now)"},
		"all":              {"true", true, append(six, "mlx5_6", "mlx5_7"), ""},
		"named":            {"{devices: [mlx5_0]}", true, six[:1], ""},
		"a device plugin":  {"true", false, six[:1], ""},
		"of another place": {"true", true, []string{"mlx5_9"}, ""},
	} {
		r := Container{Report: Report{HCAs: test.holds}}
		s.leftOut(&r, policy.Container{Namespace: "ml", Name: "c", Injected: test.injected,
			Annotations: map[string]string{policy.AnnotationKey: test.annotation}}, node)
		var want []string
		if test.want != "" {
			want = []string{"the container is running without some of the HCAs that it requests: " + test.want +
				"; when their ports are ACTIVE, recreate the pod"}
		}
		if diff := cmp.Diff(want, r.Notes); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
