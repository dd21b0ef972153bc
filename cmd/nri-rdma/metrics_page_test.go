// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rdma-spec/rdma-spec/plugin"
	"github.com/rdma-spec/rdma-spec/plugin/inventory"
	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// metricsPage is the page that lists the metrics.
const metricsPage = "../../docs/metrics.md"

// TestMetricsPage checks that the page's table has every metric that the program registers, and no other. -update
// writes the table.
func TestMetricsPage(t *testing.T) {
	page := scratch.Read(t, metricsPage)
	table := regexp.MustCompile(`(?s)(<!-- metrics: [^\n]* -->\n).*(<!-- end -->\n)`)
	if !table.MatchString(page) {
		t.Fatalf("%s has no table of metrics between its two comments", metricsPage)
	}
	var rows strings.Builder
	rows.WriteString("\n| metric | meaning |\n|---|---|\n")
	for _, m := range registeredMetrics(t) {
		fmt.Fprintf(&rows, "| `%s%s` | %s |\n", m.name, m.labels, m.help)
	}
	golden.Compare(t, metricsPage, table.ReplaceAllString(page,
		"${1}"+strings.ReplaceAll(rows.String(), "$", "$$")+"\n${2}"))
}

// TestMetricsInPagesExist checks that each metric that a page names is one that the program registers.
func TestMetricsInPagesExist(t *testing.T) {
	var names []string
	for _, m := range registeredMetrics(t) {
		names = append(names, m.name)
	}
	pages, err := filepath.Glob("../../docs/*.md")
	must.Succeed(t, err)
	found := 0
	for _, page := range append(pages, "../../README.md") {
		for _, name := range regexp.MustCompile(`nri_rdma_[a-z_]*[a-z]`).FindAllString(scratch.Read(t, page), -1) {
			if found++; !slices.Contains(names, name) {
				t.Errorf("%s: there is no metric %s", page, name)
			}
		}
	}
	if found <= len(names) {
		t.Errorf("%d names found, want those of the table and of the alerts", found)
	}
}

type metric struct{ name, labels, help string }

// registeredMetrics gives the program's own metrics, in the order of their names.
func registeredMetrics(t *testing.T) []metric {
	t.Helper()
	p := plugin.New(plugin.Options{
		Name: "rdma", Index: "90", Log: silent(), Inventory: inventory.New("/", silent()), Limits: limits.New("/"),
	})
	registry := newRegistry(p, newAPIs(options{}, silent()).collectors()...)
	descs := make(chan *prometheus.Desc, 1000)
	registry.Describe(descs)
	close(descs)
	form := regexp.MustCompile(`^Desc\{fqName: ("(?:[^"\\]|\\.)*"), help: ("(?:[^"\\]|\\.)*"),(?: unit: "[^"]*",)? constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)
	var all []metric
	for desc := range descs {
		m := form.FindStringSubmatch(desc.String())
		if m == nil {
			t.Fatalf("cannot parse %s", desc)
		}
		name, help := unquote(t, m[1]), unquote(t, m[2])
		if !strings.HasPrefix(name, "nri_rdma_") {
			continue
		}
		var labels []string
		for _, label := range strings.FieldsFunc(m[3]+","+m[4], func(r rune) bool { return r == ',' }) {
			label, _, _ = strings.Cut(label, "=")
			labels = append(labels, label)
		}
		braces := ""
		if len(labels) > 0 {
			braces = "{" + strings.Join(labels, ", ") + "}"
		}
		all = append(all, metric{name, braces, help})
	}
	slices.SortFunc(all, func(a, b metric) int { return strings.Compare(a.name, b.name) })
	return slices.Compact(all)
}

func unquote(t *testing.T, text string) string {
	t.Helper()
	text, err := strconv.Unquote(text)
	must.Succeed(t, err)
	return text
}
