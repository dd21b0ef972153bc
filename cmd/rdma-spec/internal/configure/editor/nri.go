// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package editor

import (
	"context"
	"fmt"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/configure/change"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/goal"
	"github.com/rdma-spec/rdma-spec/plugin/requirement"
)

// NRI plans to turn on NRI and its connections from plugins. If the goal requires it, NRI also plans to turn on the
// default validator, so that a pod can require a plugin. The validator's list of plugins that every container requires
// stays unchanged. If no change is necessary, the plan is empty.
func (d Editor) NRI(ctx context.Context) (change.Plan, error) {
	if err := d.hasNRI(ctx, d.Goal.Asked[goal.Required] == "true"); err != nil {
		return nil, err
	}
	b, err := d.base(ctx)
	if err != nil {
		return nil, err
	}
	return d.plan(ctx, b)
}

// hasNRI returns an error if the program's NRI does not support the goal.
func (d Editor) hasNRI(ctx context.Context, required bool) error {
	version, err := d.Program.Version(ctx)
	if err != nil {
		return err
	}
	if met, first := requirement.Adjusting.Met("containerd", version); !met {
		return fmt.Errorf("containerd %s does not support NRI plugins that set limits: upgrade containerd to %s or later, "+
			"or use rdma-spec configure handler", version, first)
	}
	if met, first := requirement.Validating.Met("containerd", version); required && !met {
		return fmt.Errorf("containerd %s has no validator for required plugins: upgrade containerd to %s or later",
			version, first)
	}
	return nil
}
