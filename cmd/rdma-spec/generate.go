// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/atomicfile"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/baseline"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// generateOptions are the flags of `rdma-spec generate`.
type generateOptions struct {
	from, memlock, devices, output, root string
	ipcLock, ipcLockGiven                bool
}

func newGenerateCommand() *cobra.Command {
	var o generateOptions
	cmd := &cobra.Command{
		Use:   "generate",
		Short: "Print a base runtime spec whose containers can register RDMA memory",
		Long: `Print an OCI runtime spec for containerd's base_runtime_spec: containerd's default one with memlock unlimited and CAP_IPC_LOCK,
and without the default of 1024 open files that would otherwise cap every container. It is for runtimes without NRI; every
container of the runtime handler that uses it gets what it says, so give it a handler and a RuntimeClass of its own.`,
		Example: `  rdma-spec generate > /etc/containerd/rdma-spec.json
  rdma-spec generate --from /etc/containerd/cri-base.json --memlock 64Gi --output /etc/containerd/rdma-spec.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.ipcLockGiven = cmd.Flags().Changed("ipc-lock")
			return o.run(cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.from, "from", "default", "the spec to start from: `default`, a file, or - for standard input")
	f.StringVar(&o.memlock, "memlock", "unlimited", "RLIMIT_MEMLOCK: unlimited, or a `SIZE` such as 16Gi; an existing higher one is kept")
	f.BoolVar(&o.ipcLock, "ipc-lock", true, "add CAP_IPC_LOCK for root (with a finite memlock only if you say so: it voids the limit)")
	f.StringVar(&o.devices, "devices", "none", "`HCAs` whose devices are added: none, all, or names such as mlx5_0,mlx5_1; minors can change at boot")
	f.StringVarP(&o.output, "output", "o", "", "write to a `FILE`, atomically, with a backup, instead of standard output")
	f.StringVar(&o.root, "root", "/", "find the node's devices below this `DIR`")
	return cmd
}

func (o generateOptions) run(stdin io.Reader, stdout, stderr io.Writer) error {
	grant, err := o.grant(stderr)
	if err != nil {
		return err
	}
	base, err := o.base(stdin)
	if err != nil {
		return err
	}
	if baseline.CapsFiles(base) {
		fmt.Fprintf(stderr, "rdma-spec: warning: %s sets RLIMIT_NOFILE to 1024: every container will be held to 1024 open files; remove that rlimit unless you mean it\n", o.from)
	}
	changed, err := grant.Apply(base, spec.BaseSets)
	if err != nil {
		return fmt.Errorf("--from %s: %w", o.from, err)
	}
	text, err := baseline.Indent(changed)
	if err != nil {
		return err
	}
	if o.output == "" {
		_, err := stdout.Write(text)
		return err
	}
	backup, err := atomicfile.Replace(o.output, text)
	if err != nil {
		return err
	}
	if backup != "" {
		fmt.Fprintf(stderr, "rdma-spec: the former %s is kept as %s\n", o.output, backup)
	}
	return nil
}

// grant reads what the flags ask for.
func (o generateOptions) grant(stderr io.Writer) (spec.Grant, error) {
	limit, err := spec.ParseLimit(o.memlock)
	if err != nil {
		return spec.Grant{}, usageError{err}
	}
	grant := spec.Grant{Memlock: limit}
	if o.ipcLock && (!limit.Finite() || o.ipcLockGiven) {
		grant.IPCLock = spec.IPCLockYes
	}
	if grant.IPCLock != spec.IPCLockNo && limit.Finite() {
		fmt.Fprintf(stderr, "rdma-spec: warning: CAP_IPC_LOCK voids the memlock of %s for processes of root\n", limit)
	}
	grant.Devices, err = o.nodeDevices()
	return grant, err
}

func (o generateOptions) base(stdin io.Reader) ([]byte, error) {
	if o.from == "default" {
		return baseline.Default()
	}
	from := stdin
	if o.from != "-" {
		file, err := os.Open(o.from)
		if err != nil {
			return nil, fmt.Errorf("--from: %w", err)
		}
		defer func() { _ = file.Close() }() // opened for reading
		from = file
	}
	text, err := baseline.Read(from)
	if err != nil {
		return nil, fmt.Errorf("--from %s: %w", o.from, err)
	}
	return text, nil
}

// nodeDevices gives the verbs devices of the HCAs that --devices names, and rdma_cm.
func (o generateOptions) nodeDevices() ([]hca.Device, error) {
	if o.devices == "none" {
		return nil, nil
	}
	node, err := hca.Scan(o.root)
	if err != nil {
		return nil, err
	}
	names := strings.Split(o.devices, ",")
	if o.devices == "all" {
		names = nil
		for _, h := range node.HCAs {
			names = append(names, h.Name)
		}
		if len(names) == 0 {
			return nil, fmt.Errorf("--devices all: this node has no HCA; see 'rdma-spec devices'")
		}
	}
	var devices []hca.Device
	for _, name := range names {
		h, found := node.Find(name)
		if !found {
			return nil, fmt.Errorf("--devices: this node has no HCA %q; see 'rdma-spec devices'", name)
		}
		verbs, found := h.Verbs()
		switch {
		case !found:
			return nil, fmt.Errorf("--devices: HCA %s has no verbs device: load the module ib_uverbs", name)
		case verbs.Problem != "":
			return nil, fmt.Errorf("--devices: HCA %s: %s", name, verbs.Problem)
		}
		if !slices.Contains(devices, verbs) {
			devices = append(devices, verbs)
		}
	}
	if node.RDMACM != nil && node.RDMACM.Problem == "" {
		devices = append(devices, *node.RDMACM)
	}
	return devices, nil
}
