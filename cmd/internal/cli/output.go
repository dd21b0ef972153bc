// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cli provides what all commands have in common for their user: output formats, tables, errors and exit
// statuses, completion, and advice. It does not know RDMA.
package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
	"sigs.k8s.io/yaml"
)

// The formats of results. A subcommand offers those that make sense for it.
const (
	FormatTable = "table"
	FormatText  = "text"
	FormatJSON  = "json"
	FormatYAML  = "yaml"
)

// FormatFlag is the value of a --output flag: one of the formats on offer.
type FormatFlag struct {
	Format string
	offer  []string
	cmd    *cobra.Command
}

// AddFormatFlag adds the flag -o, --output to a command. The first format is the default; one that is not on offer is a
// wrong call.
func AddFormatFlag(cmd *cobra.Command, offer ...string) *FormatFlag {
	f := &FormatFlag{Format: offer[0], offer: offer, cmd: cmd}
	cmd.Flags().VarP(f, "output", "o", "the `FORMAT` of the result: "+strings.Join(offer, ", "))
	Complete(cmd, "output", func(string) []string { return offer })
	return f
}

// APIVersion is the version of all results for programs.
const APIVersion = "rdma-spec/v1alpha1"

// Meta begins a result for programs.
type Meta struct {
	// APIVersion is the version of the result's fields.
	APIVersion string `json:"apiVersion"`
	// Kind is the kind of result, which corresponds to the command.
	Kind string `json:"kind"`
}

// Result begins the result of a command, such as ConfigCheck.
func Result(kind string) Meta { return Meta{APIVersion, kind} }

// AddDurationFlag adds a flag with a duration, which is not negative.
func AddDurationFlag(f *pflag.FlagSet, value *time.Duration, name string, unset time.Duration, usage string) {
	*value = unset
	f.Var((*duration)(value), name, usage)
}

type duration time.Duration

// String implements pflag.Value.
func (d *duration) String() string { return time.Duration(*d).String() }

// Type implements pflag.Value.
func (d *duration) Type() string { return "duration" }

// Set implements pflag.Value.
func (d *duration) Set(text string) error {
	value, err := time.ParseDuration(text)
	if err != nil {
		return err
	}
	if value < 0 {
		return errors.New("must not be negative")
	}
	*d = duration(value)
	return nil
}

// AddFileFlag adds the flag --to, which names the file that a command writes.
func AddFileFlag(f *pflag.FlagSet, file *string, usage string) {
	f.StringVar(file, fileFlag, "", usage)
}

const fileFlag = "to"

// fileHint completes the error of a call that names a file as the format.
func fileHint(cmd *cobra.Command) string {
	if cmd.Flags().Lookup(fileFlag) == nil {
		return ": to write a file, redirect standard output"
	}
	return ": to write a file, use --to"
}

// flagError is the error of a call with a wrong flag.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return Usage(err)
	}
	switch name := unknown.GetSpecifiedName(); {
	case name == "output" || name == "o":
		err = fmt.Errorf("%w%s", err, fileHint(cmd))
	case len(name) > 1:
		var known []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, "--"+f.Name) })
		err = fmt.Errorf("%w%s", err, DidYouMean("--"+name, known))
	}
	return Usage(err)
}

// String implements pflag.Value.
func (f *FormatFlag) String() string { return f.Format }

// Type implements pflag.Value.
func (f *FormatFlag) Type() string { return "format" }

// Set implements pflag.Value.
func (f *FormatFlag) Set(s string) error {
	if !slices.Contains(f.offer, s) {
		hint := ""
		if strings.ContainsAny(s, "./") {
			hint = fileHint(f.cmd)
		}
		return fmt.Errorf("must be one of %s%s", strings.Join(f.offer, ", "), hint)
	}
	f.Format = s
	return nil
}

// ResultWriter remembers the first write that failed, so that no result is lost with exit status 0. Cobra ignores such
// errors.
type ResultWriter struct {
	io.Writer
	Err error
}

