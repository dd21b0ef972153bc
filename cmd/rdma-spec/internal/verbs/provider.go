// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// LibraryDirs are where the loader finds libraries, relative to a root, as patterns of path.Match: as Debian and
// others with a directory for each architecture have it, and as Fedora and others have it.
var LibraryDirs = []string{
	"usr/lib/*-linux-gnu", "lib/*-linux-gnu", "usr/lib64", "lib64", "usr/lib", "lib", "usr/local/lib", "usr/local/lib64",
	"usr/local/lib/*-linux-gnu",
}

// providers are libibverbs' providers by the kernel drivers of the devices that HCAs hang on.
var providers = map[string]string{
	"mlx4_core": "mlx4", "mlx5_core": "mlx5", "efa": "efa", "ice": "irdma", "i40e": "irdma", "irdma": "irdma",
	"idpf": "irdma", "iavf": "irdma",
	"bnxt_en": "bnxt_re", "cxgb4": "cxgb4",
	"erdma": "erdma", "hfi1": "hfi1verbs", "hns3": "hns", "ionic": "ionic", "mana": "mana", "qede": "qedr",
	"ib_mthca": "mthca", "vmw_pvrdma": "vmw_pvrdma",
}

// ABI are the versions of the kernel's ABI that a provider supports; zero where they are not known here.
type ABI struct{ Least, Most int }

// abis are match_min_abi_version and match_max_abi_version of rdma-core's providers, in providers/irdma/abi.h,
// erdma/erdma.c, efa/efa-abi.h, mlx5/mlx5-abi.h, siw/siw.c, mana/mana.c, and so on of
// https://github.com/linux-rdma/rdma-core. Those of hns, i40iw, and cxgb4 have no bounds. Vendors ship drivers and
// providers with others.
var abis = map[string]ABI{string(MLX4): {2, 4}, string(MLX5): {1, 1}, string(RXE): {1, 2}, string(SIW): {1, 1},
	string(BNXT): {1, 1}, string(EFA): {1, 1}, string(IRDMA): {0, 5}, "erdma": {0, 1}, "ionic": {1, 1}, "mana": {1, 1}}

// vendors ship drivers whose ABI is not that of rdma-core, with providers of their own: Broadcom's is 6 or more, AMD's
// is 4.
var vendors = map[string]string{string(BNXT): "Broadcom's provider libbnxt_re", "ionic": "AMD's provider libionic"}

// OfDriver names the provider that a driver needs whose ABI is not that of rdma-core.
func OfDriver(provider string) string {
	if named, known := vendors[provider]; known {
		return named + " in the version that matches the node's driver; newer base images do not contain it"
	}
	return "the provider that matches the node's driver and has the same version"
}

// ABIOf returns the versions of the kernel's ABI that rdma-core's provider supports.
func ABIOf(provider string) (ABI, bool) {
	abi, known := abis[provider]
	return abi, known
}

// Has reports whether a version is among them.
func (a ABI) Has(version int) bool { return version >= a.Least && version <= a.Most }

func (a ABI) String() string {
	if a.Least == a.Most {
		return "version " + strconv.Itoa(a.Least)
	}
	return fmt.Sprintf("versions %d to %d", a.Least, a.Most)
}

// Find returns the file of an HCA's provider among those of an image, "" where none is for it. libi40iw serves the X722
// as well, whose driver the kernel has kept compatible (https://github.com/linux-rdma/rdma-core/pull/1013).
func Find(all map[string]string, provider string, h hca.HCA) string {
	if all[provider] == "" && h.Driver == "i40e" {
		provider = "i40iw"
	}
	return all[provider]
}

// Provider returns the provider for an HCA, "" where it is not known, and the version of the kernel's ABI, 0 where it
// is not known. A scalable function's driver, mlx5_core.sf, has the provider of its parent. attribute reads an
// attribute of sysfs, "" where there is none.
//
// A soft HCA has no device with a driver, can have any name, and sysfs names its driver nowhere. Soft-RoCE is the one
// of type CA that has the attribute parent, and 1 or 2 as its ABI; Soft-iWARP is the one of type RNIC, and has 1.
func Provider(h hca.HCA, attribute func(name string) string) (provider string, abi int) {
	if device, ok := h.Verbs(); ok {
		abi, _ = strconv.Atoi(attribute("sys/class/infiniband_verbs/" + path.Base(device.Path) + "/abi_version"))
	}
	soft := h.Driver == "" && h.PCI == ""
	switch {
	case soft && h.NodeType == "CA" && attribute("sys/class/infiniband/"+h.Name+"/parent") != "" &&
		abis[string(RXE)].Has(abi):
		return string(RXE), abi
	case soft && h.NodeType == "RNIC" && abis[string(SIW)].Has(abi):
		return string(SIW), abi
	}
	return providers[strings.TrimSuffix(h.Driver, ".sf")], abi
}
