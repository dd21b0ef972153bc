// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/internal/explain/manifest"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// Machine is the machine on which manifests are explained.
type Machine struct {
	// Program is the command before explain on the command line.
	Program string
	// Policy describes the default policy in the help of --config.
	Policy string
	// Node describes the default node in the help of --hca.
	Node string
	// AddFlags adds the flags that select the node. It is nil if the machine is not a node.
	AddFlags func(*pflag.FlagSet)
	// HCANames completes a list of HCAs. It is nil if no HCAs are known.
	HCANames func(typed string) []string
	// Open opens the selected node, with the policy from the configuration file. If config is "", the policy is the node's
	// own. another is true if the HCAs belong to another node.
	Open func(config string, another bool) (Node, error)
}

// Node contains the policy and the HCAs of the node for which a manifest is explained.
type Node struct {
	Policy *policy.Policy
	Source string // the name of the policy's source
	HCAs   func() (*hca.Inventory, error)
	Close  func() error
}

// NoNode returns a machine that is not a node. It has the default policy and no HCAs.
func NoNode(program string) Machine {
	return Machine{Program: program, Policy: "the built-in defaults", Node: "a node without HCAs",
		Open: func(config string, _ bool) (Node, error) {
			p, source, err := policy.LoadOr(config, "")
			none := func() (*hca.Inventory, error) { return &hca.Inventory{}, nil }
			return Node{p, source, none, func() error { return nil }}, err
		}}
}

// options are the flags of explain.
type options struct {
	manifest, config string
	hcas, assume     []string
	format           *cli.FormatFlag
	Machine
}

// Command returns the command explain for a machine.
func Command(m Machine) *cobra.Command {
	o := options{Machine: m}
	cmd := &cobra.Command{
		Use:   "explain [MANIFEST]",
		Short: "Explain what the plugin does with the containers in a manifest",
		Long: `Show nri-rdma's decision for each container in a manifest: the verdict, the signal that makes
the container an RDMA container, the policy rule, and the grant. If the plugin would refuse the
container, the output contains the error. The command uses the plugin's own code. -o json also
shows the additions to each container's OCI spec. The manifest can contain any object with
containers, such as a Pod, a Deployment, or an MPIJob.

The verdicts are "RDMA", "not RDMA", and "RDMA if its device plugin or DRA driver injects verbs
devices". The third verdict is for containers with an extended resource or a DRA claim,
because the manifest does not show whether verbs devices are injected. To get a definite verdict,
set --assume-devices to globs that match the names of extended resources, or to claim/NAME for DRA
claims. The command then assumes that verbs devices are injected only for matching resources.

The exit status is 1 if the plugin would refuse a container, or if the manifest has a problem. For
a container with the third verdict, the status is also 1 if the plugin would refuse the container
once verbs devices are injected.`,
		Example: fmt.Sprintf(`  %[1]s explain pod.yaml
  %[1]s explain pod.yaml --hca mlx5_0,mlx5_1 --assume-devices 'rdma/*'
  helm template ./chart | %[1]s explain -f - --hca mlx5_0 -o json`, m.Program),
		GroupID: cli.GroupPod,
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) > 0 && o.manifest != "":
				return cli.Usage(fmt.Errorf("specify only one manifest: either %s or -f %s", args[0], o.manifest))
			case len(args) > 0:
				o.manifest = args[0]
			}
			return o.explainManifest(cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVarP(&o.manifest, "filename", "f", "", "the `MANIFEST` to explain (YAML or JSON), or - for standard input")
	f.StringVar(&o.config, "config", "", "the configuration `FILE`; by default, "+m.Policy)
	f.StringSliceVar(&o.hcas, "hca", nil,
		"assume a node whose HCAs have these `NAMES` and only ACTIVE ports; the default is "+m.Node)
	f.StringSliceVar(&o.assume, "assume-devices", nil,
		"assume that verbs devices are injected only for resources that match these `GLOBS`; for DRA claims, write "+
			"claim/NAME")
	if m.AddFlags != nil {
		m.AddFlags(f)
	}
	o.format = cli.AddFormatFlag(cmd, cli.FormatTable, cli.FormatJSON, cli.FormatYAML)
	if m.HCANames != nil {
		cli.Complete(cmd, "hca", m.HCANames)
	}
	return cmd
}

