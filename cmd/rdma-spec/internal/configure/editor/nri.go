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

// NRI plans that NRI is on, and takes connections of plugins. Where it is required, NRI's default validator is on as
// well, so that a pod can insist on a plugin; its list of plugins that every container must have stays as it is.
// There is nothing to plan where it is so.
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

// hasNRI reports an error where the program has no NRI that serves.
func (d Editor) hasNRI(ctx context.Context, required bool) error {
	version, err := d.Program.Version(ctx)
	if err != nil {
		return err
	}
	if met, first := requirement.Adjusting.Met("containerd", version); !met {
		return fmt.Errorf("containerd %s does not support NRI plugins that set limits: upgrade it to %s or later, or use "+
			"rdma-spec configure handler", version, first)
	}
	if met, first := requirement.Validating.Met("containerd", version); required && !met {
		return fmt.Errorf("containerd %s has no validator for required plugins: upgrade it to %s or later", version, first)
	}
	return nil
}
