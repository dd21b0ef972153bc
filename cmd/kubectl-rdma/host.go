// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
)

// Constants for the pod of a command that needs access to the entire node. The name of its container differs from the
// plugin's.
const (
	hostContainer = "rdma-spec"
	hostProgram   = "/usr/local/bin/rdma-spec"
	hostTimeout   = 5 * time.Minute
	lookEvery     = 500 * time.Millisecond
	deleteWithin  = 20 * time.Second // also after an interrupt
	mostText      = 16 << 20
	mostArchive   = 256 << 20
)

// aboutThePod is the end of the help of commands that create a pod.
const aboutThePod = `The command creates a pod on the node to run rdma-spec. The pod uses the
image, the pull secrets, and the tolerations of the nri-rdma DaemonSet. The pod is privileged, uses
the node's PID namespace and network, and mounts the node's files read-only under /host. The
command deletes the pod before it exits, even after an interrupt. Anyone who is allowed to create
such a pod can become root on the node.`

// hostFlags adds the flags of a command that creates a pod.
func (o *options) hostFlags(f *pflag.FlagSet) {
	o.connectionFlags(f, false)
	o.timeoutFlag(f)
}

func (o *options) timeoutFlag(f *pflag.FlagSet) {
	cli.AddDurationFlag(f, &o.timeout, "timeout", hostTimeout,
		"timeout for creating the pod and running rdma-spec in it")
}

// addHostFlag adds --host to doctor.
func (o *options) addHostFlag(doctor *cobra.Command) {
	doctor.Flags().BoolVar(&o.host, "host", false,
		"for one NODE, run rdma-spec doctor in a privileged pod with access to the entire node, and print the output")
	o.timeoutFlag(doctor.Flags())
	doctor.Long = doctor.Short + `. A pod of the nri-rdma DaemonSet has access to
only part of its node. With --host, the doctor has access to the entire node.

` + strings.Replace(aboutThePod, "The command", "With --host, the doctor", 1)
	doctor.Example = "  kubectl rdma doctor\n  kubectl rdma doctor node-1 node-2\n  kubectl rdma doctor node-1 --host"
}

// repair returns the command that runs rdma-spec repair on a node.
func (o *options) repair() *cobra.Command {
	var dryRun bool
	var format *cli.FormatFlag
	cmd := &cobra.Command{
		Use:   "repair NODE [NAMESPACE/POD…]",
		Short: "Raise the memlock of running RDMA containers on a node",
		Long: `Raise the locked-memory limit (memlock) of the RDMA containers on a node, or in the named pods, to
the limit that the policy in force on the node grants. The command neither restarts processes nor
lowers limits.

` + aboutThePod,
		Example: `  kubectl rdma repair node-1 --dry-run
  kubectl rdma repair node-1
  kubectl rdma repair node-1 ml/train-0`,
		GroupID: cli.GroupNode,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			call := []string{"repair", "--root", hostRoot, "-o", format.Format}
			if dryRun {
				call = append(call, "--dry-run")
			}
			return o.printFromHost(cmd.Context(), args[0], append(call, args[1:]...))
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "print the limits that would be raised, without raising them")
	o.hostFlags(cmd.Flags())
	format = cli.AddFormatFlag(cmd, cli.FormatText, cli.FormatJSON)
	return cmd
}

// collect returns the command that runs rdma-spec collect on a node.
func (o *options) collect() *cobra.Command {
	var to string
	var anonymize bool
	cmd := &cobra.Command{
		Use:   "collect NODE --to FILE",
		Short: "Write a support bundle for a node",
		Long: `Write a support bundle for a node, as a tar.gz file. rdma-spec doctor, status, and devices can read
the bundle with --root FILE. The command lists the bundle's files on standard error: read the list
before you send the bundle. Only the file's owner can read the bundle.

` + aboutThePod,
		Example: `  kubectl rdma collect node-1 --to node-1.tar.gz
  kubectl rdma collect node-1 --to node-1.tar.gz --anonymize`,
		GroupID: cli.GroupNode,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if to == "" {
				return cli.Usage(errors.New("use --to FILE to specify the file for the support bundle"))
			}
			call := []string{"collect", "--root", hostRoot}
			if anonymize {
				call = append(call, "--anonymize")
			}
			archive := said{most: mostArchive}
			status, err := o.onHost(cmd.Context(), args[0], call, &archive)
			if err != nil || status != 0 {
				return cmp.Or[error](err, cli.ExitStatus(status))
			}
			return writeArchive(to, archive.Bytes())
		},
	}
	cli.AddFileFlag(cmd.Flags(), &to, "write the support bundle to this `FILE`, with mode 0600")
	cmd.Flags().BoolVar(&anonymize, "anonymize", false,
		"replace host, pod, namespace, and user names, IP and MAC addresses, and GUIDs with numbered pseudonyms")
	o.hostFlags(cmd.Flags())
	return cmd
}

