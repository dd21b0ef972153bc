// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package ask

import (
	"context"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/configure/change"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
)

// Configured answers which files of the node below a root `rdma-spec configure` wrote and somebody changed since.
func Configured(root string) doctor.Ask {
	return func(context.Context) (any, error) {
		overwritten, err := change.Overwritten(root)
		return doctor.Configured{Overwritten: overwritten}, err
	}
}
