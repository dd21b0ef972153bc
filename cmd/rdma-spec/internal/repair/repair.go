// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package repair implements rdma-spec repair, which raises the memlock of running containers. Package policy decides
// the limit of each container.
package repair

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri"
	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec"
	"github.com/rdma-spec/rdma-spec/spec"
)

// editSpecWithin is the timeout for containerd to edit one stored spec. In this command, no container creation waits
// for the edit.
const editSpecWithin = 5 * time.Second

// Options are the flags of `rdma-spec repair`.
type Options struct {
	node.Options
	DryRun bool
	Format string
	// Every is the interval between the passes of a loop; 0 means a single pass.
	Every time.Duration
	// Address is where a loop serves metrics. If it is empty, the loop serves no metrics.
	Address string
}

// Command is rdma-spec repair.
func Command() *cobra.Command {
	var o Options
	var format *cli.FormatFlag
	cmd := &cobra.Command{
		Use:   "repair [NAMESPACE/POD…]",
		Short: "Raise the memlock of running RDMA containers without restarting them",
		Long: `Raise the locked-memory limit (memlock) of every process of the RDMA containers on this node, or
in the named pods, to the limit that the policy grants. The command also raises the limit in the
specs that containerd stores, so that processes started with exec get the new limit. The command
does not restart processes. The new limit takes effect at the next memory registration. The
command never lowers a limit.

The command cannot change the capabilities or the devices of a running container. To change
them, recreate the pod.

` + node.WhichPolicy + `

` + node.WhichRuntime + `

With --every, the command runs continuously, prints only changes, and raises the limit of
containers that were created while the plugin was not running. If you also set --dry-run, the
command only reports these containers.

The command requires the SYS_RESOURCE capability and the node's PID namespace. The exit status is 1
if a limit could not be raised or, with --dry-run, if a limit would be raised. The exit status is 3
if the node or one of its containers cannot be examined.`,
		Example: `  rdma-spec repair --dry-run
  rdma-spec repair
  rdma-spec repair ml/train-0 ml/train-1
  rdma-spec repair --every 1m`,
		Args:              node.PodArgs,
		ValidArgsFunction: o.CompletePods,
		GroupID:           cli.GroupNode,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Format = format.Format
			o.Pods = args
			if err := o.checkLoop(cmd.Flags().Changed("every")); err != nil {
				return cli.Usage(err)
			}
			if o.Every > 0 {
				return o.Loop(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
			}
			return o.Repair(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVar(&o.DryRun, "dry-run", false, "print the limits that would be raised, without raising them")
	f.DurationVar(&o.Every, "every", 0, "run continuously, with a pass every `DURATION`, such as 1m")
	f.StringVar(&o.Address, "http", "", "with --every, serve the result as metrics at this `ADDR`, such as 127.0.0.1:9796")
	o.AddFlags(f)
	format = cli.AddFormatFlag(cmd, cli.FormatText, cli.FormatJSON, cli.FormatYAML)
	return cmd
}

// Result lists the limits that repair raised or, with --dry-run, would raise.
type Result struct {
	cli.Meta
	// Policy is the policy that the containers are compared with.
	Policy node.JudgedBy `json:"policy"`
	// Runtimes are the container runtimes that responded.
	Runtimes []cri.Identity `json:"runtimes"`
	// DryRun is true if --dry-run was set, so nothing was raised.
	DryRun bool `json:"dryRun"`
	// LookedAt is the number of RDMA containers that were examined.
	LookedAt int `json:"lookedAt"`
	// Containers are the containers whose limit was raised or, with --dry-run, would be raised.
	Containers []Container `json:"containers"`
	// Notes are further facts about the node.
	Notes []string `json:"notes,omitempty"`

	failed bool // a container's limit is too low, and was not raised
	left   int  // number of containers whose limit is too low until they are recreated
}

// Container is a container whose limit was raised or, with --dry-run, would be raised.
type Container struct {
	// Namespace is the pod's namespace.
	Namespace string `json:"namespace"`
	// Pod is the pod's name.
	Pod string `json:"pod"`
	// Container is the container's name.
	Container string `json:"container"`
	// ID is the container's ID.
	ID string `json:"id"`
	// Memlock is the new RLIMIT_MEMLOCK.
	Memlock spec.Limit `json:"memlock"`
	// MemlockBytes is the new RLIMIT_MEMLOCK in bytes.
	MemlockBytes uint64 `json:"memlockBytes"`
	// Processes is the number of processes whose limit was raised or, with --dry-run, would be raised.
	Processes int `json:"processes"`
	// StoredSpec is true if the limit in the spec that containerd stores was raised or, with --dry-run, would be raised.
	StoredSpec bool `json:"storedSpec"`
	// Errors are the limits that could not be raised, with the reasons.
	Errors []string `json:"errors,omitempty"`
}

// Repair raises the limits that are too low, or lists them.
func (o Options) Repair(ctx context.Context, stdout, stderr io.Writer) error {
	result, found, err := o.pass(ctx)
	if err != nil {
		return err
	}
	if o.Format == cli.FormatText {
		cli.WriteNotes(stderr, append(found.Sources(), result.Notes...))
		err = result.write(stdout, stderr)
	} else {
		err = cli.WriteStructured(stdout, o.Format, result)
	}
	if err != nil {
		return err
	}
	if result.failed {
		return cli.ErrProblemFound
	}
	return found.Incomplete()
}

// pass checks the node once, and raises the limits that are too low.
func (o Options) pass(ctx context.Context) (result Result, found node.Containers, err error) {
	on := o.Limits()
	s, err := node.Open(o.Options)
	if err != nil {
		return result, found, err
	}
	defer func() { _ = s.Close() }() // it was only read
	if s.Archived && !o.DryRun {
		return result, found, errors.New("--root names a support bundle, not a live node: run the command on the node itself")
	}
	found, err = s.JudgedContainers()
	if err == nil {
		err = on.Visible()
	}
	if err != nil {
		return result, found, err
	}
	result = Result{
		Meta: cli.Result("Repair"), Policy: found.Policy, Runtimes: found.Runtimes, DryRun: o.DryRun,
		Containers: []Container{}, Notes: found.Notes,
	}
	low := result.choose(found.Containers)
	if !o.DryRun {
		result.raise(ctx, on, low)
	}
	return result, found, nil
}

// choose returns the containers whose limit is lower than the policy grants, and notes why others are left unchanged.
func (result *Result) choose(found []node.Container) (low []node.Container) {
	for _, r := range found {
		if r.Wanted == nil || r.Wanted.Memlock == 0 || r.State == node.StateUnknown {
			for _, problem := range r.Problems {
				result.note("%s %s: not raised: %s", r.PodName(), r.Container, problem)
			}
			continue
		}
		result.LookedAt++
		switch {
		case r.Raise.Action == node.Nothing:
			continue
		case r.Raise.Action == node.Recreate && r.Raise.Processes == 0:
			result.failed = true
			result.left++
			result.note("%s %s: not raised: %s", r.PodName(), r.Container, cli.Why(r.Problems[:1], r.Fix, nil))
			continue
		}
		result.failed = result.failed || result.DryRun
		low = append(low, r)
		result.Containers = append(result.Containers, Container{
			Namespace: r.Namespace, Pod: r.Pod, Container: r.Container, ID: r.ID,
			Memlock: r.Wanted.Memlock, MemlockBytes: uint64(r.Wanted.Memlock), Processes: r.Raise.Processes,
			StoredSpec: r.Raise.StoredSpec,
		})
	}
	return low
}

func (result *Result) note(format string, args ...any) {
	result.Notes = append(result.Notes, fmt.Sprintf(format, args...))
}

// raise raises the limits of the chosen containers, and replaces the expected results with the actual ones.
func (result *Result) raise(ctx context.Context, on *limits.Processes, low []node.Container) {
	specs := storedSpecs{}
	clients := storedSpecs{}
	wanted := map[string]spec.Limit{}
	for _, r := range low {
		wanted[r.ID] = r.Wanted.Memlock
		if !r.Editable() {
			continue
		}
		socket := r.Runtime.Socket
		if clients[socket] == nil {
			clients[socket] = storedspec.New(storedspec.Options{Address: socket, Budget: editSpecWithin})
			defer clients[socket].Close()
		}
		specs[r.ID] = clients[socket]
	}
	outcomes := on.RaiseWithSpecs(ctx, wanted, specs)
	for i := range result.Containers {
		c := &result.Containers[i]
		outcome := outcomes[c.ID]
		c.Processes = outcome.Raised
		c.StoredSpec = outcome.SpecChanged
		result.failed = result.failed || outcome.Err != nil || outcome.SpecErr != nil
		if outcome.Err != nil {
			c.Errors = append(c.Errors, outcome.Err.Error())
		}
		if outcome.SpecErr != nil {
			c.Errors = append(c.Errors, fmt.Sprintf("new processes started with exec get the old limit: "+
				"%v", outcome.SpecErr))
		}
		if c.Processes > 0 && specs[c.ID] == nil {
			result.note("%s/%s %s: %s has no stored spec that can be changed, so new processes started with exec get "+
				"the old limit until the pod is recreated",
				c.Namespace, c.Pod, c.Container, low[i].Runtime.Name)
		}
	}
}

// write writes a line for each container, and one for each error.
func (result *Result) write(stdout, stderr io.Writer) error {
	verb := "raised to"
	lines := ""
	if result.DryRun {
		verb = "would be raised to"
	}
	for _, c := range result.Containers {
		if c.Processes > 0 || c.StoredSpec {
			what := cli.Counted(c.Processes, "process", "processes")
			if c.StoredSpec {
				what += " and the stored spec"
			}
			lines += fmt.Sprintf("%s/%s %s: memlock %s %s: %s\n", c.Namespace, c.Pod, c.Container, verb, c.Memlock, what)
		}
		for _, text := range c.Errors {
			fmt.Fprintf(stderr, "rdma-spec: %s/%s %s: %s\n", c.Namespace, c.Pod, c.Container, cli.PlainText(text))
		}
	}
	if len(result.Containers) == 0 {
		lines = "nothing to raise: checked " + cli.Counted(result.LookedAt, "RDMA container", "RDMA containers") + "\n"
	}
	_, err := io.WriteString(stdout, lines)
	return err
}

// storedSpecs edits the stored specs of containers, which are identified by ID. Each spec is edited by the containerd
// that runs the container. Other containers have no stored spec.
type storedSpecs map[string]*storedspec.Client

// ApplyRunning implements limits.Specs.
func (s storedSpecs) ApplyRunning(ctx context.Context, id string, grant spec.Grant) (changed bool, err error) {
	if client := s[id]; client != nil {
		return client.ApplyRunning(ctx, id, grant)
	}
	return false, nil
}