// doctorOnHost runs rdma-spec doctor on an entire node.
func (o *options) doctorOnHost(ctx context.Context, named []string) error {
	if len(named) != 1 {
		return cli.Usage(fmt.Errorf("--host requires the name of one node: kubectl rdma doctor NODE --host"))
	}
	call := []string{"doctor", "--root", hostRoot, "-o", o.output}
	if o.all {
		call = append(call, "--verbose")
	}
	return o.printFromHost(ctx, named[0], call)
}

// printFromHost runs rdma-spec on a node, and prints its output. Commands in the output are for the node itself.
func (o *options) printFromHost(ctx context.Context, node string, call []string) error {
	text := said{most: mostText}
	status, err := o.onHost(ctx, node, call, &text)
	if err != nil {
		return err
	}
	out := rootInPod.ReplaceAllString(text.String(), "")
	if _, err := io.WriteString(o.stdout, strings.Map(cli.Printable, out)); err != nil {
		return err
	}
	if status != 0 {
		return cli.ExitStatus(status)
	}
	return nil
}

// writeArchive writes a file atomically. Unlike atomicfile, which depends on Linux for owners, attributes, and
// directories, it also works on Windows and macOS.
func writeArchive(file string, content []byte) error {
	part, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+"-") // with mode 0600
	if err != nil {
		return err
	}
	_, err = part.Write(content)
	err = errors.Join(err, part.Close())
	if err == nil {
		err = os.Rename(part.Name(), file)
	}
	if err != nil {
		_ = os.Remove(part.Name()) // report only the first error
	}
	return err
}

// onHost runs rdma-spec on a node, in a new pod. It copies the output on standard error as it arrives, and returns the
// exit status.
func (o *options) onHost(ctx context.Context, node string, call []string, stdout io.Writer) (status int, err error) {
	switch {
	case o.timeout <= 0:
		return 0, cli.Usage(fmt.Errorf("--timeout must be positive, not %s", o.timeout))
	case o.selector != "":
		return 0, cli.Usage(errors.New("--selector has no effect if you name a node: remove --selector"))
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	c, err := o.connect(ctx)
	if err != nil {
		return 0, err
	}
	set, err := o.setFor(c, node)
	if err != nil {
		return 0, err
	}
	pod := podOnHost(set, node, call[0], o.timeout)
	name := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	err = c.core.Post().Namespace(name.Namespace).Resource("pods").Body(pod).Do(ctx).Error()
	if refused := apierrors.APIStatus(nil); errors.As(err, &refused) {
		return 0, mayNot(err, name.Namespace)
	}
	// If the request got no response, it is unknown whether the pod was created.
	defer func() {
		stop() // a second interrupt ends the program
		if removed := c.remove(name); removed != nil {
			err = errors.Join(err, fmt.Errorf("%w: run kubectl -n %s delete pod %s", removed, name.Namespace, name.Name))
		}
	}()
	if err == nil {
		status, err = c.callIn(ctx, name, call, stdout, o.stderr)
	}
	var late net.Error
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded), errors.As(err, &late) && late.Timeout():
		return 0, fmt.Errorf("no response from pod %s on node %s within %s%s: for a slow node, increase --timeout",
			name, node, o.timeout, whyNotRunning(err))
	case ctx.Err() != nil:
		return 0, fmt.Errorf("interrupted: deleting pod %s on node %s", name, node)
	}
	return status, mayNot(err, name.Namespace)
}

// mayNot adds the required permissions to an error about missing permissions.
func mayNot(err error, namespace string) error {
	if !apierrors.IsForbidden(err) {
		return err
	}
	return fmt.Errorf("%w: the command needs permission to create, get, and delete pods, and to create and get "+
		"pods/exec, in namespace %s (anyone with these permissions can become root on the nodes)", err, namespace)
}

// whyNotRunning returns the reason why the pod is not running, from an error after a timeout.
func whyNotRunning(err error) string {
	if waits := (*waiting)(nil); errors.As(err, &waits) && waits.why != "" {
		return " (the pod is not running: " + waits.why + ")"
	}
	return ""
}

// setFor returns the DaemonSet whose template is used for a pod on the node: the DaemonSet that selects the node, or
// else the first DaemonSet.
func (o *options) setFor(c *cluster, node string) (*appsv1.DaemonSet, error) {
	nodes, err := c.nodes("", node)
	switch {
	case err != nil && !apierrors.IsForbidden(errors.Unwrap(err)):
		return nil, err
	case err == nil && nodes[node] == nil:
		return nil, noNode(node, "")
	}
	if n := nodes[node]; n != nil {
		if since := lostSince(n); since != "" {
			return nil, fmt.Errorf("node %s does not accept new pods: "+lost+" %s", node, since, node)
		}
	}
	sets, err := c.pluginSets(o.namespace)
	if err != nil {
		return nil, err
	}
	if len(sets) == 0 {
		return nil, o.noPlugin()
	}
	at := slices.IndexFunc(sets, func(d *appsv1.DaemonSet) bool { return nodes[node] != nil && selects(d, nodes[node]) })
	return sets[max(at, 0)], nil
}
