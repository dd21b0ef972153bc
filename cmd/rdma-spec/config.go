// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
)

func newConfigCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check or show the plugin's configuration",
		Example: `  rdma-spec config check config.yaml
  rdma-spec config show`,
		Args:    cobra.NoArgs,
		GroupID: groupConfiguration,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var format *formatFlag
	check := &cobra.Command{
		Use:   "check [FILE|-]",
		Short: "Find the problems of a configuration",
		Long: `Check a configuration as the plugin does when it reads one. Without FILE, check
` + policy.ConfigFile + `; - is standard input. Each problem is one line with the path of
the key.

A rule that can never match, because an earlier rule matches all its containers, is a problem
as well. The check does not notice it if several earlier rules together match all of them, or
if both rules have globs with ? or [ ].

The exit status is 1 if the configuration has a problem, and 3 if it cannot be read.`,
		Example: `  rdma-spec config check
  rdma-spec config check config.yaml
  rdma-spec config check - < config.yaml`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return checkConfig(cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr(), cmp.Or(named(args), policy.ConfigFile), format.format)
		},
	}
	format = addFormatFlag(check, formatText, formatJSON, formatYAML)
	cmd.AddCommand(check, &cobra.Command{
		Use:   "show [FILE|-]",
		Short: "Print a configuration with its defaults",
		Long: `Print a configuration as YAML, with every default filled in. Without FILE, print
` + policy.ConfigFile + `, or the defaults if that does not exist; - is standard input.`,
		Example: `  rdma-spec config show
  rdma-spec config show config.yaml`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, _, err := readPolicy(cmd.InOrStdin(), named(args))
			if err != nil {
				return err
			}
			return showConfig(cmd.OutOrStdout(), p.Config())
		},
	})
	return cmd
}

// named returns the file among the arguments, "" where there is none.
func named(args []string) string { return strings.Join(args, "") }

// readPolicy is loadPolicy with - for standard input.
func readPolicy(stdin io.Reader, file string) (p *policy.Policy, source string, err error) {
	if file != "-" {
		return loadPolicy(file)
	}
	text, err := io.ReadAll(io.LimitReader(stdin, stdinMost))
	if err == nil {
		p, err = policy.FromText(text)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", standardInput, err)
	}
	return p, standardInput, err
}

const (
	standardInput = "standard input" // as results call it
	stdinMost     = 4 << 20          // bytes; the largest configuration has 1 MiB
)

// loadPolicy reads a configuration file, else the default one if it exists, else takes the defaults; source names what was read.
func loadPolicy(file string) (p *policy.Policy, source string, err error) {
	source = cmp.Or(file, policy.ConfigFile)
	p, err = policy.Load(source)
	if file == "" && errors.Is(err, fs.ErrNotExist) {
		p, err = policy.New(policy.Default())
		return p, "defaults", err
	}
	return p, source, err
}

// checked is the result of `rdma-spec config check`.
type checked struct {
	APIVersion string   `json:"apiVersion"`
	File       string   `json:"file"`
	Valid      bool     `json:"valid"`
	Rules      int      `json:"rules"`
	Problems   []string `json:"problems"`
}

func checkConfig(stdin io.Reader, stdout, stderr io.Writer, file, format string) error {
	p, source, err := readPolicy(stdin, file)
	if onFile := new(fs.PathError); errors.As(err, &onFile) {
		return err
	}
	result := checked{APIVersion: apiVersion, File: source, Problems: []string{}}
	if err == nil {
		result.Valid, result.Rules = true, len(p.Config().Rules)
	} else {
		for problem := range strings.Lines(err.Error()) {
			result.Problems = append(result.Problems, strings.TrimSpace(strings.TrimPrefix(strings.TrimPrefix(problem, source), ":")))
		}
	}
	switch {
	case format != formatText:
		err = writeStructured(stdout, format, result)
	case result.Valid:
		_, err = fmt.Fprintf(stdout, "%s is valid: %s\n", result.File, counted(result.Rules, "rule", "rules"))
	default:
		for _, problem := range result.Problems {
			fmt.Fprintf(stderr, "%s: %s\n", result.File, problem)
		}
		err = nil
	}
	if err == nil && !result.Valid {
		return errProblemFound
	}
	return err
}

// showConfig prints a configuration in the order of its fields.
func showConfig(w io.Writer, config policy.Config) error {
	text, err := json.Marshal(config)
	if err != nil {
		return err
	}
	// JSON is YAML, and this way its keys keep their order.
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return err
	}
	plainStyle(&document)
	encoder := yaml.NewEncoder(w)
	encoder.SetIndent(2)
	return encoder.Encode(&document)
}

// plainStyle removes JSON's style from a document. Lists of words stay on one line.
func plainStyle(n *yaml.Node) {
	onOneLine := n.Kind == yaml.SequenceNode
	for _, child := range n.Content {
		plainStyle(child)
		onOneLine = onOneLine && child.Kind == yaml.ScalarNode
	}
	n.Style = 0
	if onOneLine {
		n.Style = yaml.FlowStyle
	}
}
