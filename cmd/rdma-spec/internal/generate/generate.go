// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package generate implements rdma-spec generate, which writes base specs and the configurations of platforms. Package
// platform implements the formats.
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
		Long: `Print an OCI runtime spec for containerd's base_runtime_spec. The spec is containerd's default spec
with memlock (the locked-memory limit) set to unlimited and with CAP_IPC_LOCK, but without the
default limit of 1024 open files. Use this base spec for runtimes without NRI. A base spec applies
to all containers of a runtime handler, so create a separate handler and RuntimeClass for RDMA
pods.

With --for, print an equivalent configuration for another platform, in that platform's format. The
configuration contains only settings that the platform supports, and affects every container on the
node.

To write the output to a file, use --to. --to replaces the file atomically, and only if the command
succeeds. With "> FILE", the shell empties the file before the command runs. If the command fails,
the file stays empty. With an empty base spec, the runtime's CRI plugin does not start. --to keeps
the previous content in a backup next to the file. For a drop-in such as
crio.conf.d/90-rdma-spec.conf, the backup is in the parent directory, because a daemon might read
every file in a drop-in directory. --to never overwrites a backup. If handlers on this node already
use the file as their base spec, --to replaces the file only with --force. With --for crio, the
drop-in also contains the default_ulimits from CRI-O's other configuration files on the node.

The exit status is 0 if the configuration is written, 2 for a usage error, and 3 if the
configuration cannot be created or written.`,
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
		"add CAP_IPC_LOCK for root if the platform supports this; by default, only with unlimited memlock, "+
			"because the capability overrides any limit")
	f.StringVar(&o.devices, "devices", devicesNone,
		"add the devices of these `HCAs`: none, all (those with an ACTIVE port), or names such as mlx5_0,mlx5_1; the "+
			"devices' minor numbers can change when the node boots")
	cli.AddFileFlag(f, &o.to, "write atomically to a `FILE` instead of to standard output, and keep a backup")
	f.BoolVar(&o.force, "force", false, "write the --to file even if the change affects runtime handlers on this node")
	node.AddRootFlag(f, &o.root, "the node's devices and runtimes")
	cli.Complete(cmd, "for", func(string) []string { return platforms })
	cli.Complete(cmd, "devices", node.HCANames(&o.root, devicesNone, devicesAll))
	return cmd
}

// fromDefault is the value of --from that means the platform's own base spec.
const fromDefault = "default"

// writeSpec writes the configuration before warnings and notes, so that an error is a single line.
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
			notes = append(notes, fmt.Sprintf("the previous content of %s is now in %s", o.to, backup))
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

// grant returns the grant that the flags request, if the platform supports it.
func (o generateOptions) grant(target platform.Platform) (grant spec.Grant, notes []string, err error) {
	if grant.Memlock, err = spec.ParseLimit(o.memlock); err != nil {
		return spec.Grant{}, nil, cli.Usage(err)
	}
	if o.ipcLock && (o.ipcLockGiven || !grant.Memlock.Finite() && target.GivesIPCLock()) {
		grant.IPCLock = spec.IPCLockYes
	}
	if o.devices == "" {
		return spec.Grant{}, nil, cli.Usage(errors.New("--devices is empty: set it to none, all, or names such as " +
			"mlx5_0,mlx5_1"))
	}
	if err := target.Allows(o.from != fromDefault, grant.IPCLock != spec.IPCLockNo, o.devices != devicesNone); err != nil {
		return spec.Grant{}, nil, cli.Usage(err)
	}
	if grant.Devices, notes, err = chooseDevices(o.root, o.devices); err != nil {
		return spec.Grant{}, nil, fmt.Errorf("--devices %s: %w", o.devices, err)
	}
	return grant, notes, nil
}

// warnings reports settings of the base spec that give containers more or less than the flags request: a grant never
// lowers a limit, and never removes a capability.
func (o generateOptions) warnings(grant spec.Grant, base []byte) (warnings []string, err error) {
	warn := func(format string, args ...any) {
		warnings = append(warnings, "warning: "+fmt.Sprintf(format, args...))
	}
	if baseline.CapsFiles(base) {
		warn("the --from spec (%s) limits each process to 1024 open files: to lift this limit, remove RLIMIT_NOFILE from "+
			"the spec", o.from)
	}
	if !grant.Memlock.Finite() {
		return warnings, nil
	}
	if grant.IPCLock != spec.IPCLockNo {
		warn("CAP_IPC_LOCK overrides the memlock of %s for processes that run as root", grant.Memlock)
	} else if baseline.HasIPCLock(base) {
		warn("the --from spec (%s) contains CAP_IPC_LOCK, which overrides the memlock of %s for processes that run as "+
			"root: remove CAP_IPC_LOCK from the spec", o.from, grant.Memlock)
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
		warn("the --from spec (%s) already sets RLIMIT_MEMLOCK to %s, and rdma-spec does not lower it to %s: "+
			"to set a lower limit, remove RLIMIT_MEMLOCK from the spec", o.from, highest, grant.Memlock)
	}
	return warnings, nil
}

// base reads the base spec to start from. It returns nil for the platform's own base spec.
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
