// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package configure

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/change"
	"github.com/rdma-spec/rdma-spec/test/testing/race"
	"github.com/rdma-spec/rdma-spec/test/testing/repository"
)

func TestMain(m *testing.M) { repository.Main(m) }

// Package change makes sure that a killed run leaves the first files of a plan as they are to become, and the others as
// they were. Each such state is one that containerds start with, with NRI, too; and a revert gives the files of before.
func TestEachPartOfAPlanStarts(t *testing.T) {
	if race.Detector {
		t.Skip("runs containerds, and the race detector does not see it")
	}
	trees := map[string]leftTree{} // those that differ for a containerd
	for _, what := range []string{"--all", "plugin --launched"} {
		for most := 0; ; most++ {
			root, before := configureNode(t)
			o := &Options{Root: root, node: "/", ledger: openedLedger(t, root)}
			installs := programs{from: filepath.Join(root, "nri-rdma"), prefix: usrLocal}
			planned, err := o.plugin(installs, what != "--all")
			goals, plan := planned.goals, planned.plan.Changed()
			if err == nil && what == "--all" {
				planned, err = o.nri(t.Context(), "", false)
				goals, plan = append(planned.goals, goals...), append(plan, planned.plan.Changed()...)
			}
			if err != nil {
				t.Fatal(err)
			}
			err = o.ledger.Apply(plan[:min(most, len(plan))], nil, goals...)
			if o.ledger.Close(); err != nil {
				t.Fatal(err)
			}
			if read := containerdFiles(t, root); trees[read].root == "" {
				trees[read] = leftTree{copyOf(t, root), fmt.Sprintf("%d files of %s", most, what), before}
			}
			if most == len(plan) {
				break
			}
		}
	}
	if len(trees) < 4 {
		t.Errorf("%d distinct trees, want those of before, between and after, of --all and of --launched", len(trees))
	}
	for _, tree := range trees {
		tree.starts(t)
	}
}

// openedLedger returns the ledger of a node.
func openedLedger(t *testing.T, root string) *change.Ledger {
	t.Helper()
	l, err := change.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	return l
}