// Write implements io.Writer.
func (w *ResultWriter) Write(text []byte) (int, error) {
	n, err := w.Writer.Write(text)
	if w.Err == nil {
		w.Err = err
	}
	return n, err
}

// WriteStructured writes a result for programs: as JSON, indented and with <, > and & as they are, or as YAML with the
// same keys.
func WriteStructured(w io.Writer, format string, v any) error {
	switch format {
	case FormatJSON:
		e := json.NewEncoder(w)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		return e.Encode(v)
	case FormatYAML:
		text, err := yaml.Marshal(v)
		if err != nil {
			return err
		}
		_, err = w.Write(text)
		return err
	}
	return fmt.Errorf("output format %q is neither json nor yaml", format)
}

// WriteTable writes a result for people: a header in capitals and a line for each row, in columns that are two spaces
// apart. An empty cell shows as "-", so that every line has as many fields as the header.
func WriteTable(w io.Writer, header []string, rows [][]string) error {
	return NewTable(w, header).Write(rows)
}

// Table is a table whose rows come in several parts. The columns of a part are at least as wide as those before.
type Table struct {
	out    io.Writer
	header []string // until it is written
	widths []int
}

// NewTable returns a table without rows.
func NewTable(w io.Writer, header []string) *Table {
	return &Table{out: w, header: header, widths: make([]int, len(header))}
}

// Write writes more rows, the first time below the header.
func (t *Table) Write(rows [][]string) error {
	var lines [][]string
	if t.header != nil {
		lines = append(lines, t.header)
		t.header = nil
	}
	for _, row := range rows {
		line := make([]string, len(row))
		for i, cell := range row {
			line[i] = cmp.Or(PlainText(cell), "-")
		}
		lines = append(lines, line)
	}
	for _, line := range lines {
		for i, cell := range line {
			t.widths[i] = max(t.widths[i], utf8.RuneCountInString(cell))
		}
	}
	var text strings.Builder
	for _, line := range lines {
		last := len(line) - 1
		for i, cell := range line[:last] {
			fmt.Fprintf(&text, "%-*s  ", t.widths[i], cell)
		}
		text.WriteString(line[last] + "\n")
	}
	_, err := io.WriteString(t.out, text.String())
	return err
}

// Complete has the shell complete a flag's value by words; they may depend on what is typed so far.
func Complete(cmd *cobra.Command, flag string, words func(typed string) []string) {
	err := cmd.RegisterFlagCompletionFunc(flag, func(_ *cobra.Command, _ []string, typed string) ([]string,
		cobra.ShellCompDirective) {
		return words(typed), cobra.ShellCompDirectiveNoFileComp
	})
	if err != nil {
		panic(err) // the command has no such flag
	}
}

// IsTerminal reports whether a result goes to a terminal.
func IsTerminal(w io.Writer) bool {
	if result, ok := w.(*ResultWriter); ok {
		w = result.Writer
	}
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// PlainText makes one line of a text without what could move the cursor: texts have what files and containers have.
func PlainText(text string) string {
	return strings.Map(Printable, strings.ReplaceAll(text, "\n", " "))
}

// Printable replaces the characters that steer a terminal: somebody else may have written the text.
func Printable(r rune) rune {
	if r == '\n' || unicode.IsPrint(r) {
		return r
	}
	return unicode.ReplacementChar
}

var plainWord = regexp.MustCompile(`^[-A-Za-z0-9_./:,@%+=]+$`)

// ShellWord quotes a word for a shell, where it needs that.
func ShellWord(word string) string {
	if plainWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// WriteNotes writes the first notes about a node, and how many more there are.
func WriteNotes(stderr io.Writer, notes []string) {
	const most = 10
	for i, note := range notes {
		if i == most {
			fmt.Fprintf(stderr, "rdma-spec: %d more lines like these are omitted\n", len(notes)-most)
			return
		}
		fmt.Fprintf(stderr, "rdma-spec: %s\n", PlainText(note))
	}
}

// Counted returns a number and what is counted, in the singular or plural.
func Counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
