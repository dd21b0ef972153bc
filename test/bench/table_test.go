// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"io"
	"testing"
	"text/tabwriter"
)

// result is a row of the table: what was measured of nri-rdma and of others, and how the two compare.
type result struct {
	what, against, unit string
	ours, theirs        float64 // medians, in the unit
	compared            spread  // ratios, or differences in the unit
	difference          bool    // compared is a difference
	target              float64 // what compared's median is to be at most; 0 where it is only shown
}

// missed means that the target was not reached.
func (r result) missed() bool { return r.target != 0 && r.compared.median > r.target }

func (r result) verdict() string {
	switch {
	case r.target == 0:
		return ""
	case r.missed():
		return "MISSED"
	default:
		return "reached"
	}
}

// show returns a ratio or a difference as text.
func (r result) show(compared float64) string {
	if r.difference {
		return fmt.Sprintf("%+.1f", compared)
	}
	return fmt.Sprintf("%.2f ×", compared)
}

// printTable prints results, and fails the test for those that have missed their target if they are to be reached.
func printTable(t *testing.T, to io.Writer, results []result) {
	t.Helper()
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nwhat\tagainst\tunit\tnri-rdma\tother\tmedian\tquartiles\tat most\t")
	for _, r := range results {
		target := ""
		if r.target != 0 {
			target = r.show(r.target)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%.1f\t%.1f\t%s\t%s to %s\t%s\t%s\n", r.what, r.against, r.unit, r.ours, r.theirs,
			r.show(r.compared.median), r.show(r.compared.low), r.show(r.compared.high), target, r.verdict())
		if r.missed() && *strict {
			t.Errorf("%s against %s, %s: %s is more than %s", r.what, r.against, r.unit,
				r.show(r.compared.median), r.show(r.target))
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
}
