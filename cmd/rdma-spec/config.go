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

// defaultConfig is where the plugin looks for its configuration.
const defaultConfig = "/etc/rdma-spec/config.yaml"

func newConfigCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check or show the plugin's configuration",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(&cobra.Command{
		Use:   "check [FILE]",
		Short: "Say what is wrong with a configuration",
		Long: "Check a configuration, " + defaultConfig + ` without a FILE, as the plugin does when it reads it. Every problem is a line with the path of
what is wrong. A rule that can never match, since one earlier rule matches all that it does, is a problem as well; what takes several
earlier rules together, or globs with ? or [ ] in both, is not found out.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return checkConfig(cmd.OutOrStdout(), cmd.ErrOrStderr(), cmp.Or(named(args), defaultConfig))
		},
	}, &cobra.Command{
		Use:   "show [FILE]",
		Short: "Print the configuration that is in force, with its defaults",
		Long: "Print a configuration with every default filled in, as YAML. Without a FILE it is " + defaultConfig + `, or the
defaults alone where there is none.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, _, err := loadPolicy(named(args))
			if err != nil {
				return err
			}
			return showConfig(cmd.OutOrStdout(), p.Config())
		},
	})
	return cmd
}

// named gives the file that is named, "" where none is.
func named(args []string) string { return strings.Join(args, "") }

// loadPolicy reads the configuration that is named, else the default one if it exists, else takes the defaults; the source says which.
func loadPolicy(file string) (p *policy.Policy, source string, err error) {
	source = cmp.Or(file, defaultConfig)
	p, err = policy.Load(source)
	if file == "" && errors.Is(err, fs.ErrNotExist) {
		p, err = policy.New(policy.Default())
		return p, "defaults", err
	}
	return p, source, err
}

func checkConfig(stdout, stderr io.Writer, file string) error {
	p, err := policy.Load(file)
	if err != nil {
		for problem := range strings.Lines(err.Error()) {
			fmt.Fprintf(stderr, "%s: %s\n", file, strings.TrimSpace(strings.TrimPrefix(strings.TrimPrefix(problem, file), ":")))
		}
		return errProblemFound
	}
	rules := p.Config().Rules
	word := "rules"
	if len(rules) == 1 {
		word = "rule"
	}
	_, err = fmt.Fprintf(stdout, "%s is good: %d %s\n", file, len(rules), word)
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

// plainStyle takes the style of JSON from a document, but for lists of words, which stay on one line.
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
