// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"testing"

	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// A soft HCA is told by what only its driver has.
func TestProvider(t *testing.T) {
	for name, test := range map[string]struct {
		hca    hca.HCA
		parent string
		want   string
	}{
		"ConnectX-4":             {hca: hca.HCA{Driver: "mlx5_core", PCI: "0000:5e:00.0", NodeType: "CA", ABIVersion: 1}, want: "mlx5"},
		"a scalable function":    {hca: hca.HCA{Driver: "mlx5_core.sf", NodeType: "CA", ABIVersion: 1}, want: "mlx5"},
		"ConnectX-3":             {hca: hca.HCA{Driver: "mlx4_core"}, want: "mlx4"},
		"EFA":                    {hca: hca.HCA{Driver: "efa", NodeType: "unspecified"}, want: "efa"},
		"Soft-RoCE":              {hca: hca.HCA{NodeType: "CA", ABIVersion: 2}, parent: "eth0", want: "rxe"},
		"Soft-iWARP":             {hca: hca.HCA{NodeType: "RNIC", ABIVersion: 1}, want: "siw"},
		"Soft-iWARP before 5.13": {hca: hca.HCA{NodeType: "RNIC", ABIVersion: 1}, parent: "eth0", want: "siw"},
		"soft, of another ABI":   {hca: hca.HCA{NodeType: "CA", ABIVersion: 3}, parent: "eth0"},
		"soft, without parent":   {hca: hca.HCA{NodeType: "CA", ABIVersion: 2}},
		"another driver":         {hca: hca.HCA{Driver: "frobnicator", NodeType: "CA", ABIVersion: 1}, parent: "eth0"},
		"on PCI, driver hidden":  {hca: hca.HCA{PCI: "0000:5e:00.0", NodeType: "RNIC", ABIVersion: 1}},
	} {
		if got := Provider(test.hca, test.parent); got != test.want {
			t.Errorf("%s: provider %q, want %q", name, got, test.want)
		}
	}
}
