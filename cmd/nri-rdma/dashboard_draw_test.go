// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"flag"
	"fmt"
	"html"
	"math"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/template"
	"time"

	"github.com/rdma-spec/rdma-spec/test/testing/must"
)

// drawing is where TestDashboardHasData draws the dashboard, from what Prometheus answers. Without Grafana, it looks
// only like it.
var drawing = flag.String("draw", "", "draw the dashboard into this `FILE`, from two minutes of a plugin's life")

// drawn is the time that the drawing shows.
const drawn = 2 * time.Minute

//go:embed dashboard.svg.tmpl
var dashboardTemplate string

// The drawing's measures: a column and a row of Grafana's grid, and what is left free around a panel and in it.
const (
	gridColumn, gridRow = 44, 26
	panelGap, panelPad  = 4, 14
	titleHeight         = 30
	legendLine          = 16
	legendDash          = 14
	seriesColours       = 5
)

// drawnPanel is a panel in the drawing's own units.
type drawnPanel struct {
	Title, Value                 string // Value is what a stat shows
	Most                         string // the top of a plot's scale
	Lines, Rows                  []drawnLine
	X, Y, W, H                   int
	Left, Right, Head, Top, Foot int
}

// drawnLine is a series, or a row of a table.
type drawnLine struct {
	Points, Name       string
	Colour, X, Y       int
	Dash, Level, Label int // of the legend
}

// series is one of an answer: its labels and its values, pairs of a time in seconds and a number as text.
type series struct {
	Metric map[string]string
	Value  [2]any
	Values [][2]any
}

func drawDashboard(t *testing.T, file, prometheus string, began time.Time, panels []panel) {
	t.Helper()
	var all []drawnPanel
	height := 0
	for _, p := range panels {
		d := drawnPanel{
			Title: html.EscapeString(p.Title), X: p.GridPos.X*gridColumn + panelGap, Y: p.GridPos.Y*gridRow + panelGap,
			W: p.GridPos.W*gridColumn - 2*panelGap, H: p.GridPos.H*gridRow - 2*panelGap,
		}
		d.Left, d.Right, d.Head, d.Top, d.Foot = d.X+panelPad, d.X+d.W-panelPad, d.Y+20, d.Y+titleHeight, d.Y+d.H-panelPad
		height = max(height, d.Y+d.H+panelGap)
		switch p.Type {
		case "row":
			d.Head = d.Y + d.H - panelGap
		case "timeseries":
			d.plot(t, prometheus, began, p)
		case "table":
			d.list(now(t, prometheus, p))
		default:
			for _, s := range now(t, prometheus, p) {
				d.Value = fmt.Sprint(s.Value[1])
			}
		}
		all = append(all, d)
	}
	var svg bytes.Buffer
	parsed := template.Must(template.New("dashboard").Parse(dashboardTemplate))
	must.Succeed(t, parsed.Execute(&svg, map[string]any{"Panels": all, "Width": 24 * gridColumn, "Height": height}))
	must.Succeed(t, os.WriteFile(file, svg.Bytes(), 0o644))
}

// now returns what the queries of a panel give at this moment.
func now(t *testing.T, prometheus string, p panel) (all []series) {
	t.Helper()
	for _, target := range p.Targets {
		all = append(all, decoded(t, request(t, prometheus, "query", url.Values{"query": {target.Expr}}))...)
	}
	return all
}

// list writes a row for each series.
func (d *drawnPanel) list(all []series) {
	rows := []string{}
	for _, s := range all {
		rows = append(rows, s.Metric["version"]+s.Metric["instance"]+"   "+fmt.Sprint(s.Value[1]))
	}
	if len(rows) == 0 {
		rows = []string{"none"}
	}
	for i, row := range rows {
		d.Rows = append(d.Rows, drawnLine{Name: html.EscapeString(row), X: d.Left, Y: d.Top + legendLine*(i+1)})
	}
}

// plot draws the series of a panel's queries.
func (d *drawnPanel) plot(t *testing.T, prometheus string, began time.Time, p panel) {
	t.Helper()
	type named struct {
		name   string
		values [][2]any
	}
	var all []named
	most := 0.0
	for _, target := range p.Targets {
		values := url.Values{"query": {target.Expr}, "start": {seconds(began)},
			"end": {seconds(began.Add(drawn))}, "step": {"2"}}
		for _, s := range decoded(t, request(t, prometheus, "query_range", values)) {
			name := regexp.MustCompile(`{{ *(\w+) *}}`).ReplaceAllStringFunc(target.LegendFormat, func(label string) string {
				return s.Metric[strings.Trim(label, "{} ")]
			})
			all = append(all, named{name, s.Values})
			for _, v := range s.Values {
				most = max(most, number(v[1]))
			}
		}
	}
	slices.SortStableFunc(all, func(a, b named) int { return strings.Compare(a.name, b.name) })
	d.Most = strconv.FormatFloat(most, 'g', 3, 64)
	legend := d.Foot - legendLine/2
	d.Foot -= legendLine + 8
	at := d.Left
	for i, s := range all {
		var points strings.Builder
		for _, v := range s.values {
			x := float64(d.Left) + float64(d.Right-d.Left)*(number(v[0])-number(seconds(began)))/drawn.Seconds()
			y := float64(d.Foot) - float64(d.Foot-d.Top)*number(v[1])/max(most, 1e-9)
			fmt.Fprintf(&points, "%.1f,%.1f ", x, y)
		}
		d.Lines = append(d.Lines, drawnLine{Points: points.String(), Name: html.EscapeString(s.name),
			Colour: i % seriesColours, X: at, Y: legend,
			Dash: at + legendDash, Level: legend - 4, Label: at + legendDash + 4})
		at += 2*legendDash + 6 + 6*len(s.name)
	}
}

func decoded(t *testing.T, result json.RawMessage) (all []series) {
	t.Helper()
	must.Succeed(t, json.Unmarshal(result, &all))
	return all
}

func seconds(at time.Time) string { return fmt.Sprintf("%d", at.Unix()) }

// number returns a number of Prometheus' API: a JSON number, or text; 0 for NaN.
func number(value any) float64 {
	n, _ := strconv.ParseFloat(fmt.Sprint(value), 64)
	if math.IsNaN(n) {
		return 0
	}
	return n
}
