// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Command kubectl-rdma is kubectl rdma, for a machine that is no node: what rdma-spec finds on every node of a cluster
// in one table, who holds the cluster's RDMA resources, and, for authors of pods, what the plugin does with a manifest,
// and why a job fails.
// It talks to the API server alone.
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

// execute carries out a call and returns the exit status.
func execute(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	o := options{stdout: stdout, stderr: stderr, rules: clientcmd.NewDefaultClientConfigLoadingRules()}
	debug.SetMemoryLimit(68 << 20) // rather than twice what the answers of all nodes take
	return cli.Run(o.command(), func() error { return nil }, args, stdin, stdout, stderr)
}

// options are a call: its flags.
type options struct {
	stdout, stderr              io.Writer
	rules                       *clientcmd.ClientConfigLoadingRules
	overrides                   clientcmd.ConfigOverrides
	namespace, selector, output string
	all, outside, everywhere    bool
	host                        bool     // doctor in a pod of its own, which sees the whole node
	named                       []string // the nodes that are asked; none: all
	timeout                     time.Duration
}

func (o *options) command() *cobra.Command {
	root := &cobra.Command{
		Use:   "rdma",
		Short: "Check RDMA on all nodes of a cluster, and check pod manifests",
		Long: `Check RDMA on all nodes of a cluster, or on named nodes, and check pod manifests. The commands
status, doctor, and devices call rdma-spec in the pods of the nri-rdma DaemonSet. Nodes that do
not respond are listed on standard error, if the DaemonSet selects them or if they have an RDMA
resource. The resources and why commands query only the API server. The explain and config
commands do not need a cluster.

The commands repair, collect, and doctor --host create a pod that sees the entire node, run
rdma-spec in it, and delete the pod.

The exit status is 2 for a usage error, and 3 if a node did not respond. Otherwise, it is 1 if
there is a problem, 3 if some checks were not possible on a node, and 0 if there is no problem.`,
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
	status := o.onNodes("status", "List the RDMA containers on all nodes, and what they lack", statusView)
	status.Flags().BoolVarP(&o.all, "all", "a", false, "also list containers that are ok")
	status.Flags().BoolVar(&o.outside, "outside", false, "list only containers and processes that use RDMA outside "+
		"the policy, such as privileged pods")
	doctor := o.onNodes("doctor", "Find what is wrong with RDMA on all nodes", doctorView)
	doctor.Flags().BoolVarP(&o.all, "all", "a", false, "also list checks that find no fault, and checks that a pod "+
		"cannot make")
	o.addHostFlag(doctor)
	devices := o.onNodes("devices", "List the HCAs of all nodes, and their ports", devicesView)
	for _, cmd := range []*cobra.Command{status, doctor, devices, o.resources()} {
		o.inCluster(cmd)
		root.AddCommand(cmd)
	}
	root.AddCommand(o.repair(), o.collect())
	root.AddCommand(explain.Command(explain.NoNode("kubectl rdma")), config.OffNode("kubectl rdma"))
	root.AddCommand(o.why())
	return root
}

// inCluster adds what the commands that ask a cluster have.
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

// clusterFlags adds the flags that say which cluster is asked, and which of its nodes.
func (o *options) clusterFlags(f *pflag.FlagSet) {
	o.connectionFlags(f, true)
	f.BoolVarP(&o.everywhere, "all-namespaces", "A", false, "use the DaemonSets in all namespaces")
	f.StringVarP(&o.selector, "selector", "l", "", "query only nodes with these `LABELS`")
}

// connectionFlags adds the flags that say which cluster is asked, and whether a node may be given a time to answer.
func (o *options) connectionFlags(f *pflag.FlagSet, timed bool) {
	kubectl := clientcmd.RecommendedConfigOverrideFlags("")
	kubectl.ContextOverrideFlags.Namespace.LongName = "" // the kubeconfig's is for other objects
	// Less than half a minute for a fleet, and more than the ten seconds that the doctor waits for a node's daemons.
	kubectl.Timeout.Default = "12s"
	kubectl.Timeout.Description = "timeout for all nodes together"
	if !timed {
		kubectl.Timeout.Description = "timeout for a request to the API server"
	}
	clientcmd.BindOverrideFlags(&o.overrides, f, kubectl)
	f.StringVar(&o.rules.ExplicitPath, clientcmd.RecommendedConfigPathFlag, "", "the kubeconfig `FILE`")
	f.StringVarP(&o.namespace, "namespace", "n", "rdma-spec", "the `NAMESPACE` of the DaemonSet; the resources command "+
		"ignores it")
}

// write writes a result: for programs, or as a table.
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

// plain makes one line of a node's text, without what steers a terminal. Commands in it are for the node itself.
func plain(text string) string { return rootInPod.ReplaceAllString(cli.PlainText(text), "") }
