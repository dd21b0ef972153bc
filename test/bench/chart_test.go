// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	_ "embed"
	"encoding/xml"
	"fmt"
	"html"
	"io"
	"os"
	"strings"
	"testing"
	"text/template"
)

//go:embed chart.svg.tmpl
var chartTemplate string

// The chart's measures in its own units: where the bars begin, how long one of ratio 1 is, the first row, and how far
// rows are apart.
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

// chart writes the ratios of the medians as an SVG.
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

// drawChart writes the chart into a file.
func drawChart(t *testing.T, file string, results []result) {
	t.Helper()
	var svg bytes.Buffer
	if err := chart(&svg, results); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, svg.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// The chart has a bar for each ratio of medians, where the scale has it, and is XML.
func TestChart(t *testing.T) {
	var svg bytes.Buffer
	err := chart(&svg, []result{
		{what: "plain & simple", against: "nothing", unit: "p50 µs", compared: spread{low: 0.5, median: 1, high: 2}},
		{what: "plain & simple", against: "nothing", unit: "p99 µs", compared: spread{low: 3, median: 3, high: 3}},
		{what: "beyond", against: "nothing", unit: "p50 µs", compared: spread{low: 4, median: 6, high: 9}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := xml.Unmarshal(svg.Bytes(), new(struct{})); err != nil {
		t.Fatal(err)
	}
	for want, count := range map[string]int{
		`<rect class="bar" x="393" y="45" width="129" height="14" rx="3"/>`: 1, // from 350 + 86 × 0.5 to 350 + 86 × 2
		`<circle class="dot" cx="436" cy="52" r="6"/>`:                      1,
		`<circle class="dot" cx="780"`:                                      1,
		`>6.00 ×<`:                                                          1,
		`class="same"`:                                                      1,
		"plain &amp; simple":                                                2,
		"class=\"dot\"":                                                     2,
	} {
		if got := strings.Count(svg.String(), want); got != count {
			t.Errorf("%d times %s, want %d:\n%s", got, want, count, svg.String())
		}
	}
}
