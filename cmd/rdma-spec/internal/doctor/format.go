// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/common/expfmt"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
)

// statuses are in the order in which people want to see them, with their signs on a terminal.
var (
	statuses = []Status{Wrong, Unknown, Ignored, Skipped, OK, NotApplied}
	signs    = []string{"✗", "?", "~", "-", "✓", "·"}
)

func rank(f Finding) int { return slices.Index(statuses, f.Status) }

// ListFindings writes findings for people, faults first, each with why it matters and its cure. What several checks say
// in the same words is one line.
func ListFindings(stdout io.Writer, findings []Finding, terminal bool) error {
	checks, entries := map[Finding][]string{}, map[Finding][]string{}
	var lines []Finding
	for _, f := range findings {
		same := f
		same.Check, same.Family, same.Entry = "", "", ""
		if checks[same] == nil {
			lines = append(lines, same)
		}
		checks[same] = append(checks[same], f.Check)
		if f.Entry != "" {
			entries[same] = append(entries[same], f.Entry)
		}
	}
	slices.SortStableFunc(lines, func(a, b Finding) int { return cmp.Compare(rank(a), rank(b)) })
	var text strings.Builder
	for _, f := range lines {
		status := string(f.Status)
		if terminal {
			status = signs[rank(f)]
		}
		fmt.Fprintf(&text, "%s %s: %s\n", status, strings.Join(checks[f], ", "), cli.PlainText(said(f)))
		if f.Status == Wrong {
			fmt.Fprintf(&text, "    why:  %s\n    cure (%s): %s\n", f.Why, f.Class, cli.PlainText(f.Cure))
			if f.Care != "" {
				fmt.Fprintf(&text, "    care: %s\n", cli.PlainText(f.Care))
			}
			fmt.Fprintf(&text, "    see:  %s\n", f.Docs)
			for _, entry := range entries[f] {
				fmt.Fprintf(&text, "    ignore: %s\n", entry)
			}
		}
	}
	_, err := io.WriteString(stdout, text.String())
	return err
}

// countFindings writes how many findings there are of each status.
func countFindings(stderr io.Writer, findings []Finding) error {
	count := map[Status]int{}
	for _, f := range findings {
		count[f.Status]++
	}
	var counts []string
	for _, s := range statuses {
		if count[s] > 0 {
			counts = append(counts, fmt.Sprintf("%d %s", count[s], s))
		}
	}
	_, err := fmt.Fprintf(stderr, "rdma-spec: %s\n", strings.Join(counts, ", "))
	return err
}

// said is what a finding says about its object.
func said(f Finding) string {
	if f.Object == "" {
		return f.Text
	}
	return f.Object + ": " + f.Text
}

// maxNPD is what node-problem-detector keeps of a custom plugin's line by default: max_output_length, in bytes.
const maxNPD = 80

// WriteNPD writes the one line of a custom plugin of node-problem-detector, and returns its exit status: 0 if all is
// well, 1 if something is wrong, 2 if that is unknown.
func WriteNPD(stdout io.Writer, findings []Finding, failed error) error {
	faults := slices.DeleteFunc(slices.Clone(findings), func(f Finding) bool { return f.Status != Wrong })
	err, line := Concluded(findings), "RDMA is well"
	if ignored := checksOf(findings, Ignored); len(ignored) > 0 {
		line += fmt.Sprintf(", %d ignored: %s", len(ignored), strings.Join(slices.Compact(ignored), ", "))
	}
	switch {
	case failed != nil:
		err, line = cli.ExitStatus(2), failed.Error()
	case len(faults) == 1:
		line = faults[0].Check + ": " + said(faults[0])
	case len(faults) > 1:
		names := slices.Compact(checksOf(findings, Wrong))
		line = fmt.Sprintf("%d faults: %s", len(faults), strings.Join(names, ", "))
	case err != nil:
		err, line = cli.ExitStatus(2), err.Error()
	}
	if _, failed := fmt.Fprintln(stdout, cut(cli.PlainText(line), maxNPD)); failed != nil {
		return failed
	}
	return err
}

// checksOf returns the check of each finding with a status. Those of a check come one after another.
func checksOf(findings []Finding, status Status) (names []string) {
	for _, f := range findings {
		if f.Status == status {
			names = append(names, f.Check)
		}
	}
	return names
}

// cut cuts a text to a number of bytes.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	const dots = "..."
	return strings.ToValidUTF8(text[:most-len(dots)], "") + dots
}

// mostContainers bounds the series of a node. A kubelet runs 110 pods by default.
const mostContainers = 500

// writePrometheus writes metrics for node_exporter's textfile collector. A check has its series whatever it finds, so
// that alerts end; what is wrong, unknown, or ignored is named beside. So is what containers use; what is unknown of
// that has no series.
func writePrometheus(stdout io.Writer, findings []Finding, containers []node.Container) error {
	registry := prometheus.NewRegistry()
	add := promauto.With(registry)
	counts := add.NewGaugeVec(prometheus.GaugeOpts{
		Name: "rdma_spec_doctor_findings", Help: "What a check of rdma-spec doctor finds, by status.",
	}, []string{"check", "status"})
	objects := add.NewGaugeVec(prometheus.GaugeOpts{
		Name: "rdma_spec_doctor_finding", Help: "An object that is wrong, unknown, or ignored.",
	}, []string{"check", "status", "object"})
	gauge := func(name, help string) *prometheus.GaugeVec {
		return add.NewGaugeVec(prometheus.GaugeOpts{Name: "rdma_spec_container_" + name, Help: help},
			[]string{"namespace", "pod", "container"})
	}
	registered := gauge("registered_bytes", "Memory that an RDMA container has registered, that of GPUs included.")
	pinned := gauge("pinned_bytes", "Memory that the processes of an RDMA container have pinned.")
	limit := gauge("memlock_limit_bytes", "The lowest memlock of an RDMA container's processes; 2^64 if unlimited.")
	for _, f := range findings {
		for _, status := range []Status{Wrong, Unknown, Ignored} {
			this := counts.WithLabelValues(f.Check, string(status))
			if f.Status == status {
				this.Inc()
				objects.WithLabelValues(f.Check, string(status), strings.ToValidUTF8(f.Object, "?")).Set(1)
			}
		}
	}
	for _, c := range containers[:min(len(containers), mostContainers)] {
		if len(c.HCAs) == 0 && !c.Use.Seen() {
			continue
		}
		labels := []string{c.Namespace, c.Pod, c.Container}
		if c.Use.Objects != nil {
			registered.WithLabelValues(labels...).Set(float64(c.Use.RegisteredBytes))
		}
		if c.Use.PinnedBytes != nil {
			pinned.WithLabelValues(labels...).Set(float64(*c.Use.PinnedBytes))
		}
		if c.Memlock != nil {
			limit.WithLabelValues(labels...).Set(float64(c.Memlock.Soft))
		}
	}
	families, err := registry.Gather()
	if err != nil {
		return err
	}
	for _, family := range families {
		if _, err := expfmt.MetricFamilyToText(stdout, family); err != nil {
			return err
		}
	}
	return nil
}
