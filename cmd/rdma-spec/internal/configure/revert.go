// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package configure

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/change"
)

// revertFeatures reverts features, or forgets them; all where none is named. What cannot be reverted is left, with the
// whole feature.
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
		return o.print(cmd, result{Files: paths}, "forgot", "", "nothing to forget\n")
	}
	back, left, err := o.reversal(ledger, features)
	if err != nil {
		return err
	}
	r := result{Files: back.Paths()}
	for path, content := range back.Contents() {
		if content == nil {
			r.removed = append(r.removed, path)
		}
	}
	if found := o.unrecorded(cmd.Context(), ledger); back.Empty() && len(left) == 0 && len(found) > 0 {
		return fmt.Errorf("rdma-spec configure wrote %s, and has no record of it: remove that by hand, with what imports it",
			strings.Join(found, ", "))
	}
	status := 0
	for _, err := range left {
		var changed *change.Changed
		if r.Left = append(r.Left, err.Error()); !errors.As(err, &changed) {
			status = 3
		} else if status = max(status, 1); o.format != cli.FormatJSON {
			if _, err := io.WriteString(cmd.OutOrStdout(), changed.Diff); err != nil {
				return err
			}
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
		r.Next = o.nextAfter(back.Paths())
	}
	nothing := "nothing to revert\n"
	if len(left) > 0 {
		nothing = ""
	}
	if err := o.print(cmd, r, "restored", back.Diff, nothing); err != nil || status == 0 {
		return err
	}
	return cli.ExitStatus(status)
}

// reversal returns what takes features back, and why others are left.
func (o *Options) reversal(ledger *change.Ledger, features []string) (back change.Reversal, left []error, err error) {
	features = slices.DeleteFunc(slices.Clone(features), func(feature string) bool {
		err := o.blocked(ledger.Paths(feature))
		if err != nil {
			left = append(left, err)
		}
		return err != nil
	})
	for {
		back, err = ledger.Reversal(features...)
		var stays func(feature string) bool
		var changed *change.Changed
		if errors.As(err, &changed) {
			stays = func(feature string) bool { return feature == changed.Feature }
		} else if err == nil {
			var path string
			if path, err = o.named(back.Contents()); err == nil {
				return back, left, cdiReversed(o.Root, &back)
			}
			stays = func(feature string) bool { return slices.Contains(ledger.Paths(feature), path) }
		}
		if stays == nil || !slices.ContainsFunc(features, stays) {
			return back, left, err
		}
		left, features = append(left, err), slices.DeleteFunc(features, stays)
	}
}
