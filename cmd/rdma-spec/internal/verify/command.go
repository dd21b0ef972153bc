// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package verify implements rdma-spec verify, which tests, inside a container, whether RDMA can work in the container.
// The package does not depend on the node or the policy.
package verify

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/spec"
)

// lockMost is the maximum of --lock. No node has more memory.
const lockMost = 1 << 44

// Command is rdma-spec verify.
func Command() *cobra.Command {
	var lock string
	var pid int
	var format *cli.FormatFlag
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Check from inside a container whether RDMA can work",
		Long: `Check from inside a container whether RDMA can work. The command reads the locked-memory limit
(memlock) and CAP_IPC_LOCK, opens the verbs devices and rdma_cm, and finds the GIDs of the
container's network namespace. Then the command registers memory with each HCA through the
kernel's verbs interface. The command needs no library in the image, and supports the drivers
mlx5, mlx4, efa, irdma, bnxt_re, rxe, and siw. With other drivers, the command locks memory instead
of registering it. The same limit applies to locking and to registering.

Each line states a fact. If the fact prevents RDMA from working, the line begins with FAIL and
states the fix. If the effect is unknown, the line begins with a question mark. The last line is
the verdict. If RDMA fails in this container, for example with "Couldn't allocate MR", the verdict
names the cause.

rdma-spec is statically linked, so you can copy it into a running container with kubectl cp, or
mount it. The program inherits the limits of its parent process. If you start the program with
kubectl exec, the runtime sets the program's limits, which can differ from those of process 1. For
this reason, the command also reads the limits of process 1, or of the process that --pid names. In
an ephemeral container (kubectl debug --target), this process belongs to the target, and the
command checks only the target's limits.

The exit status is 1 if RDMA would fail.`,
		Example: `  rdma-spec verify
  kubectl exec train-0 -- rdma-spec verify --lock 1Gi`,
		Args:    cobra.NoArgs,
		GroupID: cli.GroupPod,
		RunE: func(cmd *cobra.Command, _ []string) error {
			size, err := spec.ParseLimit(lock)
			if err != nil || size > lockMost {
				return cli.Usage(fmt.Errorf("--lock %q: specify a size of at most 16Ti, such as 64Mi", lock))
			}
			if pid < 0 || cmd.Flags().Changed("pid") && pid == 0 {
				return cli.Usage(fmt.Errorf("--pid %d is not the ID of a process", pid))
			}
			return verify(cmd.OutOrStdout(), thisContainer(), size, pid, format.Format)
		},
	}
	cmd.Flags().StringVar(&lock, "lock", "64Mi", "register or lock this much memory (`SIZE`)")
	cmd.Flags().IntVar(&pid, "pid", 0, "also check the limits of the process with this `ID` (default: process 1)")
	format = cli.AddFormatFlag(cmd, cli.FormatText, cli.FormatJSON, cli.FormatYAML)
	return cmd
}

// verify tests a container and writes the findings. pid is the process whose limits are checked in addition to its own;
// 0 selects the process automatically.
func verify(w io.Writer, c container, size spec.Limit, pid int, format string) error {
	seen, err := node.Open(node.Options{Root: c.root})
	if err != nil {
		return err
	}
	defer func() { _ = seen.Close() }() // opened only for reading
	seen.ReadHCAs = c.hcas
	v := verification{container: c, seen: seen, size: size}
	v.Meta = cli.Result("Verify")
	v.limits()
	if err := v.readTarget(pid); err != nil {
		return err
	}
	judged := v.self
	dir := "dev/infiniband"
	if v.elsewhere {
		judged = v.target
		dir = processFile(v.target, "root/"+dir)
	}
	v.judged = process.Look(v.root, judged, false, node.ItemTimeout)
	held := v.devices(dir)
	v.ports(held)
	v.tryRegistering(held)
	v.libraries(held)
	v.sharedMemory()
	v.conclude()
	if err = v.write(w, format); err == nil && len(v.Verdict.Causes) > 0 {
		return cli.ErrProblemFound
	}
	return err
}

func (v *verification) write(w io.Writer, format string) error {
	if format != cli.FormatText {
		return cli.WriteStructured(w, format, v.Result)
	}
	for _, f := range v.Findings {
		if _, err := fmt.Fprintf(w, "%-4s  %s\n", shown[f.Status], cli.PlainText(f.Text)); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "verdict: %s\n", v.Verdict.Text)
	return err
}

// thisContainer returns the container in which the program is running.
func thisContainer() container {
	return container{
		root:     "/",
		self:     os.Getpid(),
		hcas:     node.LiveReader("/"),
		process:  limits.New("/").Process,
		open:     openDevice,
		register: registerMemory,
		lock:     func(size int) error { return withMemory(size, unix.Mlock) },
	}
}
