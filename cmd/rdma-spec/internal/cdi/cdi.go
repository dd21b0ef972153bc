// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cdi implements rdma-spec cdi, which writes and lists CDI files. Package node/cdi builds and reads CDI files.
package cdi

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cdi"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// Command is rdma-spec cdi.
func Command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cdi",
		Short: "Let Podman, Docker, and other runtimes add HCAs with one --device flag",
		Long: `Write and check CDI files. With CDI files, Podman, Docker, nerdctl, containerd, and CRI-O can
refer to a node's HCAs by name, as in podman run --device rdma.noderesource.dev/hca=mlx5_0. A
container with an HCA's CDI device gets the HCA's device nodes, rdma_cm, and a higher
locked-memory limit (memlock).`,
		Example: `  rdma-spec cdi generate --to /var/run/cdi/rdma.yaml
  rdma-spec cdi list`,
		GroupID: cli.GroupConfiguration,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newCDIGenerateCommand(), newCDIListCommand())
	return cmd
}

// cdiGenerate are the flags of `rdma-spec cdi generate`.
type cdiGenerate struct {
	cdi.Flags
	to, root string
	quiet    bool

	changed bool // the file
}

func newCDIGenerateCommand() *cobra.Command {
	var o cdiGenerate
	cmd := &cobra.Command{
		Use:   "generate",
		Short: "Write a CDI file for the node's HCAs",
		Long: `Write a CDI file that lists the HCAs that containers can use. Each HCA is a device with several
names: the HCA's own name (as in rdma.noderesource.dev/hca=mlx5_0), its PCI address, and the
names of its netdevs. The "all" device stands for all physical HCAs with an ACTIVE port. If
--devices names HCAs, the "all" device stands for all named HCAs with an ACTIVE port.

CDI does not support rlimits, so the CDI file specifies a hook. After creating a container, the
runtime runs the hook. The hook raises the locked-memory limit (memlock) of the container's first
process, regardless of the process's user. If the container's spec sets memlock, the hook changes
nothing. By default, the hook also leaves Kubernetes containers unchanged, because the nri-rdma
plugin sets their memlock. Processes that are started later, for example with 'docker exec', get
the runtime's own memlock.

--to replaces the file atomically. If no HCA can be used, --to removes the file. If the node does
not change, the output does not change either.

The exit status is 0 if the file is written, 1 if no HCA can be used or a named HCA does not
exist, 2 for a usage error, and 3 if the file cannot be generated or written.`,
		Example: `  rdma-spec cdi generate
  rdma-spec cdi generate --to /var/run/cdi/rdma.yaml
  rdma-spec cdi generate --devices mlx5_0,mlx5_1 --memlock 64Gi`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.generate(cmd.OutOrStdout(), cmd.ErrOrStderr()) },
	}
	f := cmd.Flags()
	f.SortFlags = false
	cli.AddFileFlag(f, &o.to, "write to a `FILE`, such as "+cdi.File+", instead of standard output")
	o.AddFlags(f)
	f.BoolVar(&o.quiet, "quiet", false, "print nothing if the file does not change")
	f.StringVar(&o.root, "root", "/", "find the node's /sys and /dev under this `DIR`")
	cli.Complete(cmd, "devices", node.HCANames(&o.root, "all"))
	return cmd
}

// rounds is the largest number of times that the file is generated. The file is generated again if devices appear or
// disappear in the meantime.
const rounds = 5

func (o *cdiGenerate) generate(stdout, stderr io.Writer) error {
	options, err := o.Options()
	if err != nil {
		return cli.Usage(err)
	}
	if filepath.Ext(o.to) != ".yaml" && o.to != "" {
		return cli.Usage(fmt.Errorf("--to %s: the name of a YAML CDI file must end with .yaml", o.to))
	}
	var hookMissing error
	if options.Hook != "" {
		hookMissing = cdi.HookMissing(o.root, options.Hook)
	}
	if hookMissing != nil && filepath.Clean(o.root) == "/" {
		return hookMissing
	}
	var notes []string
	for range rounds { // udev and timers run the command while devices appear and disappear
		before := hca.DevicesChanged(o.root)
		notes, err = o.once(options, stdout)
		if o.to == "" || hca.DevicesChanged(o.root).Equal(before) {
			break
		}
	}
	if hookMissing != nil {
		notes = append(notes, hookMissing.Error())
	}
	if (err == nil || errors.Is(err, cli.ErrProblemFound)) && (o.changed || !o.quiet) {
		for _, note := range notes {
			fmt.Fprintln(stderr, "rdma-spec: warning:", note)
		}
	}
	return err
}

