// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"regexp"

	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/plugin/explain"
	"github.com/rdma-spec/rdma-spec/plugin/manifest"
	"github.com/rdma-spec/rdma-spec/spec/baseline"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// explainOptions are the flags of `rdma-spec explain`.
type explainOptions struct {
	manifest, config, root string
	hcas, assume           []string
	format                 *formatFlag
}

func newExplainCommand() *cobra.Command {
	var o explainOptions
	cmd := &cobra.Command{
		Use:   "explain -f MANIFEST",
		Short: "Say what the plugin would do with the containers of a manifest",
		Long: `Say what nri-rdma would do with each container of a manifest: whether it is an RDMA container, by which signal, which rule
speaks, what it gets and what that changes in its OCI spec, or the very error that its creation would end with. The decision is
the plugin's own. Anything with a pod template is understood: Pods, Deployments, Jobs, Volcano Jobs, MPIJobs, Lists …

A container that requests an extended resource is an RDMA container if its device plugin injects a verbs device, which only the
node knows. --assume-devices says which resources do; without it the verdict is left open, and both ways are told.

The exit status is 1 if a container would be refused or something is wrong with the manifest. Where the verdict is left open, a
refusal counts if it comes when the device plugin does inject verbs devices.`,
		Example: `  rdma-spec explain -f pod.yaml
  rdma-spec explain -f pod.yaml --config config.yaml --hca mlx5_0,mlx5_1 --assume-devices 'rdma/*'
  helm template ./chart | rdma-spec explain -f - --hca mlx5_0 -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVarP(&o.manifest, "filename", "f", "", "the `MANIFEST`, YAML or JSON; - for standard input")
	f.StringVar(&o.config, "config", "", "configuration `FILE`; without it "+defaultConfig+" if it exists, else the defaults")
	f.StringSliceVar(&o.hcas, "hca", nil, "explain for a node with HCAs of these `NAMES`, all ACTIVE, instead of this one")
	f.StringSliceVar(&o.assume, "assume-devices", nil, "assume that resources that match these `GLOBS` (and DRA claims, as claim/NAME) bring verbs devices, and others do not")
	f.StringVar(&o.root, "root", "/", "read the node's HCAs below this `DIR`, such as a copy of another node")
	o.format = addFormatFlag(f, formatTable, formatJSON)
	return cmd
}

// explanation is the result: what would become of each container.
type explanation struct {
	Configuration string         `json:"configuration"` // the file, or "defaults"
	HCAs          []string       `json:"hcas"`
	Pods          []explainedPod `json:"pods"`
	Problems      []string       `json:"problems,omitempty"`
}

// explainedPod is a pod template of the manifest.
type explainedPod struct {
	Document   int                 `json:"document"`
	Object     string              `json:"object"`
	Path       string              `json:"path,omitempty"`
	Namespace  string              `json:"namespace"`
	Containers []explain.Container `json:"containers"`
	Notes      []string            `json:"notes,omitempty"`
	Problems   []string            `json:"problems,omitempty"`
}

func (o explainOptions) run(stdin io.Reader, stdout, stderr io.Writer) error {
	if err := o.check(); err != nil {
		return usageError{err}
	}
	m, err := o.read(stdin)
	if err != nil {
		return err
	}
	result, err := o.explain(m, stderr)
	if err != nil {
		return err
	}
	if o.format.format == formatTable {
		err = writeExplanation(stdout, result)
	} else {
		err = writeStructured(stdout, o.format.format, result)
	}
	if err == nil && result.fails() {
		return errProblemFound
	}
	return err
}

var hcaName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,62}$`)

func (o explainOptions) check() error {
	if o.manifest == "" {
		return errors.New("name a manifest with -f")
	}
	for _, name := range o.hcas {
		if !hcaName.MatchString(name) {
			return fmt.Errorf("--hca %q is no name of an HCA such as mlx5_0", name)
		}
	}
	for _, glob := range o.assume {
		if _, err := path.Match(glob, ""); err != nil || glob == "" {
			return fmt.Errorf("--assume-devices %q is no glob such as rdma/*", glob)
		}
	}
	return nil
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
	switch {
	case err != nil:
		return m, fmt.Errorf("%s: %w", o.manifest, err)
	case len(m.Pods) == 0:
		return m, fmt.Errorf("%s: no pod template in it: expected a Pod, or something with containers at template.spec.containers", o.manifest)
	}
	return m, nil
}

// explain explains every container of a manifest. What a person at a terminal should know beside the result goes to stderr.
func (o explainOptions) explain(m manifest.Manifest, stderr io.Writer) (explanation, error) {
	p, source, err := loadPolicy(o.config)
	if err != nil {
		return explanation{}, err
	}
	e := explain.Explainer{Policy: p, Assume: o.assume}
	if e.Node, err = o.node(stderr); err != nil {
		return explanation{}, err
	}
	if e.Base, err = baseline.Default(); err != nil {
		return explanation{}, err
	}
	result := explanation{Configuration: source, HCAs: []string{}, Pods: []explainedPod{}, Problems: m.Problems}
	for _, h := range e.Node.HCAs {
		result.HCAs = append(result.HCAs, h.Name)
	}
	for _, pod := range m.Pods {
		out := explainedPod{Document: pod.Document, Object: pod.Object, Path: pod.Path, Namespace: pod.Namespace, Notes: podNotes(pod), Problems: pod.Problems}
		for _, c := range pod.Containers {
			explained, err := e.Container(pod, c)
			if err != nil {
				return explanation{}, err
			}
			out.Containers = append(out.Containers, explained)
		}
		result.Pods = append(result.Pods, out)
	}
	return result, nil
}

func (o explainOptions) node(stderr io.Writer) (*hca.Node, error) {
	if len(o.hcas) > 0 {
		return explain.SyntheticNode(o.hcas), nil
	}
	node, err := hca.Scan(o.root)
	if err != nil {
		return nil, err
	}
	if len(node.HCAs) == 0 {
		fmt.Fprintln(stderr, "rdma-spec: there is no HCA here, and this is explained for a node without any: for a node that has some, name them, as in --hca mlx5_0,mlx5_1")
	}
	return node, nil
}

func podNotes(pod manifest.Pod) []string {
	var notes []string
	if pod.Unplaced {
		notes = append(notes, "the manifest names no namespace: explained for "+pod.Namespace)
	}
	if pod.RuntimeClass != "" {
		notes = append(notes, fmt.Sprintf("runtimeClassName: %s: its handler is taken to have the same name", pod.RuntimeClass))
	}
	return notes
}

// fails says whether a container would be refused or the manifest has a problem.
func (e explanation) fails() bool {
	bad := len(e.Problems) > 0
	for _, pod := range e.Pods {
		bad = bad || len(pod.Problems) > 0
		for _, c := range pod.Containers {
			bad = bad || c.Fails()
		}
	}
	return bad
}
