// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import "slices"

// Checks returns all checks: those of each family, from the hardware up to the containers.
func Checks() []Check {
	return slices.Concat(hardware(), runtimeChecks(), baseSpecChecks(), nriChecks(), pluginChecks(), configuredChecks(), cdiChecks(), containerChecks(),
		containerSightChecks(), kubeletChecks())
}

// hardware are the checks of the node's devices and its kernel.
func hardware() []Check {
	return slices.Concat(hcaChecks(), portChecks(), pciChecks(), moduleChecks(), deviceChecks(), netnsChecks(), gpuChecks(), kernelChecks(),
		memoryChecks())
}
