// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cli provides the user interface that all commands share: output formats, tables, errors and exit statuses,
// completion, and advice. It contains nothing about RDMA.
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

// The formats of results. Each subcommand supports some of them.
const (
	FormatTable = "table"
	FormatText  = "text"
	FormatJSON  = "json"
	FormatYAML  = "yaml"
)

// FormatFlag is the value of a flag --output, one of the supported formats.
type FormatFlag struct {
	Format string
	offer  []string
	cmd    *cobra.Command
}

// AddFormatFlag adds the flag -o, --output to a command. The first format is the default. Any other format than those
// in offer is a usage error.
func AddFormatFlag(cmd *cobra.Command, offer ...string) *FormatFlag {
	f := &FormatFlag{Format: offer[0], offer: offer, cmd: cmd}
	cmd.Flags().VarP(f, "output", "o", "the `FORMAT` of the result: "+strings.Join(offer, ", "))
	Complete(cmd, "output", func(string) []string { return offer })
	return f
}

// APIVersion is the version of all results for programs.
const APIVersion = "rdma-spec/v1alpha1"

// Meta contains the first fields of a result for programs.
type Meta struct {
	// APIVersion is the version of the result's format.
	APIVersion string `json:"apiVersion"`
	// Kind is the kind of result, which corresponds to the command.
	Kind string `json:"kind"`
}

// Result returns the Meta for a kind of result, such as ConfigCheck.
func Result(kind string) Meta { return Meta{APIVersion, kind} }

// AddDurationFlag adds a flag for a non-negative duration.
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

// AddFileFlag adds the flag --to for the path of the file that a command writes.
func AddFileFlag(f *pflag.FlagSet, file *string, usage string) {
	f.StringVar(file, fileFlag, "", usage)
}

const fileFlag = "to"

// fileHint returns the end of an error message for a file name in place of a format.
func fileHint(cmd *cobra.Command) string {
	if cmd.Flags().Lookup(fileFlag) == nil {
		return ": to write to a file, redirect standard output"
	}
	return ": to write to a file, use --to"
}

// flagError returns the error for an invalid flag.
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

// ResultWriter stores the first write error, so that the exit status is not 0 if a result is lost. Cobra ignores write
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

// WriteStructured writes a result for programs, either as indented JSON with <, >, and & unescaped, or as YAML with the
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

// WriteTable writes a result for people: a header in capitals and a line for each row. Columns are two spaces apart. An
// empty cell is written as "-", so that every line has the same number of fields as the header.
func WriteTable(w io.Writer, header []string, rows [][]string) error {
	return NewTable(w, header).Write(rows)
}

// Table is a table whose rows are written in several parts. The columns of a part are at least as wide as in earlier
// parts.
type Table struct {
	out    io.Writer
	header []string // nil after it has been written
	widths []int
}

// NewTable returns a table without rows.
func NewTable(w io.Writer, header []string) *Table {
	return &Table{out: w, header: header, widths: make([]int, len(header))}
}

// Write writes more rows. The first call also writes the header.
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

// Complete makes the shell complete a flag's value. words can depend on the text typed so far.
func Complete(cmd *cobra.Command, flag string, words func(typed string) []string) {
	err := cmd.RegisterFlagCompletionFunc(flag, func(_ *cobra.Command, _ []string, typed string) ([]string,
		cobra.ShellCompDirective) {
		return words(typed), cobra.ShellCompDirectiveNoFileComp
	})
	if err != nil {
		panic(err) // the command has no such flag
	}
}

// IsTerminal reports whether a writer writes to a terminal.
func IsTerminal(w io.Writer) bool {
	if result, ok := w.(*ResultWriter); ok {
		w = result.Writer
	}
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// PlainText converts a text to one line without control characters, because texts can contain content from files and
// containers.
func PlainText(text string) string {
	return strings.Map(Printable, strings.ReplaceAll(text, "\n", " "))
}

// Printable replaces characters that control a terminal, because the text can come from an untrusted source.
func Printable(r rune) rune {
	if r == '\n' || unicode.IsPrint(r) {
		return r
	}
	return unicode.ReplacementChar
}

var plainWord = regexp.MustCompile(`^[-A-Za-z0-9_./:,@%+=]+$`)

// ShellWord quotes a word for a shell if necessary.
func ShellWord(word string) string {
	if plainWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// WriteNotes writes the first notes about a node, and the number of omitted notes.
func WriteNotes(stderr io.Writer, notes []string) {
	const most = 10
	for i, note := range notes {
		if i == most {
			fmt.Fprintf(stderr, "rdma-spec: omitted lines: %d\n", len(notes)-most)
			return
		}
		fmt.Fprintf(stderr, "rdma-spec: %s\n", PlainText(note))
	}
}

// Why explains a state in one line: problems, their fix, and notes.
func Why(problems []string, fix string, notes []string) string {
	if fix != "" {
		problems = []string{fmt.Sprintf("%s (fix: %s)", strings.Join(problems, "; "), fix)}
	}
	return strings.Join(slices.Concat(problems, notes), "; ")
}

// Counted returns a number with its noun in the singular or plural.
func Counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
