// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	_ "embed"
	"fmt"
	"html"
	"io"
	"strings"
	"testing"
	"text/tabwriter"
	"text/template"

	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// result is a row of the table: measurements of nri-rdma and of another plugin, and their comparison.
type result struct {
	what, against, unit string
	ours, theirs        float64 // medians in the unit
	compared            spread  // ratios, or differences in the unit
	difference          bool    // compared is a difference
	target              float64 // the highest allowed median of compared; 0 if it is only printed
}

// missed reports whether the target was missed.
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

// show formats a ratio or a difference.
func (r result) show(compared float64) string {
	if r.difference {
		return fmt.Sprintf("%+.1f", compared)
	}
	return fmt.Sprintf("%.2f ×", compared)
}

// printTable prints the results. It fails the test for results that missed their targets, if the targets are enforced.
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

//go:embed chart.svg.tmpl
var chartTemplate string

// The chart's dimensions in its own units: where the bars begin, the length of a bar of ratio 1, the position of the
// first row, and the distance between rows.
const (
	chartLeft, chartUnit = 350, 86
	chartTop, chartRow   = 36, 46
	chartMost            = 5 // the largest ratio on the scale
)

// chartLine is a row of the chart, or a line of its scale.
type chartLine struct {
	What, Against, Ratio, Label    string
	X, Y, Under, Top, Middle, Text int
	Low, Width, Median, After      int
}

// chart writes the ratios of the medians as an SVG image.
func chart(to io.Writer, results []result) error {
	x := func(ratio float64) int { return chartLeft + int(chartUnit*min(ratio, chartMost)) }
	var scale, rows []chartLine
	for n := range chartMost + 1 {
		scale = append(scale, chartLine{X: x(float64(n)), Label: fmt.Sprintf("%d ×", n)})
	}
	for _, r := range results {
		if r.unit != "p50 µs" {
			continue
		}
		y := chartTop + chartRow*len(rows)
		low, high := x(r.compared.low), x(r.compared.high)
		rows = append(rows, chartLine{
			What: html.EscapeString(r.what), Against: html.EscapeString(r.against), Ratio: r.show(r.compared.median),
			Y: y + 14, Under: y + 30, Top: y + 9, Middle: y + 16, Text: y + 21,
			Low: low, Width: max(high-low, 2), Median: x(r.compared.median), After: high + 12,
		})
	}
	foot := chartTop + chartRow*len(rows)
	return template.Must(template.New("chart").Parse(chartTemplate)).Execute(to, map[string]any{
		"Scale": scale, "Rows": rows, "Foot": foot, "Height": foot + 8,
	})
}

// drawChart writes the chart to a file.
func drawChart(t *testing.T, file string, results []result) {
	t.Helper()
	var svg strings.Builder
	if err := chart(&svg, results); err != nil {
		t.Fatal(err)
	}
	scratch.File(t, file, svg.String(), 0o644)
}
