// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package checks lists all of the doctor's checks. It is separate from package doctor because it imports the packages
// that define the checks, and these import package doctor.
package checks

import (
	"slices"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor/containers"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor/hardware"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor/runtimes"
)

// All returns all checks: those of each family, from the hardware up to the containers.
func All() []doctor.Check {
	return slices.Concat(hardware.Checks(), runtimes.Checks(), containers.Checks(), runtimes.KubeletChecks())
}
