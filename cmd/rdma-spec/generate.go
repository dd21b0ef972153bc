// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/atomicfile"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/oserror"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/baseline"
	"github.com/rdma-spec/rdma-spec/spec/platform"
)

// generateOptions are the flags of `rdma-spec generate`.
type generateOptions struct {
	from, platform, memlock, devices, output, root string
	ipcLock, ipcLockGiven                          bool
}

func newGenerateCommand() *cobra.Command {
	var o generateOptions
	cmd := &cobra.Command{
		Use:   "generate",
		Short: "Print a base runtime spec whose containers can register RDMA memory",
		Long: `Print an OCI runtime spec for containerd's base_runtime_spec: containerd's default one with memlock unlimited and CAP_IPC_LOCK,
and without the default of 1024 open files that would otherwise cap every container. It is for runtimes without NRI; every
container of the runtime handler that uses it gets what it says, so give it a handler and a RuntimeClass of its own.

With --for, print the same for another platform, in its own language and as far as that can express it. What such a
configuration says holds for every container of the node.`,
		Example: `  rdma-spec generate > /etc/containerd/rdma-spec.json
  rdma-spec generate --from /etc/containerd/cri-base.json --memlock 64Gi --output /etc/containerd/rdma-spec.json
  rdma-spec generate --for crio --output /etc/crio/crio.conf.d/90-rdma-spec.conf`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.ipcLockGiven = cmd.Flags().Changed("ipc-lock")
			return o.run(cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	var platforms []string
	for _, p := range platform.All {
		platforms = append(platforms, p.Name)
	}
	f := cmd.Flags()
	f.StringVar(&o.from, "from", fromDefault, "the `SPEC` to start from: default, a file, or - for standard input")
	f.StringVar(&o.platform, "for", "containerd", "the `PLATFORM` to write for: "+strings.Join(platforms, ", "))
	f.StringVar(&o.memlock, "memlock", "unlimited", "RLIMIT_MEMLOCK: unlimited, or a `SIZE` such as 16Gi; an existing higher one is kept")
	f.BoolVar(&o.ipcLock, "ipc-lock", true, "add CAP_IPC_LOCK for root, where the platform can (with a finite memlock only if you say so: it voids the limit)")
	f.StringVar(&o.devices, "devices", devicesNone, "`HCAs` whose devices are added: none, all that have an ACTIVE port, or names such as mlx5_0,mlx5_1; minors can change at boot")
	f.StringVar(&o.output, "output", "", "write to a `FILE`, atomically, with a backup, instead of standard output")
	f.StringVar(&o.root, "root", "/", "find the node's devices below this `DIR`")
	return cmd
}

// fromDefault is the --from that stands for the platform's own base spec.
const fromDefault = "default"

// run writes the configuration, and only when that is done says what else there is to know.
func (o generateOptions) run(stdin io.Reader, stdout, stderr io.Writer) error {
	target, err := platform.Find(o.platform)
	if err != nil {
		return usageError{fmt.Errorf("--for: %w", err)}
	}
	grant, notes, err := o.grant(target)
	if err != nil {
		return err
	}
	base, err := o.base(stdin)
	if err != nil {
		return fmt.Errorf("--from %s: %w", o.from, err)
	}
	if baseline.CapsFiles(base) {
		notes = append(notes, fmt.Sprintf("warning: %s sets RLIMIT_NOFILE to 1024: every container will be held to 1024 open files; remove that rlimit unless you mean it", o.from))
	}
	text, err := target.Config(grant, base)
	if err != nil {
		return fmt.Errorf("--from %s: %w", o.from, err)
	}
	backup, err := o.write(text, stdout)
	if err != nil {
		return err
	}
	if backup != "" {
		notes = append(notes, fmt.Sprintf("the former %s is kept as %s", o.output, backup))
	}
	if target.Note != "" {
		notes = append(notes, target.Note)
	}
	for _, note := range notes {
		fmt.Fprintln(stderr, "rdma-spec:", note)
	}
	return nil
}

// grant reads what the flags ask for, within what the platform can express.
func (o generateOptions) grant(target platform.Platform) (grant spec.Grant, notes []string, err error) {
	if grant.Memlock, err = spec.ParseLimit(o.memlock); err != nil {
		return spec.Grant{}, nil, usageError{err}
	}
	finite := grant.Memlock.Finite()
	if o.ipcLock && (o.ipcLockGiven || !finite && target.GivesIPCLock()) {
		grant.IPCLock = spec.IPCLockYes
	}
	if grant.IPCLock != spec.IPCLockNo && finite {
		notes = append(notes, fmt.Sprintf("warning: CAP_IPC_LOCK voids the memlock of %s for processes of root", grant.Memlock))
	}
	if o.devices == "" {
		return spec.Grant{}, nil, usageError{errors.New("--devices is empty: write none, all, or names such as mlx5_0,mlx5_1")}
	}
	if err := target.Allows(o.from != fromDefault, grant.IPCLock != spec.IPCLockNo, o.devices != devicesNone); err != nil {
		return spec.Grant{}, nil, usageError{err}
	}
	devices, more, err := chooseDevices(o.root, o.devices)
	if err != nil {
		return spec.Grant{}, nil, fmt.Errorf("--devices %s: %w", o.devices, err)
	}
	grant.Devices = devices
	return grant, append(notes, more...), nil
}

// base reads the base spec to start from, nil for the platform's own.
func (o generateOptions) base(stdin io.Reader) ([]byte, error) {
	switch o.from {
	case fromDefault:
		return nil, nil
	case "-":
		return baseline.Read(stdin)
	}
	file, err := os.Open(o.from)
	if err != nil {
		return nil, oserror.Reason(err)
	}
	defer func() { _ = file.Close() }() // opened for reading
	text, err := baseline.Read(file)
	return text, oserror.Reason(err)
}

// write puts the text where --output says, and gives the name of the backup, "" where there is none.
func (o generateOptions) write(text []byte, stdout io.Writer) (backup string, err error) {
	if o.output != "" {
		return atomicfile.Replace(o.output, text)
	}
	_, err = stdout.Write(text)
	return "", err
}
