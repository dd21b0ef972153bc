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

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
)

// statuses are in display order, with their signs on a terminal.
var (
	statuses = []Status{Wrong, Unknown, Ignored, Skipped, OK, NotApplied}
	signs    = []string{"✗", "?", "~", "-", "✓", "·"}
)

func rank(f Finding) int { return slices.Index(statuses, f.Status) }

// line combines findings with the same text: several checks of one object, or one check of several objects.
type line struct {
	Finding         // without the fields that differ
	checks, objects []string
	fixes, entries  []string
}

// lines combines findings into lines. It combines faults of several objects only if folded is true.
func lines(findings []Finding, folded bool) (all []*line) {
	join := func(all []*line, same func(line, line) bool, gather func(into *line, l line)) (joined []*line) {
		for _, l := range all {
			i := slices.IndexFunc(joined, func(other *line) bool { return same(*other, *l) })
			if i < 0 {
				joined = append(joined, l)
				continue
			}
			gather(joined[i], *l)
		}
		return joined
	}
	for _, f := range findings {
		l := line{Finding: f, checks: []string{f.Check}, objects: []string{f.Object}, fixes: []string{f.Fix}}
		if f.Entry != "" {
			l.entries = []string{f.Entry}
		}
		l.Check = ""
		l.Family = ""
		l.Object = ""
		l.Fix = ""
		l.Entry = ""
		all = append(all, &l)
	}
	all = join(all, func(a, b line) bool {
		return a.Finding == b.Finding && a.objects[0] == b.objects[0] && a.fixes[0] == b.fixes[0]
	}, func(into *line, l line) {
		into.checks = append(into.checks, l.checks...)
		into.entries = append(into.entries, l.entries...)
	})
	return join(all, func(a, b line) bool {
		return a.Finding == b.Finding && slices.Equal(a.checks, b.checks) && (folded || a.Status != Wrong)
	}, func(into *line, l line) {
		into.objects = append(into.objects, l.objects...)
		into.entries = append(into.entries, l.entries...)
		into.fixes = append(into.fixes, l.fixes...)
	})
}

// most is how many objects that are not wrong, or how many fixes of one kind, are listed before "and more".
const most = 4

// joinFirst lists the first of a list.
func joinFirst(all []string, most int) string {
	if len(all) <= most {
		return strings.Join(all, ", ")
	}
	return fmt.Sprintf("%s, and %d more", strings.Join(all[:most], ", "), len(all)-most)
}

// ListFindings writes findings for people. In a pipe, faults come first, each with its impact and fix. On a terminal,
// faults come last, above the prompt. Without verbose, faults of the same kind are combined on a terminal, and checks
// that are ok or not applicable are omitted.
func ListFindings(stdout io.Writer, findings []Finding, terminal, verbose bool) error {
	folded := terminal && !verbose
	all := lines(findings, folded)
	slices.SortStableFunc(all, func(a, b *line) int {
		order := cmp.Compare(rank(a.Finding), rank(b.Finding))
		if terminal {
			return -order
		}
		return order
	})
	var text strings.Builder
	for _, l := range all {
		if folded && l.objects[0] == "" && (l.Status == OK || l.Status == NotApplied) {
			continue
		}
		status := string(l.Status)
		objects := cli.PlainText(joinFirst(l.objects, most))
		if terminal {
			status = signs[rank(l.Finding)]
		}
		if l.Status == Wrong {
			objects = cli.PlainText(strings.Join(l.objects, ", "))
		}
		if objects != "" {
			objects += ": "
		}
		fmt.Fprintf(&text, "%s %s: %s%s\n", status, strings.Join(l.checks, ", "), objects, cli.PlainText(l.Text))
		if l.Status != Wrong {
			continue
		}
		fmt.Fprintf(&text, "    impact: %s\n    fix (%s): %s\n", l.Impact, l.FixType.words(), cli.PlainText(l.fixes[0]))
		if others := len(slices.Compact(slices.Sorted(slices.Values(l.fixes)))) - 1; others > 0 {
			fmt.Fprintf(&text, "    similar fixes: %d (to list them, use -v)\n", others)
		}
		if l.Warning != "" {
			fmt.Fprintf(&text, "    warning: %s\n    to see what is affected: %s\n", cli.PlainText(l.Warning),
				cli.PlainText(l.Affected))
		}
		fmt.Fprintf(&text, "    for details: rdma-spec doctor --explain %s, or %s\n", l.checks[0], l.Docs)
		for _, entry := range l.entries {
			if !folded || len(l.entries) <= most {
				fmt.Fprintf(&text, "    ignore: %s\n", entry)
			}
		}
	}
	_, err := io.WriteString(stdout, text.String())
	return err
}

