// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Command kubectl-rdma is kubectl rdma, for a machine that is not a node. It shows the results of rdma-spec from every
// node of a cluster in one table, and lists the pods to which RDMA resources are allocated. For pod authors, it
// explains the plugin's decisions about a manifest, and the reason why a job fails. The program connects only to the
// API server.
package main

import (
	"encoding/json"
	"io"
	"os"
	"regexp"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/internal/config"
	"github.com/rdma-spec/rdma-spec/cmd/internal/explain"
)

// version is set when the program is built.
var version = "devel"

func main() { os.Exit(execute(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// execute runs a command and returns the exit status.
func execute(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	o := options{stdout: stdout, stderr: stderr, rules: clientcmd.NewDefaultClientConfigLoadingRules()}
	debug.SetMemoryLimit(68 << 20) // prevents the heap from growing to twice the size of the responses
	return cli.Run(o.command(), func() error { return nil }, args, stdin, stdout, stderr)
}

// options are the flags of a command.
type options struct {
	stdout, stderr              io.Writer
	rules                       *clientcmd.ClientConfigLoadingRules
	overrides                   clientcmd.ConfigOverrides
	namespace, selector, output string
	all, outside, everywhere    bool
	host                        bool     // run doctor in a separate pod with access to the entire node
	named                       []string // the nodes to query; empty means all
	timeout                     time.Duration
}

func (o *options) command() *cobra.Command {
	root := &cobra.Command{
		Use:   "rdma",
		Short: "Check RDMA on all nodes of a cluster, and check pod manifests",
		Long: `Check RDMA on all nodes of a cluster, or on the nodes that you name, and check pod manifests. The
status, doctor, and devices commands call rdma-spec in the pods of the nri-rdma DaemonSet. On
standard error, these commands list each unresponsive node that has an RDMA resource or that the
DaemonSet selects. The resources and why commands query only the API server. The explain and config
commands do not need a cluster.

The repair, collect, and doctor --host commands create a pod with access to the entire node, run
rdma-spec in this pod, and then delete the pod.

The exit status is 2 for a usage error, and 3 if a node did not respond. Otherwise, the exit
status is 1 if a problem was found. If no problem was found, the exit status is 3 if some checks
were not possible on a node, and 0 if all checks were possible.`,
		Version:            version,
		Annotations:        map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl rdma"},
		CompletionOptions:  cobra.CompletionOptions{DisableDefaultCmd: true},
		DisableSuggestions: true,
		TraverseChildren:   true, // as in kubectl, flags may be before the subcommand
		Args:               cobra.NoArgs,
		RunE:               func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	o.clusterFlags(root.Flags())
	root.AddGroup(&cobra.Group{ID: cli.GroupNode, Title: "In a cluster:"},
		&cobra.Group{ID: cli.GroupPod, Title: "For a pod:"},
		&cobra.Group{ID: cli.GroupConfiguration, Title: "Configuration:"})
	status := o.onNodes("status", "Show the RDMA containers on all nodes, and any differences from the policy",
		statusView)
	status.Flags().BoolVarP(&o.all, "all", "a", false, "also list containers whose state is ok")
	status.Flags().BoolVar(&o.outside, "outside", false, "list only containers and processes that use RDMA outside "+
		"the policy, such as those of privileged pods")
	doctor := o.onNodes("doctor", "Find RDMA faults on all nodes", doctorView)
	doctor.Flags().BoolVarP(&o.all, "all", "a", false, "also list checks that find no fault, and checks that are "+
		"not possible in a pod")
	o.addHostFlag(doctor)
	devices := o.onNodes("devices", "List the HCAs on all nodes, with their ports", devicesView)
	for _, cmd := range []*cobra.Command{status, doctor, devices, o.resources()} {
		o.inCluster(cmd)
		root.AddCommand(cmd)
	}
	root.AddCommand(o.repair(), o.collect())
	root.AddCommand(explain.Command(explain.NoNode("kubectl rdma")), config.OffNode("kubectl rdma"))
	root.AddCommand(o.why())
	return root
}

// inCluster adds the flags of commands that query a cluster.
func (o *options) inCluster(cmd *cobra.Command) {
	o.clusterFlags(cmd.Flags())
	format := cli.AddFormatFlag(cmd, cli.FormatTable, cli.FormatJSON)
	cmd.GroupID = cli.GroupNode
	cmd.PreRun = func(*cobra.Command, []string) {
		o.output = format.Format
		if o.everywhere {
			o.namespace = ""
		}
	}
}

// clusterFlags adds the flags that select the cluster and its nodes.
func (o *options) clusterFlags(f *pflag.FlagSet) {
	o.connectionFlags(f, true)
	f.BoolVarP(&o.everywhere, "all-namespaces", "A", false, "query the nri-rdma DaemonSets in all namespaces")
	f.StringVarP(&o.selector, "selector", "l", "", "query only nodes with these `LABELS`")
}

// connectionFlags adds the flags that select the cluster. If timed is true, the request timeout is for all nodes
// together.
func (o *options) connectionFlags(f *pflag.FlagSet, timed bool) {
	kubectl := clientcmd.RecommendedConfigOverrideFlags("")
	kubectl.ContextOverrideFlags.Namespace.LongName = "" // the kubeconfig's namespace is for other objects
	// The timeout is shorter than half a minute for a fleet, but longer than the doctor's ten seconds for a node's
	// daemons.
	kubectl.Timeout.Default = "12s"
	kubectl.Timeout.Description = "timeout for all nodes together"
	if !timed {
		kubectl.Timeout.Description = "timeout for a request to the API server"
	}
	clientcmd.BindOverrideFlags(&o.overrides, f, kubectl)
	f.StringVar(&o.rules.ExplicitPath, clientcmd.RecommendedConfigPathFlag, "", "the kubeconfig `FILE`")
	f.StringVarP(&o.namespace, "namespace", "n", "rdma-spec", "the `NAMESPACE` of the DaemonSet; the resources command "+
		"ignores this flag")
}

// write writes a result as JSON for programs, or as a table.
func (o *options) write(kind string, result any, header string, rows [][]string) error {
	if o.output == cli.FormatJSON {
		e := json.NewEncoder(o.stdout)
		e.SetEscapeHTML(false)
		return e.Encode(map[string]any{"apiVersion": cli.APIVersion,
			"kind": strings.ToUpper(kind[:1]) + kind[1:], kind: result})
	}
	for _, row := range rows {
		for i, cell := range row {
			row[i] = plain(cell)
		}
	}
	return cli.WriteTable(o.stdout, strings.Fields(header), rows)
}

var rootInPod = regexp.MustCompile(` --root ` + hostRoot + `\b`)

// plain converts a node's text to one line without control characters. Commands in the result are for the node itself.
func plain(text string) string { return rootInPod.ReplaceAllString(cli.PlainText(text), "") }
