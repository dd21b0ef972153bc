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

// LibraryDirs are the directories in which the loader finds libraries, relative to a root, as patterns for path.Match.
// They include the directories of Debian, which has one for each architecture, and of Fedora.
var LibraryDirs = []string{
	"usr/lib/*-linux-gnu", "lib/*-linux-gnu", "usr/lib64", "lib64", "usr/lib", "lib", "usr/local/lib", "usr/local/lib64",
	"usr/local/lib/*-linux-gnu",
}

// providers maps the kernel drivers of the HCAs' parent devices to libibverbs' providers.
var providers = map[string]string{
	"mlx4_core": "mlx4", "mlx5_core": "mlx5", "efa": "efa", "ice": "irdma", "i40e": "irdma", "irdma": "irdma",
	"idpf": "irdma", "iavf": "irdma",
	"bnxt_en": "bnxt_re", "cxgb4": "cxgb4",
	"erdma": "erdma", "hfi1": "hfi1verbs", "hns3": "hns", "ionic": "ionic", "mana": "mana", "qede": "qedr",
	"ib_mthca": "mthca", "vmw_pvrdma": "vmw_pvrdma",
}

// ABI is the range of kernel ABI versions that a provider supports; zero if the range is unknown.
type ABI struct{ Least, Most int }

// abis are match_min_abi_version and match_max_abi_version of rdma-core's providers, in providers/irdma/abi.h,
// erdma/erdma.c, efa/efa-abi.h, mlx5/mlx5-abi.h, siw/siw.c, mana/mana.c, and so on of
// https://github.com/linux-rdma/rdma-core. The providers hns, i40iw, and cxgb4 have no bounds. Vendors ship drivers and
// providers with other versions.
var abis = map[string]ABI{string(MLX4): {2, 4}, string(MLX5): {1, 1}, string(RXE): {1, 2}, string(SIW): {1, 1},
	string(BNXT): {1, 1}, string(EFA): {1, 1}, string(IRDMA): {0, 5}, "erdma": {0, 1}, "ionic": {1, 1}, "mana": {1, 1}}

// vendors maps providers to vendors' own providers, whose drivers have a different ABI from rdma-core. The ABI version
// is at least 6 for Broadcom, and 4 for AMD.
var vendors = map[string]string{string(BNXT): "Broadcom's libbnxt_re provider", "ionic": "AMD's libionic provider"}

// OfDriver describes the provider that a driver requires if its ABI is not the ABI of rdma-core.
func OfDriver(provider string) string {
	if named, known := vendors[provider]; known {
		return "the version of " + named + " that matches the node's driver; newer base images do not contain this provider"
	}
	return "the provider that matches the version of the node's driver"
}

// ABIOf returns the versions of the kernel's ABI that rdma-core's provider supports.
func ABIOf(provider string) (ABI, bool) {
	abi, known := abis[provider]
	return abi, known
}

// Has reports whether the range contains a version.
func (a ABI) Has(version int) bool { return version >= a.Least && version <= a.Most }

func (a ABI) String() string {
	if a.Least == a.Most {
		return "version " + strconv.Itoa(a.Least)
	}
	return fmt.Sprintf("versions %d to %d", a.Least, a.Most)
}

// Find returns the file of an HCA's provider from the providers of an image; "" if the image lacks the provider.
// libi40iw also supports the X722, because the kernel has kept its driver compatible
// (https://github.com/linux-rdma/rdma-core/pull/1013).
func Find(all map[string]string, provider string, h hca.HCA) string {
	if all[provider] == "" && h.Driver == "i40e" {
		provider = "i40iw"
	}
	return all[provider]
}

// Provider returns the provider for an HCA, or "" if it is unknown, and the version of the kernel's ABI, or 0 if it is
// unknown. The driver of a scalable function, mlx5_core.sf, has the same provider as its parent. attribute reads a
// sysfs attribute. It returns "" for a missing attribute.
//
// A software HCA has no device with a driver and can have any name, and sysfs does not contain its driver. A Soft-RoCE
// HCA has the type CA, the attribute parent, and ABI version 1 or 2. A Soft-iWARP HCA has the type RNIC and ABI version
// 1.
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
