// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package ask

import (
	"context"
	"encoding/json"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/configure/change"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
)

// Configured answers which files of the node below a root `rdma-spec configure` wrote and somebody changed since.
func Configured(root string) doctor.Ask {
	return func(context.Context) ([]byte, error) {
		overwritten, err := change.Overwritten(root)
		if err != nil {
			return nil, err
		}
		return json.Marshal(doctor.Configured{Overwritten: overwritten})
	}
}
