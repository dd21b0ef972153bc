// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package configure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/configure/change"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/goal"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/record"
)

// revertFeatures reverts or forgets the named features or, if none is named, all features. If a file cannot be
// reverted, its whole feature is left unchanged.
func (o *Options) revertFeatures(cmd *cobra.Command, features ...string) error {
	ledger, err := o.open()
	if err != nil {
		return err
	}
	defer ledger.Close()
	if len(features) == 0 {
		features = ledger.Features()
	}
	if o.forget {
		paths, err := ledger.Forget(features...)
		if err != nil {
			return err
		}
		return o.print(cmd, Result{Files: paths}, "forgot", "", "nothing to forget\n")
	}
	back, left, err := o.reversal(cmd.Context(), ledger, features)
	if err != nil {
		return err
	}
	r := Result{Files: back.Paths()}
	for path, content := range back.Contents() {
		if content == nil {
			r.removed = append(r.removed, path)
		}
	}
	if found := o.unrecorded(cmd.Context(), ledger); back.Empty() && len(left) == 0 && len(found) > 0 {
		return fmt.Errorf("rdma-spec configure wrote %s, but has no record of this change: remove each file and its "+
			"import manually", strings.Join(found, ", "))
	}
	status := 0
	for _, err := range left {
		r.Left = append(r.Left, err.Error())
		status = max(status, 1)
		if !errors.As(err, new(*record.Changed)) {
			status = 3
		}
		fmt.Fprintln(cmd.ErrOrStderr(), "rdma-spec:", err)
	}
	if !back.Empty() && !o.dryRun {
		unit, check, err := o.readers(cmd.Context(), back.Paths())
		if err != nil {
			return err
		}
		o.Restart = o.Restart && unit != "" // else no daemon reads the files
		if err := o.withRestart(cmd.Context(), unit, check,
			func(check func() error) error { return ledger.Revert(back, check) }); err != nil {
			return err
		}
		r.Next = o.nextAfter(cmd.Context(), back.Paths())
	}
	nothing := "nothing to revert\n"
	if len(left) > 0 {
		nothing = ""
	}
	if err := o.print(cmd, r, "restored", back.Diff(), nothing); err != nil || status == 0 {
		return err
	}
	return cli.ExitStatus(status)
}

// reversal returns a plan that reverts features, and the reasons why other features are not reverted.
func (o *Options) reversal(ctx context.Context, ledger *change.Ledger, features []string) (back change.Reversal,
	left []error, err error) {
	features = slices.DeleteFunc(slices.Clone(features), func(feature string) bool {
		err := o.checkUnits(ledger.Paths(feature))
		if err != nil {
			left = append(left, err)
		}
		return err != nil
	})
	var changed *record.Changed
	for back, err = ledger.Reversal(features...); errors.As(err, &changed); back, err = ledger.Reversal(features...) {
		left = append(left, err)
		features = slices.DeleteFunc(features, func(feature string) bool { return feature == changed.Feature })
	}
	if err == nil {
		back, err = o.withoutOtherChanges(ctx, ledger, back, features)
	}
	for err == nil {
		path, isNamed := o.stillNamed(back.Contents())
		if path == "" {
			err = cmp.Or(isNamed, cdiReversed(o.Root, &back))
			break
		}
		left = append(left, isNamed) // the base spec of somebody's copy of the handler
		back.Leave(ledger, path)
	}
	return back, left, err
}

// withoutOtherChanges returns a reversal that removes only the features from an effective configuration. In containerd
// 1.x, a file with our handler must also name containerd's own handlers. If others now use them, they stay.
func (o *Options) withoutOtherChanges(ctx context.Context, ledger *change.Ledger, back change.Reversal,
	features []string) (change.Reversal, error) {
	lost := o.otherChanges(ctx, ledger, back.Contents(), features)
	if len(lost) == 0 {
		return back, nil
	}
	less, err := ledger.ReversalButCompanions(features...)
	if err == nil && len(o.otherChanges(ctx, ledger, less.Contents(), features)) < len(lost) {
		back = less
	}
	return back, err
}

// otherChanges returns the paths at which new file contents would change effective configurations, except for values
// that the features set. It ignores a containerd that does not print its configuration.
func (o *Options) otherChanges(ctx context.Context, ledger *change.Ledger, after containerd.Contents,
	features []string) (all [][]string) {
	for _, d := range o.containerds() {
		now, err := d.Effective(ctx, nil)
		if err != nil {
			continue // a configuration that does not load cannot lose values
		}
		then, err := d.Effective(ctx, after)
		if err != nil {
			continue // the check of the files reports this error
		}
		for _, path := range goal.Differences(now, then) {
			if !slices.ContainsFunc(features, func(feature string) bool {
				g, _ := ledger.Goal(feature)
				return g.Config == d.Config && goal.Sets(g, path)
			}) {
				all = append(all, path)
			}
		}
	}
	return all
}
