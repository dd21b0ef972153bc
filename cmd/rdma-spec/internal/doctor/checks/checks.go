// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package checks lists all of the doctor's checks. The list is in its own package because the packages that
// define the checks import package doctor.
package checks

import (
	"slices"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor/containers"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor/hardware"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor/runtimes"
)

// All returns all checks, in the order of their families: from the hardware to the containers, and the kubelet last.
func All() []doctor.Check {
	return slices.Concat(hardware.Checks(), runtimes.Checks(), containers.Checks(), runtimes.KubeletChecks())
}
