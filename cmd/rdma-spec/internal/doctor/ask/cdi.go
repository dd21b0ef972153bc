// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package ask

import (
	"context"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/cdi"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
)

// CDI answers which CDI files the node below a root has, and whether they are right.
func CDI(root string) doctor.Ask {
	return func(context.Context) (any, error) {
		files, err := cdi.Look(root)
		return doctor.CDIFiles{Files: files}, err
	}
}