// once writes the file, or prints it, and returns notes about it. If no HCA can be used, it removes the file.
func (o *cdiGenerate) once(options cdi.Options, stdout io.Writer) (notes []string, err error) {
	node, err := hca.Scan(o.root)
	if err != nil {
		return nil, err
	}
	built, notes, missing := cdi.Build(node, options)
	for _, name := range missing {
		notes = append(notes, fmt.Sprintf("this node has no HCA %q: to list the HCAs, run 'rdma-spec devices'", name))
	}
	var text []byte // none: the file is removed
	if built == nil {
		notes = append(notes, "no HCA on this node can be used: to see the reasons, run 'rdma-spec devices'")
	} else if text, err = cdi.Text(built, options); err != nil {
		return nil, err
	}
	if o.to == "" && text != nil {
		_, err = stdout.Write(text)
	} else if o.to != "" {
		var changed bool
		changed, err = cdi.Write(o.to, text)
		switch {
		case changed && text == nil:
			notes = append(notes, o.to+" was removed")
		case changed && o.quiet:
			notes = append(notes, o.to+" was written")
		}
		o.changed = o.changed || changed
	}
	if err == nil && (built == nil || len(missing) > 0) {
		err = cli.ErrProblemFound
	}
	return notes, err
}

func newCDIListCommand() *cobra.Command {
	var root string
	var format *cli.FormatFlag
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the node's CDI devices and their faults",
		Long: `List the devices of all CDI files in /etc/cdi and /run/cdi, including those of other tools. The
command compares the files with the node's state. It reports device nodes that are missing or whose
device number differs from the number in the file, names that now refer to a different HCA, missing
hooks, and devices that several files define.

The exit status is 0 if the command finds no problem in the files, 1 if it finds a problem, and 3
if the list is incomplete.`,
		Example: `  rdma-spec cdi list
  rdma-spec cdi list -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return listCDI(cmd.OutOrStdout(), cmd.ErrOrStderr(), root, format.Format)
		},
	}
	node.AddRootFlag(cmd.Flags(), &root, "the node's /sys, /dev, /etc, and /run")
	format = cli.AddFormatFlag(cmd, cli.FormatTable, cli.FormatJSON, cli.FormatYAML)
	return cmd
}

// Result contains the node's CDI files.
type Result struct {
	cli.Meta
	// Files are all CDI files on the node.
	Files []cdi.Found `json:"files"`
}

func listCDI(stdout, stderr io.Writer, root, format string) error {
	files, err := cdi.Look(root, func() (*hca.Inventory, error) { return hca.Scan(root) })
	if err != nil {
		return err
	}
	sound := true
	var notes []string
	var rows [][]string
	for _, f := range files {
		sound = sound && f.Sound()
		if f.Problem != "" {
			notes = append(notes, f.Path+": "+f.Problem)
		}
		for _, d := range f.Devices {
			rows = append(rows, []string{d.Name, f.Path, baseNames(d.Nodes), baseNames(d.Hooks), d.Problem})
		}
	}
	if format == cli.FormatTable {
		err = cli.WriteTable(stdout, []string{"DEVICE", "FILE", "NODES", "HOOKS", "PROBLEM"}, rows)
		if len(files) == 0 {
			notes = append(notes, "this node has no CDI files: to write one, run 'rdma-spec cdi generate --to "+cdi.File+"'")
		}
	} else {
		err = cli.WriteStructured(stdout, format, Result{cli.Result("CDIList"), append([]cdi.Found{}, files...)})
		notes = nil
	}
	cli.WriteNotes(stderr, notes)
	if err == nil && !sound {
		return cli.ErrProblemFound
	}
	return err
}

func baseNames(paths []string) string {
	var names []string
	for _, p := range paths {
		names = append(names, filepath.Base(p))
	}
	return strings.Join(names, ",")
}
