// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"fmt"
	"testing"

	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// A soft HCA is told by what only its driver has.
func TestProvider(t *testing.T) {
	for name, test := range map[string]struct {
		hca    hca.HCA
		parent string
		abi    string
		want   string
	}{
		"ConnectX-4": {hca: hca.HCA{Driver: "mlx5_core", PCI: "0000:5e:00.0", NodeType: "CA"},
			abi: "1", want: "mlx5"},
		"a scalable function":    {hca: hca.HCA{Driver: "mlx5_core.sf", NodeType: "CA"}, abi: "1", want: "mlx5"},
		"ConnectX-3":             {hca: hca.HCA{Driver: "mlx4_core"}, want: "mlx4"},
		"EFA":                    {hca: hca.HCA{Driver: "efa", NodeType: "unspecified"}, want: "efa"},
		"Soft-RoCE":              {hca: hca.HCA{NodeType: "CA"}, abi: "2", parent: "eth0", want: "rxe"},
		"Soft-iWARP":             {hca: hca.HCA{NodeType: "RNIC"}, abi: "1", want: "siw"},
		"Soft-iWARP before 5.13": {hca: hca.HCA{NodeType: "RNIC"}, abi: "1", parent: "eth0", want: "siw"},
		"soft, of another ABI":   {hca: hca.HCA{NodeType: "CA"}, abi: "3", parent: "eth0"},
		"soft, without parent":   {hca: hca.HCA{NodeType: "CA"}, abi: "2"},
		"another driver":         {hca: hca.HCA{Driver: "frobnicator", NodeType: "CA"}, abi: "1", parent: "eth0"},
		"on PCI, driver hidden":  {hca: hca.HCA{PCI: "0000:5e:00.0", NodeType: "RNIC"}, abi: "1"},
	} {
		test.hca.Name, test.hca.Devices = "a", []hca.Device{{Path: "/dev/infiniband/uverbs7", Kind: hca.KindVerbs}}
		attributes := map[string]string{"sys/class/infiniband/a/parent": test.parent,
			"sys/class/infiniband_verbs/uverbs7/abi_version": test.abi}
		got, abi := Provider(test.hca, func(name string) string { return attributes[name] })
		if test.abi != "" && fmt.Sprint(abi) != test.abi {
			t.Errorf("%s: ABI %d, want %s", name, abi, test.abi)
		}
		if got != test.want {
			t.Errorf("%s: provider %q, want %q", name, got, test.want)
		}
	}
}
