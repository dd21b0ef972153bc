// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/cri"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/plugin/policy/inforce"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// nodeOptions choose the node, the runtime, and the policy that containers are judged by.
type nodeOptions struct {
	config, root, endpoint string
	patience               time.Duration             // with a slow node; 0 for others
	scan                   func() (*hca.Node, error) // reads the HCAs; nil: in this process
}

// hcas reads the node's HCAs. It can take seconds if one is sick.
func (o nodeOptions) hcas() (*hca.Node, error) {
	if o.scan != nil {
		return o.scan()
	}
	return hca.Scan(o.root)
}

// answersWithin is how long a runtime may take to say its version.
func (o nodeOptions) answersWithin() time.Duration { return max(cri.AnswersWithin, o.patience) }

func (o *nodeOptions) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.config, "config", "", "judge by this configuration `FILE` instead of the policy in force")
	addRootFlag(f, &o.root, "the node's sys, proc, run, etc and var")
	f.StringVar(&o.endpoint, "runtime-endpoint", "", "ask only the runtime with this CRI `SOCKET`")
}

// What status and repair share in their help.
const (
	whichPolicy = `The policy is the one in force, which the registered plugin writes to
` + inforce.File + `. If no plugin runs, name a configuration with --config.
The defaults are never assumed.`
	whichRuntime = `All runtimes that serve CRI at the usual paths are asked. To ask only one, name it with
--runtime-endpoint, CONTAINER_RUNTIME_ENDPOINT or /etc/crictl.yaml.`
)

// judgedBy names the policy that containers are judged by.
type judgedBy struct {
	File   string `json:"file"`
	Source string `json:"source,omitempty"` // where the plugin has a policy in force from
}

func (j judgedBy) String() string {
	if j.Source == "" {
		return j.File
	}
	return fmt.Sprintf("%s, in force, from %s", j.File, j.Source)
}

// policy returns the configuration that is named, else the policy in force.
func (o nodeOptions) policy() (*policy.Policy, judgedBy, error) {
	if o.config != "" {
		p, err := policy.Load(o.config)
		return p, judgedBy{File: o.config}, err
	}
	current, err := inforce.Read(o.root)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, judgedBy{}, fmt.Errorf("%w: start nri-rdma, or name a configuration with --config", err)
	case err != nil:
		return nil, judgedBy{}, fmt.Errorf("%w: name a configuration with --config", err)
	}
	return current.Policy, judgedBy{File: current.Path, Source: current.Source}, nil
}

// command returns the command line that does something else with the same node and policy.
func (o nodeOptions) command(words ...string) string {
	line := []string{"rdma-spec", words[0]}
	for _, flag := range [][2]string{{"--config", o.config}, {"--root", o.root}, {"--runtime-endpoint", o.endpoint}} {
		if flag[1] != "" && flag != [2]string{"--root", "/"} {
			line = append(line, flag[0], quoted(flag[1]))
		}
	}
	return strings.Join(append(line, words[1:]...), " ")
}

var plainWord = regexp.MustCompile(`^[-A-Za-z0-9_./:,@%+=]+$`)

// quoted quotes a word for a shell, where it needs that.
func quoted(word string) string {
	if plainWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

var podName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?/[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`)

// podArgs takes the names of pods as arguments.
func podArgs(_ *cobra.Command, args []string) error {
	for _, name := range args {
		if !podName.MatchString(name) {
			return usageError{fmt.Errorf("%q is not the name of a pod: write NAMESPACE/POD, as in ml/train-0", name)}
		}
	}
	return nil
}

// completePods completes the names of the node's pods.
func (o *nodeOptions) completePods(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	const within = 3 * time.Second // whoever presses the key waits
	ctx, cancel := context.WithTimeout(cmd.Context(), within)
	defer cancel()
	runtimes, _, err := cri.Connect(ctx, o.endpoint, o.root, o.answersWithin())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, r := range runtimes {
		pods, _ := r.Pods(ctx) // one that does not answer completes nothing
		names = append(names, pods...)
		r.Close()
	}
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(name string) bool { return slices.Contains(args, name) }), cobra.ShellCompDirectiveNoFileComp
}

// writeNotes writes the first notes about a node, and how many more there are.
func writeNotes(stderr io.Writer, notes []string) {
	const most = 10
	for i, note := range notes {
		if i == most {
			fmt.Fprintf(stderr, "rdma-spec: %d more such lines are left out\n", len(notes)-most)
			return
		}
		fmt.Fprintf(stderr, "rdma-spec: %s\n", note)
	}
}
