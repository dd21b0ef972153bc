// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hardware has the checks of HCAs, their devices, the kernel, and what lies between HCAs and GPUs.
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
