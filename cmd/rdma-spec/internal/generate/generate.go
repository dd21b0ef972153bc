// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package generate implements rdma-spec generate, which writes base specs and platforms' configurations. Package
// platform knows their formats.
package generate

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/baseline"
	"github.com/rdma-spec/rdma-spec/spec/files"
	"github.com/rdma-spec/rdma-spec/spec/files/atomicfile"
	"github.com/rdma-spec/rdma-spec/spec/platform"
)

// generateOptions are the flags of `rdma-spec generate`.
type generateOptions struct {
	from, platform, memlock, devices, to, root string
	ipcLock, ipcLockGiven, force               bool
}

// Command is rdma-spec generate.
func Command() *cobra.Command {
	var o generateOptions
	cmd := &cobra.Command{
		Use:   "generate",
		Short: "Print a base runtime spec that lets containers register RDMA memory",
		Long: `Print an OCI runtime spec for containerd's base_runtime_spec: containerd's default spec with
an unlimited locked-memory limit (memlock) and CAP_IPC_LOCK, and without the default limit of
1024 open files. It is for runtimes without NRI. It applies to every container of a runtime
handler that uses it, so use a separate handler and RuntimeClass.

With --for, print the equivalent for another platform, in that platform's format, as far as the
platform supports it. Such a configuration affects every container of the node.

To write the file, use --to: it replaces the file atomically, and only if the command succeeds.
With "> FILE", the shell empties the file first. If the command then fails, the file stays empty,
and with an empty base_runtime_spec, the runtime's CRI plugin does not start. --to keeps the
previous content as a backup next to the file. For a drop-in such as crio.conf.d/90-rdma-spec.conf,
the backup is in the parent directory, because a daemon might read every file in a drop-in
directory. --to never overwrites a backup. If handlers on this node already name a base spec, --to
replaces it only with --force. With --for crio, the drop-in also contains the default_ulimits from
CRI-O's other configuration files on the node.

The exit status is 0 if the configuration is written, 2 for a usage error, and 3 if it cannot be
created or written.`,
		Example: `  rdma-spec generate --to /etc/containerd/rdma-spec.json
  rdma-spec generate --from cri-base.json --memlock 64Gi --to /etc/containerd/rdma-spec.json
  rdma-spec generate --for crio --to /etc/crio/crio.conf.d/90-rdma-spec.conf`,
		GroupID: cli.GroupConfiguration,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.ipcLockGiven = cmd.Flags().Changed("ipc-lock")
			return o.writeSpec(cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	var platforms []string
	for _, p := range platform.All {
		platforms = append(platforms, p.Name)
	}
	f := cmd.Flags()
	f.StringVar(&o.from, "from", fromDefault, "the `SPEC` to start from: default, a file, or - for standard input")
	f.StringVar(&o.platform, "for", "containerd", "the `PLATFORM` to write for: "+strings.Join(platforms, ", "))
	f.StringVar(&o.memlock, "memlock", "unlimited",
		"RLIMIT_MEMLOCK: unlimited, or a `SIZE` such as 16Gi; a higher limit in the --from spec is kept")
	f.BoolVar(&o.ipcLock, "ipc-lock", true,
		"add CAP_IPC_LOCK for root, if the platform supports it; by default, only with unlimited memlock, because the "+
			"capability overrides the limit")
	f.StringVar(&o.devices, "devices", devicesNone,
		"add the devices of these `HCAs`: none, all (those with an ACTIVE port), or names such as mlx5_0,mlx5_1; minor "+
			"numbers can change at boot")
	cli.AddFileFlag(f, &o.to, "write to a `FILE` instead of standard output: atomically, with a backup")
	f.BoolVar(&o.force, "force", false, "write the --to file even if that changes runtime handlers on this node")
	node.AddRootFlag(f, &o.root, "the node's devices and runtimes")
	cli.Complete(cmd, "for", func(string) []string { return platforms })
	cli.Complete(cmd, "devices", node.HCANames(&o.root, devicesNone, devicesAll))
	return cmd
}

// fromDefault is the --from for the platform's own base spec.
const fromDefault = "default"

// run writes the configuration first, and warnings and notes after it, so that an error is a single line.
func (o generateOptions) writeSpec(stdin io.Reader, stdout, stderr io.Writer) error {
	target, err := platform.Find(o.platform)
	if err != nil {
		return cli.Usage(fmt.Errorf("--for: %w", err))
	}
	grant, notes, err := o.grant(target)
	if err != nil {
		return err
	}
	base, err := o.base(stdin)
	var warnings []string
	if err == nil {
		warnings, err = o.warnings(grant, base)
	}
	var text []byte
	if err == nil {
		text, err = target.Config(grant, base)
	}
	if err != nil {
		return fmt.Errorf("--from %s: %w", o.from, err)
	}
	if target.Name == "crio" {
		var kept []string
		if text, kept, err = o.crio(grant.Memlock); err != nil {
			return err
		}
		warnings = append(warnings, kept...)
	}
	notes = append(notes, warnings...)
	if o.to != "" {
		if target.Name == "containerd" && !o.force {
			if err := o.changes(text); err != nil {
				return err
			}
		}
		backup, err := atomicfile.Replace(o.to, text)
		if err != nil {
			return o.readOnly(err)
		}
		if backup != "" {
			notes = append(notes, fmt.Sprintf("the previous %s is kept as %s", o.to, backup))
		}
	} else if _, err := stdout.Write(text); err != nil {
		return err
	}
	if target.Note != "" {
		notes = append(notes, target.Note)
	}
	cli.WriteNotes(stderr, notes)
	return nil
}

// grant reads what the flags ask for, within what the platform can express.
func (o generateOptions) grant(target platform.Platform) (grant spec.Grant, notes []string, err error) {
	if grant.Memlock, err = spec.ParseLimit(o.memlock); err != nil {
		return spec.Grant{}, nil, cli.Usage(err)
	}
	if o.ipcLock && (o.ipcLockGiven || !grant.Memlock.Finite() && target.GivesIPCLock()) {
		grant.IPCLock = spec.IPCLockYes
	}
	if o.devices == "" {
		return spec.Grant{}, nil, cli.Usage(errors.New("--devices is empty: write none, all, or names such as mlx5_0,mlx5_1"))
	}
	if err := target.Allows(o.from != fromDefault, grant.IPCLock != spec.IPCLockNo, o.devices != devicesNone); err != nil {
		return spec.Grant{}, nil, cli.Usage(err)
	}
	if grant.Devices, notes, err = chooseDevices(o.root, o.devices); err != nil {
		return spec.Grant{}, nil, fmt.Errorf("--devices %s: %w", o.devices, err)
	}
	return grant, notes, nil
}

// warnings reports what gives containers more or less than the flags ask for: a grant lowers no limit and removes no
// capability.
func (o generateOptions) warnings(grant spec.Grant, base []byte) (warnings []string, err error) {
	warn := func(format string, args ...any) {
		warnings = append(warnings, "warning: "+fmt.Sprintf(format, args...))
	}
	if baseline.CapsFiles(base) {
		warn("--from %s: RLIMIT_NOFILE is 1024, so no container can open more than 1024 files: remove that rlimit unless "+
			"you want this", o.from)
	}
	if !grant.Memlock.Finite() {
		return warnings, nil
	}
	if grant.IPCLock != spec.IPCLockNo {
		warn("CAP_IPC_LOCK overrides the memlock of %s for processes that run as root", grant.Memlock)
	} else if baseline.HasIPCLock(base) {
		warn("--from %s: it has CAP_IPC_LOCK, which overrides the memlock of %s for processes that run as root: remove the "+
			"capability",
			o.from, grant.Memlock)
	}
	if base == nil {
		return warnings, nil
	}
	result, err := grant.Apply(base, spec.BaseSets)
	if err != nil {
		return nil, err
	}
	limit, _, err := spec.Memlock(result)
	if err != nil {
		return nil, err
	}
	if highest := max(limit.Soft, limit.Hard); highest > grant.Memlock {
		warn("--from %s: RLIMIT_MEMLOCK is already %s and is not lowered to %s: to set a lower limit, remove that rlimit",
			o.from, highest, grant.Memlock)
	}
	return warnings, nil
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
		return nil, files.Cause(err)
	}
	defer func() { _ = file.Close() }() // opened for reading
	text, err := baseline.Read(file)
	return text, files.Cause(err)
}
