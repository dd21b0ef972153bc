// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/rdma-spec/rdma-spec/plugin/explain"
)

// verdictWords are the verdicts in the table.
var verdictWords = map[explain.Verdict]string{
	explain.RDMA: "RDMA", explain.NotRDMA: "not RDMA", explain.IfInjected: "if injected", explain.Refused: "REFUSED",
}

// writeExplanation writes a line for each container, and below what there is to say of it.
func writeExplanation(w io.Writer, e explanation) error {
	header := []string{"OBJECT", "CONTAINER", "VERDICT", "SIGNAL", "RULE", "GETS"}
	var rows [][]string
	var details strings.Builder
	for _, problem := range e.Problems {
		fmt.Fprintf(&details, "\nproblem: %s\n", problem)
	}
	for _, pod := range e.Pods {
		name := strings.TrimSuffix(pod.Object+" "+pod.Path, " ")
		if len(pod.Notes)+len(pod.Problems) > 0 {
			fmt.Fprintf(&details, "\n%s\n", name)
			writeLines(&details, "problem", pod.Problems)
			writeLines(&details, "note", pod.Notes)
		}
		for _, c := range pod.Containers {
			rows = append(rows, row(pod, c))
			writeDetails(&details, name, c)
		}
	}
	var text strings.Builder
	if err := writeTable(&text, header, rows); err != nil {
		return err
	}
	fmt.Fprintf(&text, "%s\nconfiguration: %s; HCAs: %s\n", details.String(), e.Configuration, cmp.Or(strings.Join(e.HCAs, ", "), "none"))
	_, err := io.WriteString(w, strings.Map(printable, text.String()))
	return err
}

// printable keeps what a manifest says from steering a terminal.
func printable(r rune) rune {
	if r == '\n' || unicode.IsPrint(r) {
		return r
	}
	return unicode.ReplacementChar
}

func row(pod explainedPod, c explain.Container) []string {
	signal, gets, d := string(c.Decision.Signal), "", c.Decision
	if d.Grant == nil && d.Refusal == nil {
		signal = ""
	}
	switch {
	case d.Grant != nil:
		gets = d.Grant.String()
	case d.Refusal != nil:
		gets = "error: " + string(d.Refusal.Cause)
	}
	return []string{pod.Object, c.Name, verdictWords[c.Verdict], signal, d.Rule, gets}
}

// writeDetails writes what the line of a container leaves out; nothing where that is nothing.
func writeDetails(w io.Writer, pod string, c explain.Container) {
	d := c.Decision
	if c.Verdict == explain.NotRDMA && d.Reason == "" && len(d.Warnings)+len(c.Notes) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s, %s %s\n  verdict: %s\n", pod, c.Kind, c.Name, c.Summary)
	if d.Evidence != "" && c.Verdict != explain.IfInjected {
		fmt.Fprintf(w, "  signal: %s %s\n", d.Signal, d.Evidence)
	}
	writeLines(w, "warning", d.Warnings)
	writeLines(w, "note", c.Notes)
	if len(c.Changes) > 0 {
		fmt.Fprintln(w, "  changes its OCI spec:")
	}
	for _, change := range c.Changes {
		fmt.Fprintf(w, "    %s\n", strings.ReplaceAll(change.String(), "\n", "\n    "))
	}
}

func writeLines(w io.Writer, word string, lines []string) {
	for _, line := range lines {
		fmt.Fprintf(w, "  %s: %s\n", word, line)
	}
}
