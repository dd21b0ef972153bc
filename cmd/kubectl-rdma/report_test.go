// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
)

// People see rows as they come, and how many nodes have answered; a program gets one table, sorted by node.
func TestReport(t *testing.T) {
	row := func(node, hca string) answer { return answer{Node: node, rows: [][]string{{node, hca}}} }
	for name, test := range map[string]struct {
		live        bool
		early, last string // standard output after two seconds, and what is added
		notes       string
	}{
		"a terminal": {live: true,
			early: "NODE  HCA\nb     mlx5_0\nc     -\n",
			last:  "a     bnxt_re0\n",
			notes: strings.ReplaceAll("\r$\r\r2 of 3 nodes responded \r2 of 3 nodes responded \r$\r\r$\r", "$", strings.Repeat(" ", 40))},
		"a pipe": {last: "NODE  HCA\na     bnxt_re0\nb     mlx5_0\nc     -\n"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out, notes strings.Builder
				o := &options{stdout: &out, stderr: &notes, output: cli.FormatTable}
				r := o.newReport(view{header: "HCA"}, &expected{silent: map[string]string{"d": "no pod"}})
				r.of.pods = map[string]types.NamespacedName{"a": {}, "b": {}, "c": {}}
				r.live, r.progress = test.live, test.live
				answers := make(chan answer)
				go func() {
					answers <- row("c", "")
					answers <- row("b", "mlx5_0")
					time.Sleep(2*everyTick + everyTick/2)
					synctest.Wait()
					if diff := cmp.Diff(test.early, out.String()); diff != "" {
						t.Errorf("standard output while a node is silent, -want +got:\n%s", diff)
					}
					answers <- row("a", "bnxt_re0")
					close(answers)
				}()
				err := r.write(answers)
				if status := cli.ExitStatus(0); !errors.As(err, &status) || status != unanswered {
					t.Errorf("%v, want the exit status %d", err, unanswered)
				}
				if diff := cmp.Diff(test.early+test.last, out.String()); diff != "" {
					t.Errorf("standard output, -want +got:\n%s", diff)
				}
				want := test.notes + "kubectl rdma: node d does not respond: no pod\nkubectl rdma: 3 of 4 nodes responded\n"
				if diff := cmp.Diff(want, notes.String()); diff != "" {
					t.Errorf("standard error, -want +got:\n%s", diff)
				}
			})
		})
	}
}
