// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import "slices"

// Checks returns all checks: those of each family, from the hardware up to the containers.
func Checks() []Check {
	return slices.Concat[[]Check]()
}
