// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"

	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/explain/manifest"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/plugin/policy/inforce"
	"github.com/rdma-spec/rdma-spec/spec"
)

// explainOptions are the flags of `rdma-spec explain`.
type explainOptions struct {
	manifest, config, root string
	hcas, assume           []string
	format                 *cli.FormatFlag
}

// Command is rdma-spec explain.
func Command() *cobra.Command {
	var o explainOptions
	cmd := &cobra.Command{
		Use:   "explain -f MANIFEST",
		Short: "Explain what the plugin does with the containers of a manifest",
		Long: `Explain what nri-rdma does with each container of a manifest: whether it is an RDMA container,
by which signal, which rule applies and what it gets, or the error that its creation fails
with. The decision is the plugin's own. -o json also shows what is added to each container's OCI
spec. The manifest may hold anything with containers: Pods, Deployments, MPIJobs, Workflows …

There are three verdicts: RDMA; not RDMA; and RDMA if its device plugin or DRA driver injects
verbs devices, which only the node can tell. The third is for containers with an extended resource
or a DRA claim. --assume-devices decides it: globs of resources for extended resources, and
globs that begin with claim/ for DRA claims. What matches is assumed to bring verbs devices,
and the rest to bring none.

The exit status is 1 if a container would be refused or the manifest has a problem. Where the
verdict is open, a refusal counts if the container is refused with verbs devices injected.`,
		Example: `  rdma-spec explain -f pod.yaml
  rdma-spec explain -f pod.yaml --hca mlx5_0,mlx5_1 --assume-devices 'rdma/*'
  helm template ./chart | rdma-spec explain -f - --hca mlx5_0 -o json`,
		GroupID: cli.GroupPod,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVarP(&o.manifest, "filename", "f", "", "the `MANIFEST`, YAML or JSON; - for standard input")
	f.StringVar(&o.config, "config", "", "configuration `FILE`; by default the policy in force on this node, else "+
		policy.ConfigFile+", else the built-in defaults")
	f.StringSliceVar(&o.hcas, "hca", nil,
		"explain for a node with HCAs of these `NAMES`, all ACTIVE, instead of this node")
	f.StringSliceVar(&o.assume, "assume-devices", nil,
		"assume that resources that match these `GLOBS` bring verbs devices, and others none; claim/NAME is for DRA claims")
	node.AddRootFlag(f, &o.root, "the node's HCAs")
	o.format = cli.AddFormatFlag(cmd, cli.FormatTable, cli.FormatJSON, cli.FormatYAML)
	cli.Complete(cmd, "hca", node.HCANames(&o.root))
	return cmd
}

// explanation is the result: what becomes of each container.
type explanation struct {
	cli.Meta
	Configuration string         `json:"configuration"` // the policy in force, the file, or "defaults"
	HCAs          []string       `json:"hcas"`
	Pods          []explainedPod `json:"pods"`
	Problems      []string       `json:"problems,omitempty"`
	Unexplained   []string       `json:"unexplained,omitempty"` // what no pod could be read from, and why
	Notes         []string       `json:"notes,omitempty"`

	fails bool // a container would be refused, or the manifest has a problem
}

// explainedPod is a pod template of the manifest, and what becomes of its containers.
type explainedPod struct {
	manifest.Pod
	Containers []Container `json:"containers"`
}

func (o explainOptions) run(stdin io.Reader, stdout, stderr io.Writer) error {
	if o.manifest == "" {
		return cli.Usage(errors.New("name a manifest with -f"))
	}
	for _, glob := range o.assume {
		if _, err := path.Match(glob, ""); err != nil || glob == "" {
			return cli.Usage(fmt.Errorf("--assume-devices %q is not a glob such as rdma/*", glob))
		}
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

func (o explainOptions) read(from io.Reader) (manifest.Manifest, error) {
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
		err = errors.New("no containers in it: expected a Pod, or another object that has a list of containers")
	}
	if err != nil {
		return m, fmt.Errorf("%s: %w", o.manifest, err)
	}
	return m, nil
}

// explain explains every container of a manifest. Notes for a person at a terminal go to stderr.
func (o explainOptions) explain(m manifest.Manifest, stderr io.Writer) (explanation, error) {
	s, err := node.Open(node.Options{Config: o.config, Root: o.root})
	if err != nil {
		return explanation{}, err
	}
	defer func() { _ = s.Close() }() // it was only read
	result := explanation{Meta: cli.Result("Explain"), HCAs: []string{}, Problems: m.Problems,
		Unexplained: m.Unexplained, fails: len(m.Problems) > 0}
	e := Explainer{Assume: o.assume}
	if e.Policy, result.Configuration, err = o.policy(s); err != nil {
		return explanation{}, err
	}
	if len(o.hcas) > 0 {
		e.Node = SyntheticNode(o.hcas)
	} else if e.Node, err = s.HCAs(); err != nil {
		return explanation{}, err
	}
	for _, h := range e.Node.HCAs {
		result.HCAs = append(result.HCAs, h.Name)
	}
	if len(result.HCAs) == 0 {
		fmt.Fprintln(stderr,
			"rdma-spec: this node has no HCA, and the explanation is for a node without one: name the HCAs of another node "+
				"with --hca, as in --hca mlx5_0,mlx5_1")
	}
	locks := false
	for _, pod := range m.Pods {
		out := explainedPod{Pod: pod, Containers: []Container{}}
		result.fails = result.fails || len(pod.Problems) > 0
		for _, c := range pod.Containers {
			explained, err := e.Container(pod, c)
			if err != nil {
				return explanation{}, err
			}
			out.Containers = append(out.Containers, explained)
			// where the verdict is open, with verbs devices injected
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

// policy returns the policy that decides. On a node whose plugin runs, that is the one in force, wherever the plugin
// has it from; where none runs, the one that it would start with.
func (o explainOptions) policy(s *node.Snapshot) (p *policy.Policy, source string, err error) {
	if o.config == "" && len(o.hcas) == 0 {
		current, judgedBy, err := s.Policy()
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, inforce.ErrEnded) {
			return current, judgedBy.String(), err
		}
	}
	return node.LoadPolicy(o.root, o.config)
}

const onlyContainerd = "the plugin gives IPC_LOCK under containerd only; under CRI-O a container has it from its pod " +
	"(securityContext.capabilities.add: [IPC_LOCK]) or from CRI-O's configuration; memlock and devices are the same " +
	"under both"
