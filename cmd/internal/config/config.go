// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package config implements the command config of rdma-spec and kubectl-rdma, which checks and shows the plugin's
// configuration. From a node, the package reads only the given file or the default file.
package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"reflect"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
)

// Command returns the command config for a node.
func Command() *cobra.Command {
	cmd := newCommand("Check or show the plugin's configuration", `  rdma-spec config check config.yaml
  rdma-spec config show`)
	cmd.AddCommand(newCheckCommand(&cobra.Command{
		Use:  "check [FILE|-]",
		Args: cobra.MaximumNArgs(1),
		Long: "Check a configuration as the plugin does. Without FILE, check\n" + policy.ConfigFile,
		Example: `  rdma-spec config check
  rdma-spec config check config.yaml
  rdma-spec config check - < config.yaml`,
	}), &cobra.Command{
		Use:   "show [FILE|-]",
		Short: "Print a configuration with its defaults",
		Long: `Print a configuration as YAML, with every default filled in. Without FILE, print
` + policy.ConfigFile + `, or the defaults if this file does not exist.
If FILE is -, read standard input.`,
		Example: `  rdma-spec config show
  rdma-spec config show config.yaml`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, _, err := readPolicy(cmd.InOrStdin(), strings.Join(args, ""))
			if err != nil {
				return err
			}
			return cli.WriteStructured(cmd.OutOrStdout(), cli.FormatYAML, p.Config())
		},
	})
	return cmd
}

// OffNode returns the command config for a machine that is not a node. On such a machine, the file argument is
// required.
func OffNode(program string) *cobra.Command {
	cmd := newCommand("Check the plugin's configuration", "  "+program+" config check config.yaml")
	cmd.AddCommand(newCheckCommand(&cobra.Command{
		Use:  "check FILE|-",
		Args: cobra.ExactArgs(1),
		Long: "Check a configuration as the plugin does",
		Example: "  " + program + ` config check config.yaml
  ` + program + " config check - < config.yaml",
	}))
	return cmd
}

func newCommand(short, example string) *cobra.Command {
	return &cobra.Command{Use: "config", Short: short, Example: example, Args: cobra.NoArgs,
		GroupID: cli.GroupConfiguration, RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
}

// newCheckCommand completes a check command with a given use, arguments, and description.
func newCheckCommand(check *cobra.Command) *cobra.Command {
	check.Short = "Find problems in a configuration"
	check.Long += `. If FILE is -, read standard input. Print
each problem on one line, with the path of the key.

A rule is also a problem if it can never match because an earlier rule matches all of its
containers. The check misses such a rule if the rule and the earlier rule both contain globs with ?
or [ ], or if no single earlier rule matches all of its containers but several together do. The
check warns about settings that make every container on a node wait for the kubelet's response:
optIn.resources, and a rule with resources but no namespaces. The check also warns if a limited
memlock makes "ipcLock: requested" ineffective.

The exit status is 1 if the configuration has a problem, and 3 if the configuration
cannot be read.`
	format := cli.AddFormatFlag(check, cli.FormatText, cli.FormatJSON, cli.FormatYAML)
	check.RunE = func(cmd *cobra.Command, args []string) error {
		return checkConfig(cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr(),
			cmp.Or(strings.Join(args, ""), policy.ConfigFile), format.Format)
	}
	return check
}

// readPolicy is policy.LoadOr, but accepts - for standard input.
func readPolicy(stdin io.Reader, file string) (p *policy.Policy, source string, err error) {
	if file != "-" {
		return policy.LoadOr(file, policy.ConfigFile)
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
	standardInput = "standard input" // the name in results
	stdinMost     = 4 << 20          // bytes; the largest configuration has 1 MiB
)

// Result is the result of a configuration check.
type Result struct {
	cli.Meta
	// File is the path of the configuration that was checked.
	File string `json:"file"`
	// Valid is true if the plugin accepts the configuration.
	Valid bool `json:"valid"`
	// Rules is the number of rules in the configuration.
	Rules int `json:"rules"`
	// Problems are the errors in the configuration.
	Problems []string `json:"problems"`
	// Warnings are keys of a valid configuration that have no effect, or that affect containers without RDMA.
	Warnings []string `json:"warnings,omitempty"`
}

// unknownKey matches the error about an unknown key, and captures the last part of the key's path.
var unknownKey = regexp.MustCompile(`unknown field "(?:[^"]*\.)?([A-Za-z]+)"$`)

// keysOf adds the keys of a configuration's type, and of its nested types.
func keysOf(t reflect.Type, keys []string) []string {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return keysOf(t.Elem(), keys)
	case reflect.Struct:
		for field := range t.Fields() {
			key, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if key != "" && key != "-" {
				keys = append(keys, key)
			}
			if field.IsExported() {
				keys = keysOf(field.Type, keys)
			}
		}
	}
	return keys
}

func checkConfig(stdin io.Reader, stdout, stderr io.Writer, file, format string) error {
	p, source, err := readPolicy(stdin, file)
	if onFile := new(fs.PathError); errors.As(err, &onFile) {
		return err
	}
	result := Result{Meta: cli.Result("ConfigCheck"), File: source, Problems: []string{}}
	if err == nil {
		result.Valid = true
		result.Rules = len(p.Config().Rules)
		result.Warnings = p.Doubts()
	} else {
		for problem := range strings.Lines(err.Error()) {
			problem = strings.TrimSpace(strings.TrimPrefix(strings.TrimPrefix(problem, source), ":"))
			if key := unknownKey.FindStringSubmatch(problem); key != nil {
				problem += cli.DidYouMean(key[1], keysOf(reflect.TypeFor[policy.Config](), nil))
			}
			result.Problems = append(result.Problems, problem)
		}
	}
	switch {
	case format != cli.FormatText:
		err = cli.WriteStructured(stdout, format, result)
	case result.Valid:
		for _, warning := range result.Warnings {
			fmt.Fprintf(stderr, "%s: warning: %s\n", result.File, warning)
		}
		_, err = fmt.Fprintf(stdout, "%s is valid: %s\n", result.File, cli.Counted(result.Rules, "rule", "rules"))
	default:
		for _, problem := range result.Problems {
			fmt.Fprintf(stderr, "%s: %s\n", result.File, problem)
		}
		err = nil
	}
	if err == nil && !result.Valid {
		return cli.ErrProblemFound
	}
	return err
}
