// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hardware defines the doctor's checks of HCAs, their devices, the kernel, and the paths between HCAs and GPUs.
// The package does not run the checks.
package hardware

import (
	"slices"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
)

// Checks returns the checks of the node's devices and kernel.
func Checks() []doctor.Check {
	return slices.Concat(hcaChecks(), portChecks(), pciChecks(), moduleChecks(), deviceChecks(), netnsChecks(),
		gpuChecks(), kernelChecks(), memoryChecks())
}
