// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
)

// writeExplanation writes a table with a line for each container, and details below the table.
func writeExplanation(w io.Writer, e Result) error {
	header := []string{"OBJECT", "CONTAINER", "VERDICT", "SIGNAL", "RULE", "MEMLOCK", "IPC_LOCK", "DEVICES"}
	var rows [][]string
	var details strings.Builder
	writeDetails(&details, "", prefixed("problem: ", e.Problems), prefixed("not explained: ", e.Unexplained))
	for _, pod := range e.Pods {
		name := pod.String()
		writeDetails(&details, name, prefixed("problem: ", pod.Problems), prefixed("note: ", pod.Notes))
		for _, c := range pod.Containers {
			rows = append(rows, row(pod, c))
			var verdict []string
			if c.Decision.Grant == nil || c.Otherwise != nil {
				verdict = []string{c.Summary}
			}
			writeDetails(&details, fmt.Sprintf("%s, %s %s", name, c.Kind, c.Name), verdict,
				prefixed("left out: ", c.Decision.LeftOut), prefixed("warning: ", c.Decision.Warnings),
				prefixed("note: ", c.Notes), prefixed("advice: ", c.Advice))
		}
	}
	writeDetails(&details, "", prefixed("note: ", e.Notes))
	var text strings.Builder
	if err := cli.WriteTable(&text, header, rows); err != nil {
		return err
	}
	fmt.Fprintf(&text, "%s\nconfiguration: %s; HCAs: %s\n", details.String(), e.Configuration,
		cmp.Or(strings.Join(e.HCAs, ", "), "none"))
	_, err := io.WriteString(w, strings.Map(cli.Printable, text.String()))
	return err
}

func row(pod Pod, c Container) []string {
	verdict := "not RDMA"
	signal := ""
	memlock := ""
	ipcLock := ""
	devices := ""
	switch d := c.Decision; {
	case d.Refusal != nil:
		verdict = "REFUSED (" + string(d.Refusal.Cause) + ")"
	case d.Grant != nil:
		verdict = "RDMA"
		signal = string(d.Signal)
		ipcLock = string(d.Grant.IPCLock)
		devices = d.Grant.DeviceNames()
		if d.Grant.Memlock != 0 {
			memlock = d.Grant.Memlock.String()
		}
	}
	if c.Verdict == IfInjected {
		verdict += " if injected"
	}
	part := slices.DeleteFunc(strings.Split(pod.Path, "."), func(s string) bool { return s == "spec" || s == "template" })
	object := strings.TrimSpace(pod.Object + " " + strings.Join(part, "."))
	return []string{object, c.Name, verdict, signal, c.Decision.Rule, memlock, ipcLock, devices}
}

func prefixed(word string, lines []string) (all []string) {
	for _, line := range lines {
		all = append(all, word+line)
	}
	return all
}

// writeDetails writes lines below a heading. Without lines, it writes nothing.
func writeDetails(w io.Writer, about string, lines ...[]string) {
	indent := ""
	for i, line := range slices.Concat(lines...) {
		if i == 0 {
			fmt.Fprintln(w)
		}
		if i == 0 && about != "" {
			fmt.Fprintln(w, about)
			indent = "  "
		}
		fmt.Fprintln(w, indent+line)
	}
}
