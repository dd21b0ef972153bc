// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// The formats of results. A subcommand offers those that make sense for it.
const (
	formatTable = "table"
	formatText  = "text"
	formatJSON  = "json"
	formatYAML  = "yaml"
)

// formatFlag is the value of a --format flag: one of the formats on offer.
type formatFlag struct {
	format string
	offer  []string
}

// addFormatFlag adds the flag -o, --format to a command. The first format is the default; one that is not on offer is a wrong call.
// --output, without a shorthand, names a file.
func addFormatFlag(cmd *cobra.Command, offer ...string) *formatFlag {
	f := &formatFlag{format: offer[0], offer: offer}
	cmd.Flags().VarP(f, "format", "o", "the `FORMAT` of the result: "+strings.Join(offer, ", "))
	complete(cmd, "format", func(string) []string { return offer })
	return f
}

// apiVersion is the version of all results for programs.
const apiVersion = "rdma-spec/v1alpha1"

// String implements pflag.Value.
func (f *formatFlag) String() string { return f.format }

// Type implements pflag.Value.
func (f *formatFlag) Type() string { return "format" }

// Set implements pflag.Value.
func (f *formatFlag) Set(s string) error {
	if !slices.Contains(f.offer, s) {
		return fmt.Errorf("must be one of %s", strings.Join(f.offer, ", "))
	}
	f.format = s
	return nil
}

// resultWriter remembers the first write that failed, so that no result is lost with exit status 0. Cobra ignores such errors.
type resultWriter struct {
	io.Writer
	err error
}

// Write implements io.Writer.
func (w *resultWriter) Write(text []byte) (int, error) {
	n, err := w.Writer.Write(text)
	if w.err == nil {
		w.err = err
	}
	return n, err
}

// writeStructured writes a result for programs: as JSON, indented and with <, > and & as they are, or as YAML with the same keys.
func writeStructured(w io.Writer, format string, v any) error {
	switch format {
	case formatJSON:
		e := json.NewEncoder(w)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		return e.Encode(v)
	case formatYAML:
		text, err := yaml.Marshal(v)
		if err != nil {
			return err
		}
		_, err = w.Write(text)
		return err
	}
	return fmt.Errorf("output format %q is neither json nor yaml", format)
}

// writeTable writes a result for people: a header in capitals and a line for each row, in columns that are two spaces apart. An empty
// cell shows as "-", so that every line has as many fields as the header.
func writeTable(w io.Writer, header []string, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range slices.Concat([][]string{header}, rows) {
		cells := slices.Clone(row)
		for i, cell := range cells {
			if cell == "" {
				cells[i] = "-"
			}
		}
		if _, err := fmt.Fprintln(t, strings.Join(cells, "\t")); err != nil {
			return err
		}
	}
	return t.Flush()
}