// Result contains the plugin's decision for each container of a manifest.
type Result struct {
	cli.Meta
	// Configuration is the path of the policy in force or of the configuration, or "defaults".
	Configuration string `json:"configuration"`
	// HCAs are the names of the node's HCAs.
	HCAs []string `json:"hcas"`
	// Pods are the pod templates in the manifest.
	Pods []Pod `json:"pods"`
	// Problems are the errors in the manifest.
	Problems []string `json:"problems,omitempty"`
	// Unexplained lists the objects from which no pod could be read, with the reasons.
	Unexplained []string `json:"unexplained,omitempty"`
	// Notes are further facts about the manifest.
	Notes []string `json:"notes,omitempty"`

	fails bool // a container would be refused, or the manifest has a problem
}

// Pod is a pod template in the manifest, with the plugin's decisions for its containers.
type Pod struct {
	manifest.Pod
	// Containers are all containers of the template.
	Containers []Container `json:"containers"`
}

func (o options) explainManifest(stdin io.Reader, stdout, stderr io.Writer) error {
	if o.manifest == "" {
		return cli.Usage(errors.New("specify a manifest file, or - for standard input"))
	}
	if err := policy.CheckResourceGlobs(o.assume); err != nil {
		return cli.Usage(fmt.Errorf("--assume-devices: %w", err))
	}
	m, err := o.read(stdin)
	if err != nil {
		return err
	}
	result, err := o.explain(m, stderr)
	if err != nil {
		return err
	}
	if o.format.Format == cli.FormatTable {
		err = writeExplanation(stdout, result)
	} else {
		err = cli.WriteStructured(stdout, o.format.Format, result)
	}
	if err == nil && result.fails {
		return cli.ErrProblemFound
	}
	return err
}

func (o options) read(from io.Reader) (manifest.Manifest, error) {
	if o.manifest != "-" {
		file, err := os.Open(o.manifest)
		if err != nil {
			return manifest.Manifest{}, fmt.Errorf("cannot read the manifest: %w", err)
		}
		defer func() { _ = file.Close() }() // opened for reading
		from = file
	}
	m, err := manifest.Read(from)
	if err == nil && len(m.Pods)+len(m.Unexplained) == 0 {
		err = errors.New("the manifest contains no containers: expected a Pod, or another object with a list of containers")
	}
	if err != nil {
		return m, fmt.Errorf("%s: %w", o.manifest, err)
	}
	return m, nil
}

// explain explains every container of a manifest. Notes for a person at a terminal go to stderr.
func (o options) explain(m manifest.Manifest, stderr io.Writer) (Result, error) {
	n, err := o.Open(o.config, len(o.hcas) > 0)
	if err != nil {
		return Result{}, err
	}
	defer func() { _ = n.Close() }() // opened only for reading
	result := Result{Meta: cli.Result("Explain"), Configuration: n.Source, HCAs: []string{}, Problems: m.Problems,
		Unexplained: m.Unexplained, fails: len(m.Problems) > 0}
	e := Explainer{Policy: n.Policy, Assume: o.assume}
	if len(o.hcas) > 0 {
		e.Node = SyntheticNode(o.hcas)
	} else if e.Node, err = n.HCAs(); err != nil {
		return Result{}, err
	}
	for _, h := range e.Node.HCAs {
		result.HCAs = append(result.HCAs, h.Name)
	}
	if len(result.HCAs) == 0 {
		fmt.Fprintln(stderr, o.Program+": no HCA was specified or found, so the result is for a node without HCAs: "+
			"specify the node's HCAs, for example with --hca mlx5_0,mlx5_1")
	}
	locks := false
	for _, pod := range m.Pods {
		out := Pod{Pod: pod, Containers: []Container{}}
		result.fails = result.fails || len(pod.Problems) > 0
		for _, c := range pod.Containers {
			explained, err := e.Container(pod, c)
			if err != nil {
				return Result{}, err
			}
			out.Containers = append(out.Containers, explained)
			// if the verdict is open, the decision is for injected verbs devices
			result.fails = result.fails || explained.Decision.Refusal != nil
			locks = locks || bytes.Contains(explained.Spec, []byte(spec.CapIPCLock))
		}
		result.Pods = append(result.Pods, out)
	}
	if locks {
		result.Notes = append(result.Notes, onlyContainerd)
	}
	return result, nil
}

const onlyContainerd = "unlike memlock and devices, IPC_LOCK is granted only on containerd: on CRI-O, add IPC_LOCK " +
	"in the pod (securityContext.capabilities.add: [IPC_LOCK]) or in CRI-O's configuration"
