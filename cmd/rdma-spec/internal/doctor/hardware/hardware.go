// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hardware defines the doctor's checks of HCAs, their devices, the kernel, and the paths between HCAs and GPUs.
// It does not know how checks are run.
package hardware

import (
	"slices"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
)

// Checks are the checks of the node's devices and its kernel.
func Checks() []doctor.Check {
	return slices.Concat(hcaChecks(), portChecks(), pciChecks(), moduleChecks(), deviceChecks(), netnsChecks(),
		gpuChecks(), kernelChecks(), memoryChecks())
}
