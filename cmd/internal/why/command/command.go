// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package command implements the command why of rdma-spec and kubectl-rdma. The command reads a log or a message, and
// prints the report of package why.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/internal/why"
	"github.com/rdma-spec/rdma-spec/docs"
)

// Machine is the machine on which the command reads logs.
type Machine struct {
	// Program is the command in front of why, such as "rdma-spec".
	Program string
	// AddFlags adds the flags that choose a node. It is nil if the machine is not a node.
	AddFlags func(*pflag.FlagSet)
	// Wrong runs the named checks if the flags request it, and returns the checks that find a fault. It returns nil if
	// no node was checked.
	Wrong func(ctx context.Context, checks []string, stderr io.Writer) (wrong map[string]bool, err error)
	// Pod reads the texts about a pod. It is nil if the command does not access an API server.
	Pod func(cmd *cobra.Command, name string) (Pod, error)
}

// Result contains the causes of the errors in a log.
type Result struct {
	cli.Meta
	*why.Report
	// Next is the next command to run.
	Next string `json:"next,omitempty"`
	// Looked is true if the possible causes were checked on a node or in its support bundle.
	Looked bool `json:"looked"`
}

// New returns the command why for a machine.
func New(m Machine) *cobra.Command {
	var file string
	var format *cli.FormatFlag
	cmd := &cobra.Command{
		Use:   "why FILE|-|MESSAGE",
		Short: "Find the line that matters in a program's log, and list the possible causes",
		Long: `Find the line that matters in a log, and list the possible causes of the problem, most likely
first. The log can come from a program that uses RDMA, such as NCCL, UCX, or perftest, or from the
kernel, a runtime, or the kubelet. FILE is a log file, - is standard input, and MESSAGE is a line
from a log. The command does not use the network, and prints only relevant lines.

` + howLinesAreRead,
		Example: fmt.Sprintf(`  %[1]s why train.log
  kubectl logs my-pod | %[1]s why -
`+anExample, m.Program),
		GroupID: cli.GroupPod,
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if (file == "") == (len(args) == 0) {
				return cli.Usage(errors.New("specify exactly one source to read: see the examples"))
			}
			if m.Pod != nil && len(args) == 1 && args[0] != "-" && !strings.Contains(args[0], " ") {
				pod, err := m.Pod(cmd, args[0])
				if err != nil {
					return err
				}
				return m.writePod(cmd, pod, format.Format)
			}
			report, err := read(cmd.InOrStdin(), file, args)
			if err != nil {
				return err
			}
			return m.write(cmd, report, format.Format)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	if m.Pod != nil {
		ofPods(cmd, m.Program)
		f.StringVarP(&file, "filename", "f", "", "read the log `FILE` (- for standard input) instead of a pod")
	}
	if m.AddFlags != nil {
		m.AddFlags(f)
	}
	format = cli.AddFormatFlag(cmd, cli.FormatTable, cli.FormatJSON, cli.FormatYAML)
	return cmd
}

const (
	howLinesAreRead = `In each line, the command looks for an operation and a status, such as ibv_reg_mr and ENOMEM. If
it knows no cause for this pair, read the preceding lines of the log. The command also lists lines
that look like errors but do not matter.

The exit status is 1 if the command finds a line that matters (even if the cause is unknown), 0 if
it finds none, and 3 if it cannot read the log.`
	anExample = `  %[1]s why 'Call to ibv_create_cq failed with error Cannot allocate memory'`
)

// read reads the named source: standard input, a file, or the message in the arguments.
func read(stdin io.Reader, file string, args []string) (*why.Report, error) {
	if len(args) > 1 {
		return why.Read(strings.NewReader(strings.Join(args, " ")))
	}
	name := file
	if name == "" {
		name = args[0]
	}
	if name == "-" {
		return withSource(why.Read(stdin))("standard input")
	}
	log, err := os.Open(name)
	if err == nil {
		defer func() { _ = log.Close() }() // it was only read
		return withSource(why.Read(log))(name)
	}
	if file != "" {
		return nil, err
	}
	report, _ := why.Read(strings.NewReader(name)) // a text can be read
	if strings.Contains(name, " ") || report.Matters() || len(report.Remarks) > 0 {
		return report, nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: specify a log file, a message in quotes, or - for standard input", err)
	}
	return nil, err
}

// withSource adds the name of the source to an error.
func withSource(report *why.Report, err error) func(name string) (*why.Report, error) {
	return func(name string) (*why.Report, error) {
		onFile := new(fs.PathError)
		if errors.As(err, &onFile) {
			err = onFile.Err
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read %s: %w", name, err)
		}
		return report, nil
	}
}

// write writes a report, after the checks on the node if the flags request them.
func (m Machine) write(cmd *cobra.Command, report *why.Report, format string) error {
	var wrong map[string]bool
	if m.Wrong != nil {
		var err error
		if wrong, err = m.Wrong(cmd.Context(), report.Pages(), cmd.ErrOrStderr()); err != nil {
			return err
		}
		report.Prefer(func(check string) bool { return wrong[check] })
	}
	next := m.next(report, wrong != nil)
	var err error
	if format == cli.FormatTable {
		err = writeText(cmd.OutOrStdout(), report, next)
	} else {
		err = cli.WriteStructured(cmd.OutOrStdout(), format, Result{cli.Result("Why"), report, next, wrong != nil})
	}
	if err == nil && report.Matters() {
		err = cli.ErrProblemFound
	}
	return err
}

// next returns the next command to run.
func (m Machine) next(report *why.Report, looked bool) string {
	var pages []string
	if report.Matters() {
		pages = report.Roots[0].Pages()
	}
	switch {
	case len(pages) == 0:
		return ""
	case m.Wrong == nil:
		return "rdma-spec doctor --only " + strings.Join(pages, ",") + " (on the node)"
	case looked:
		return m.Program + " doctor --explain " + pages[0]
	}
	return m.Program + " doctor --only " + strings.Join(pages, ",")
}

// writeText writes a report as text.
func writeText(to io.Writer, report *why.Report, next string) error {
	var text strings.Builder
	writeReport(&text, report, "found on this node")
	writeNext(&text, next)
	_, err := io.WriteString(to, text.String())
	return err
}

// writeReport writes a report without the next command. wrong explains how it is known that the check of a cause finds
// a fault.
func writeReport(text *strings.Builder, report *why.Report, wrong string) {
	if !report.Matters() {
		fmt.Fprintf(text, "No relevant RDMA lines in %s.\n", cli.Counted(report.Lines, "line", "lines"))
	}
	for i, root := range report.Roots {
		if i > 0 {
			text.WriteString("\n")
		}
		writeRoot(text, root, report.Lines, wrong)
	}
	for i, remark := range report.Remarks {
		if i == 0 {
			text.WriteString("\nLines that do not matter on their own:\n")
		}
		fmt.Fprintf(text, "  %d: %s\n      %s\n", remark.Number, remark.Text, remark.Reason)
	}
}

func writeNext(text *strings.Builder, next string) {
	if next != "" {
		fmt.Fprintf(text, "\nnext: %s\n", next)
	}
}

// mostCauses is the number of causes in the text output. JSON contains all causes.
const mostCauses = 3

func writeRoot(text *strings.Builder, root why.Root, lines int, wrong string) {
	if lines > 1 {
		fmt.Fprintf(text, "line %d: ", root.Number)
	}
	fmt.Fprintln(text, root.Text)
	if root.StatusLine != nil {
		fmt.Fprintf(text, "line %d: %s\n", root.StatusLine.Number, root.StatusLine.Text)
	}
	what := root.Operation
	for _, word := range []string{root.Status, root.Detail} {
		if word != "" {
			what += ", " + word
		}
	}
	for _, known := range []struct{ name, value string }{{"what", what}, {"device", root.Device}, {"process", root.Rank}} {
		if known.value != "" {
			fmt.Fprintf(text, "  %s: %s\n", known.name, known.value)
		}
	}
	if root.Times > 1 {
		fmt.Fprintf(text, "  times: %d\n", root.Times)
	}
	if len(root.Causes) == 0 {
		text.WriteString("  cause: unknown (read the preceding lines and the peer's log)\n")
	}
	for i, cause := range root.Causes[:min(len(root.Causes), mostCauses)] {
		fmt.Fprintf(text, "  %d. %s", i+1, plain(cause.Text))
		if cause.Wrong {
			fmt.Fprintf(text, " (%s: %s)", wrong, cause.Page)
		}
		text.WriteString("\n")
		for _, known := range []struct{ name, value string }{{"to tell", plain(cause.Apart)}, {"who", string(cause.Who)},
			{"page", address(cause.Page)}} {
			if known.value != "" {
				fmt.Fprintf(text, "     %s: %s\n", known.name, known.value)
			}
		}
	}
}

// plain returns a text from the tables without Markdown.
func plain(text string) string { return strings.ReplaceAll(text, "`", "'") }

func address(page string) string {
	if page == "" {
		return ""
	}
	return docs.FaultAddress(page)
}