// CountFindings writes the summary below the list: the number of wrong objects by check, the number of checks by
// status, and how to repeat the checks that found a fault.
func CountFindings(stderr io.Writer, findings []Finding) error {
	worst := map[string]int{}
	wrong := map[string]int{} // the number of wrong objects
	var checks, faults []string
	for _, f := range findings {
		if f.Status == Wrong {
			wrong[f.Check]++
		}
		if before, known := worst[f.Check]; !known {
			worst[f.Check] = rank(f)
			checks = append(checks, f.Check)
		} else {
			worst[f.Check] = min(before, rank(f))
		}
	}
	objects := checksOf(findings, Wrong)
	faulty := slices.Compact(slices.Clone(objects))
	for _, name := range faulty {
		faults = append(faults, fmt.Sprintf("%s (%d)", name, wrong[name]))
	}
	counts := make([]int, len(statuses))
	for _, name := range checks {
		counts[worst[name]]++
	}
	var ends []string
	for i, s := range statuses {
		if counts[i] > 0 {
			ends = append(ends, fmt.Sprintf("%d %s", counts[i], s))
		}
	}
	line := fmt.Sprintf("%s: %s", cli.Counted(len(checks), "check", "checks"), strings.Join(ends, ", "))
	if len(faulty) > 0 {
		line = fmt.Sprintf("%d wrong: %s; %s", len(objects), strings.Join(faults, ", "), line)
		line += "\nrdma-spec: to check again after a fix, repeat the command with --only " + strings.Join(faulty, ",")
	}
	_, err := fmt.Fprintf(stderr, "rdma-spec: %s\n", line)
	return err
}

// findingText returns the object and the text of a finding.
func findingText(f Finding) string {
	if f.Object == "" {
		return f.Text
	}
	return f.Object + ": " + f.Text
}

// maxNPD is the default of node-problem-detector's max_output_length for the line of a custom plugin, in bytes.
const maxNPD = 80

// WriteNPD writes the line of a custom plugin of node-problem-detector, and returns its exit status: 0 if no check is
// wrong, 1 if a check is wrong, and 2 if the result is unknown.
func WriteNPD(stdout io.Writer, findings []Finding, failed error) error {
	faults := slices.DeleteFunc(slices.Clone(findings), func(f Finding) bool { return f.Status != Wrong })
	err := Concluded(findings)
	line := "no fault found"
	if reason := inapplicable(findings); reason != "" {
		line = "nothing to check: " + reason
	}
	if ignored := checksOf(findings, Ignored); len(ignored) > 0 {
		line += fmt.Sprintf(", %d ignored: %s", len(ignored), strings.Join(slices.Compact(ignored), ", "))
	}
	switch {
	case failed != nil:
		err = cli.ExitStatus(2)
		line = failed.Error()
	case len(faults) == 1:
		line = faults[0].Check + ": " + findingText(faults[0])
	case len(faults) > 1:
		names := slices.Compact(checksOf(findings, Wrong))
		line = fmt.Sprintf("%d faults: %s", len(faults), strings.Join(names, ", "))
	case err != nil:
		line = err.Error()
		err = cli.ExitStatus(2)
	}
	if _, failed := fmt.Fprintln(stdout, truncate(cli.PlainText(line), maxNPD)); failed != nil {
		return failed
	}
	return err
}

// inapplicable returns the reason why no check applies to the node, or "" if a check applies.
func inapplicable(findings []Finding) string {
	applies := func(f Finding) bool { return f.Status != NotApplied }
	if len(findings) == 0 || slices.ContainsFunc(findings, applies) {
		return ""
	}
	return findings[0].Text
}

// checksOf returns the check of each finding with a status. The findings of a check are adjacent.
func checksOf(findings []Finding, status Status) (names []string) {
	for _, f := range findings {
		if f.Status == status {
			names = append(names, f.Check)
		}
	}
	return names
}

// truncate cuts a text to a number of bytes.
func truncate(text string, most int) string {
	if len(text) <= most {
		return text
	}
	const dots = "..."
	return strings.ToValidUTF8(text[:most-len(dots)], "") + dots
}

// mostContainers bounds the series of a node. A kubelet runs 110 pods by default.
const mostContainers = 500

// writePrometheus writes metrics for node_exporter's textfile collector. Each check always has series, so that alerts
// resolve. Each object that is wrong, unknown, or ignored has its own series. Containers have series for the resources
// that they use, without the values that are unknown.
func writePrometheus(stdout io.Writer, findings []Finding, containers []node.Container) error {
	registry := prometheus.NewRegistry()
	add := promauto.With(registry)
	counts := add.NewGaugeVec(prometheus.GaugeOpts{
		Name: "rdma_spec_doctor_findings", Help: "Number of findings of an rdma-spec doctor check, by status.",
	}, []string{"check", "status"})
	objects := add.NewGaugeVec(prometheus.GaugeOpts{
		Name: "rdma_spec_doctor_finding", Help: "1 for each object whose status is wrong, unknown, or ignored.",
	}, []string{"check", "status", "object"})
	gauge := func(name, help string) *prometheus.GaugeVec {
		return add.NewGaugeVec(prometheus.GaugeOpts{Name: "rdma_spec_container_" + name, Help: help},
			[]string{"namespace", "pod", "container"})
	}
	registered := gauge("registered_bytes", "Memory that an RDMA container has registered, including GPU memory.")
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
