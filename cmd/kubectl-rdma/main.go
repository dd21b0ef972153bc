// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Command kubectl-rdma is kubectl rdma, for an administrator's machine: what rdma-spec finds on every node of a cluster
// in one table, and who holds the cluster's RDMA resources. It talks to the API server alone.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
)

// version is set when the program is built.
var version = "devel"

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// The exit statuses.
const (
	found      = 1 // a problem
	unanswered = 3 // somebody has not answered, or not looked at everything
)

// run carries out a call and returns the exit status.
func run(args []string, stdout, stderr io.Writer) int {
	o := options{stdout: stdout, stderr: stderr, rules: clientcmd.NewDefaultClientConfigLoadingRules()}
	debug.SetMemoryLimit(100 << 20) // rather than twice what the answers of all nodes take
	root := o.command()
	root.SetArgs(args)
	root.SetOut(stdout)
	command, err := root.ExecuteC()
	switch {
	case err == nil:
		return o.status
	case o.called:
		fmt.Fprintf(stderr, "kubectl-rdma: %s\n", plain(err.Error()))
		return unanswered
	}
	fmt.Fprintf(stderr, "kubectl-rdma: %v; see '%s --help'\n", err, command.CommandPath())
	return 2
}

// options are a call: its flags, and what becomes of it.
type options struct {
	stdout, stderr              io.Writer
	rules                       *clientcmd.ClientConfigLoadingRules
	overrides                   clientcmd.ConfigOverrides
	namespace, selector, output string
	all, outside, everywhere    bool
	called                      bool // as it should be
	status                      int
}

func (o *options) command() *cobra.Command {
	root := &cobra.Command{
		Use:   "rdma",
		Short: "Look at RDMA on all nodes of a cluster",
		Long: `Look at RDMA on all nodes of a cluster. status, doctor, and devices ask rdma-spec in the pods
of the DaemonSet nri-rdma, and name the nodes that do not answer on standard error: those that
the DaemonSet selects, and those with an RDMA resource. resources asks the API server alone.

Exit status: 0 if all is well, 2 for a wrong call, 3 if a node did not answer, else 1 if a
problem was found, else 3 if a node could not look at everything.`,
		Version:            version,
		Annotations:        map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl rdma"},
		CompletionOptions:  cobra.CompletionOptions{DisableDefaultCmd: true},
		DisableSuggestions: true,
		SilenceErrors:      true,
		SilenceUsage:       true,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if o.everywhere {
				o.namespace = ""
			}
			if o.called = o.output == "table" || o.output == "json"; !o.called {
				return errors.New("--output must be one of table, json")
			}
			return nil
		},
	}
	f := root.PersistentFlags()
	kubectl := clientcmd.RecommendedConfigOverrideFlags("")
	kubectl.ContextOverrideFlags.Namespace.LongName = "" // the kubeconfig's is for other objects
	kubectl.Timeout.Default, kubectl.Timeout.Description = "20s", "how long a node may take to answer"
	clientcmd.BindOverrideFlags(&o.overrides, f, kubectl)
	f.StringVar(&o.rules.ExplicitPath, clientcmd.RecommendedConfigPathFlag, "", "the kubeconfig `FILE`")
	f.StringVarP(&o.namespace, "namespace", "n", "rdma-spec", "the `NAMESPACE` of the DaemonSet; resources needs none")
	f.BoolVarP(&o.everywhere, "all-namespaces", "A", false, "the DaemonSets of all namespaces")
	f.StringVarP(&o.selector, "selector", "l", "", "only nodes with these `LABELS`")
	f.StringVarP(&o.output, "output", "o", "table", "the `FORMAT` of the result: table, json")
	status := o.onNodes("status", "List the RDMA containers of all nodes, and what they lack", statusView)
	status.Flags().BoolVarP(&o.all, "all", "a", false, "also containers that are ok")
	status.Flags().BoolVar(&o.outside, "outside", false, "only what uses RDMA outside the policy, such as privileged pods")
	doctor := o.onNodes("doctor", "Find what is wrong with RDMA on all nodes", doctorView)
	doctor.Flags().BoolVarP(&o.all, "all", "a", false, "also checks that find nothing, and what no pod can see")
	devices := o.onNodes("devices", "List the HCAs of all nodes, and their ports", devicesView)
	root.AddCommand(status, doctor, devices, o.resources())
	return root
}

// write writes a result: for programs, or as a table.
func (o *options) write(kind string, result any, header string, rows [][]string) error {
	if o.output == "json" {
		e := json.NewEncoder(o.stdout)
		e.SetEscapeHTML(false)
		return e.Encode(map[string]any{"apiVersion": "rdma-spec/v1alpha1",
			"kind": strings.ToUpper(kind[:1]) + kind[1:], kind: result})
	}
	t := tabwriter.NewWriter(o.stdout, 0, 0, 2, ' ', 0)
	for _, row := range slices.Concat([][]string{strings.Fields(header)}, rows) {
		for i, cell := range row {
			if row[i] = plain(cell); cell == "" {
				row[i] = "-"
			}
		}
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	return t.Flush()
}

var inPod = regexp.MustCompile(`(rdma-spec [a-z]+) --root ` + hostRoot + `\b`)

// plain makes one line of a text, without what steers a terminal. Commands in a node's text are for the node itself.
func plain(text string) string {
	return inPod.ReplaceAllString(strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text), "$1")
}
