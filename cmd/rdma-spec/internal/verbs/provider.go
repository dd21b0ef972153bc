// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package verbs

import "strings"

// LibraryFolders are where the loader finds libraries, relative to a root, as patterns of path.Match: as Debian and others with a folder for
// each architecture have it, and as Fedora and others have it.
var LibraryFolders = []string{
	"usr/lib/*-linux-gnu", "lib/*-linux-gnu", "usr/lib64", "lib64", "usr/lib", "lib", "usr/local/lib", "usr/local/lib64", "usr/local/lib/*-linux-gnu",
}

// providers are libibverbs' providers by the kernel drivers of the devices that HCAs hang on.
var providers = map[string]string{
	"mlx4_core": "mlx4", "mlx5_core": "mlx5", "efa": "efa", "ice": "irdma", "i40e": "irdma", "irdma": "irdma", "bnxt_en": "bnxt_re", "cxgb4": "cxgb4",
	"erdma": "erdma", "hfi1": "hfi1verbs", "hns3": "hns", "ionic": "ionic", "mana": "mana", "qede": "qedr", "ib_mthca": "mthca", "vmw_pvrdma": "vmw_pvrdma",
}

// Provider returns the provider for the kernel driver of the device that an HCA hangs on, "" where it is not known. A scalable function's
// driver, mlx5_core.sf, has that of its parent. Soft HCAs have no such device.
func Provider(driver string) string { return providers[strings.TrimSuffix(driver, ".sf")] }
