// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
)

// everyTick is the interval at which new rows are shown.
const everyTick = time.Second

// report writes the responses of nodes. JSON is written as it arrives. A table is written at the end, sorted by node.
// On a terminal, the table grows, and a line shows the number of nodes that have responded.
type report struct {
	out, notes     io.Writer
	live, progress bool // true if out or notes is a terminal
	json           bool
	of             *expected
	named          bool // true if only named nodes are queried

	table          *cli.Table
	rows           [][]string // rows that are not in the table yet
	written        int        // the number of answers in the JSON
	came           int
	silent, missed map[string][]string // nodes by error, and nodes by impossible checks
	statuses       map[int]int
}

func (o *options) newReport(v view, of *expected) *report {
	return &report{
		out: o.stdout, notes: o.stderr, of: of, named: len(o.named) > 0,
		live: cli.IsTerminal(o.stdout), progress: cli.IsTerminal(o.stderr), json: o.output == cli.FormatJSON,
		table:  cli.NewTable(o.stdout, strings.Fields("NODE "+v.header)),
		silent: map[string][]string{}, missed: map[string][]string{}, statuses: map[int]int{},
	}
}

// write writes all answers, and returns the exit status as an error. If permissions are missing, it returns the error
// of the first answer.
func (r *report) write(answers <-chan answer) error {
	for _, node := range slices.Sorted(maps.Keys(r.of.silent)) {
		if err := r.add(answer{Node: node, Status: unanswered, Error: r.of.silent[node]}); err != nil {
			return err
		}
	}
	tick := time.NewTicker(everyTick)
	defer tick.Stop()
	for {
		select {
		case a, more := <-answers:
			switch {
			case !more:
				return r.end()
			case apierrors.IsForbidden(a.err):
				return fmt.Errorf("%w: to grant the permission, set the chart's execRole.enabled value, and bind the "+
					"nri-rdma-exec Role in namespace %s (anyone with this Role can become root on the nodes)", a.err,
					r.of.pods[a.Node].Namespace)
			}
			if err := r.add(a); err != nil {
				return err
			}
		case <-tick.C:
			if r.live && len(r.rows) > 0 {
				if err := r.flush(); err != nil {
					return err
				}
			}
			r.showProgress()
		}
	}
}

// add processes an answer. It writes JSON immediately, because the results of a large fleet do not fit into memory.
func (r *report) add(a answer) error {
	r.came++
	if a.Error == "" {
		r.statuses[a.Status]++
	} else {
		r.silent[plain(a.Error)] = append(r.silent[plain(a.Error)], a.Node)
	}
	if a.missed != "" {
		r.missed[plain(a.missed)] = append(r.missed[plain(a.missed)], a.Node)
	}
	if r.json {
		return r.writeJSON(a)
	}
	r.rows = append(r.rows, a.rows...)
	return nil
}

// writeJSON writes an answer as an element of the list, on a separate line.
func (r *report) writeJSON(a answer) error {
	var text bytes.Buffer
	text.WriteString(map[bool]string{true: jsonBegins, false: ","}[r.written == 0])
	text.WriteString("\n")
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	if err := e.Encode(a); err != nil {
		return err
	}
	r.written++
	r.clearProgress()
	_, err := r.out.Write(bytes.TrimSuffix(text.Bytes(), []byte("\n")))
	return err
}

const (
	jsonBegins = `{"apiVersion":"` + cli.APIVersion + `","kind":"Nodes","nodes":[`
	jsonEnds   = "\n]}\n"
)

// flush writes the new rows, sorted by node.
func (r *report) flush() error {
	r.clearProgress()
	slices.SortStableFunc(r.rows, func(a, b []string) int { return strings.Compare(a[0], b[0]) })
	err := r.table.Write(r.rows)
	r.rows = nil
	return err
}

// end writes the rest of the result, the nodes that have not responded, and the checks that were not possible.
func (r *report) end() error {
	if err := r.endResult(); err != nil {
		return err
	}
	r.clearProgress()
	byNode := func(a, b string) int { return strings.Compare(r.silent[a][0], r.silent[b][0]) }
	for _, nodes := range r.silent {
		slices.Sort(nodes)
	}
	for _, why := range slices.SortedFunc(maps.Keys(r.silent), byNode) {
		if nodes := r.silent[why]; len(nodes) == 1 {
			fmt.Fprintf(r.notes, "kubectl rdma: node %s does not respond: %s\n", nodes[0], why)
		} else {
			fmt.Fprintf(r.notes, "kubectl rdma: %d nodes do not respond (%s): %s\n", len(nodes), joinFirst(nodes), why)
		}
	}
	for _, what := range slices.Sorted(maps.Keys(r.missed)) {
		fmt.Fprintf(r.notes, "kubectl rdma: some checks were not possible on %s: %s\n",
			joinFirst(slices.Sorted(slices.Values(r.missed[what]))), what)
	}
	answered := r.statuses[0] + r.statuses[1] + r.statuses[2] + r.statuses[3]
	all := max(r.came, r.of.desired)
	if r.of.unlisted != nil && !r.named {
		fmt.Fprintf(r.notes, "kubectl rdma: cannot determine which nodes lack a pod of the DaemonSet, or have an RDMA "+
			"resource but no plugin: %s\n", plain(r.of.unlisted.Error()))
	}
	fmt.Fprintf(r.notes, "kubectl rdma: %d of %s responded\n", answered, cli.Counted(all, "node", "nodes"))
	switch {
	case answered < all:
		return cli.ExitStatus(unanswered)
	case r.statuses[1] > 0:
		return cli.ErrProblemFound
	case r.statuses[unanswered] > 0:
		return cli.ExitStatus(unanswered)
	}
	return nil
}

// endResult ends the table, or the JSON.
func (r *report) endResult() error {
	if !r.json {
		return r.flush()
	}
	if r.written == 0 {
		if _, err := io.WriteString(r.out, jsonBegins); err != nil {
			return err
		}
	}
	_, err := io.WriteString(r.out, jsonEnds)
	return err
}

func (r *report) showProgress() {
	if r.progress {
		fmt.Fprintf(r.notes, "\r%d of %d nodes responded ", r.came-len(r.of.silent), len(r.of.pods))
	}
}

func (r *report) clearProgress() {
	if r.progress {
		fmt.Fprintf(r.notes, "\r%40s\r", "")
	}
}
