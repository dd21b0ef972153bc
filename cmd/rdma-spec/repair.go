// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec"
	"github.com/rdma-spec/rdma-spec/spec"
)

// editSpecWithin is how long containerd may take to edit one stored spec. Nobody waits for it here.
const editSpecWithin = 5 * time.Second

// repairOptions are the flags of `rdma-spec repair`.
type repairOptions struct {
	nodeOptions
	dryRun bool
}

func newRepairCommand() *cobra.Command {
	var o repairOptions
	cmd := &cobra.Command{
		Use:   "repair [NAMESPACE/POD…]",
		Short: "Raise the memlock of RDMA containers that run, without a restart",
		Long: `Raise RLIMIT_MEMLOCK of every process of the RDMA containers that run on this node, or of those in the pods that are named, to
what the policy gives them, and then the specs that containerd keeps of them, so that later execs have it as well. No process is
restarted: what it registers from then on has the new limit. Nothing is lowered.

The policy is the plugin's, and so is the decision; the plugin need not run. Capabilities and devices of a container that runs cannot
be changed: for those the pod has to be recreated.

It needs the capability SYS_RESOURCE and the node's PID namespace. The exit status is 1 if something could not be raised, or, with
--dry-run, if there is something to raise.`,
		Example: `  rdma-spec repair --dry-run
  rdma-spec repair
  rdma-spec repair ml/train-0 ml/train-1`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkPodNames(args); err != nil {
				return usageError{err}
			}
			return o.repair(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), limits.New(o.root), args)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVar(&o.dryRun, "dry-run", false, "say what would be raised, and change nothing")
	o.addFlags(f)
	return cmd
}

var podName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?/[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`)

func checkPodNames(names []string) error {
	for _, name := range names {
		if !podName.MatchString(name) {
			return fmt.Errorf("%q is no pod as in ml/train-0: write NAMESPACE/POD", name)
		}
	}
	return nil
}

func (o repairOptions) repair(ctx context.Context, stdout, stderr io.Writer, on *limits.Processes, pods []string) error {
	found, err := o.survey(ctx, on)
	if err != nil {
		return err
	}
	defer found.runtime.Close()
	if err := on.Visible(); err != nil {
		return err
	}
	chosen, err := found.choose(stderr, pods)
	if err != nil {
		return err
	}
	writeNotes(stderr, found.Notes)
	r := repairer{stdout: stdout, stderr: stderr, processes: on}
	if found.runtime.Name == "containerd" {
		client := storedspec.New(storedspec.Options{Address: found.runtime.Socket, Budget: editSpecWithin})
		defer client.Close()
		r.specs = client
	}
	low, err := r.low(chosen)
	if err != nil {
		return err
	}
	if len(low) == 0 {
		_, err := fmt.Fprintf(stdout, "nothing to raise: %d RDMA containers looked at\n", len(chosen))
		return err
	}
	if o.dryRun {
		return r.tell(low)
	}
	err = r.repair(ctx, low)
	if r.specs == nil && r.raised > 0 {
		fmt.Fprintf(stderr, "rdma-spec: %s keeps no spec that could be changed: later execs into these containers keep the old limit, until their pods are recreated\n", found.runtime.Name)
	}
	return err
}

// choose gives the containers that are to be raised: all that the policy gives memlock, or those of the pods that are named. What is named
// and left alone is told.
func (s *survey) choose(stderr io.Writer, pods []string) ([]runningContainer, error) {
	for _, pod := range pods {
		others := 0
		for _, c := range s.others {
			if c.Namespace+"/"+c.Pod == pod {
				others++
				fmt.Fprintf(stderr, "rdma-spec: %s %s: left alone: it is no RDMA container\n", pod, c.Name)
			}
		}
		if others == 0 && !slices.ContainsFunc(s.Containers, func(r runningContainer) bool { return r.pod() == pod }) {
			return nil, fmt.Errorf("no container of pod %s runs on this node", pod)
		}
	}
	var chosen []runningContainer
	for _, r := range s.Containers {
		switch {
		case len(pods) > 0 && !slices.Contains(pods, r.pod()):
		case r.wanted.Memlock == 0:
			for _, problem := range r.Problems {
				fmt.Fprintf(stderr, "rdma-spec: %s %s: left alone: %s\n", r.pod(), r.Container, problem)
			}
		default:
			chosen = append(chosen, r)
		}
	}
	return chosen, nil
}

// repairer raises containers, or tells what it would raise.
type repairer struct {
	stdout, stderr io.Writer
	processes      *limits.Processes
	specs          limits.Specs // nil where the runtime keeps none that could be changed
	raised         int          // containers
}

// lowContainer is a container of which something is below what the policy gives.
type lowContainer struct {
	runningContainer
	processes int
	spec      bool
}

// low finds the containers that are to be raised.
func (r *repairer) low(containers []runningContainer) ([]lowContainer, error) {
	running, err := r.processes.Containers()
	if err != nil {
		return nil, err
	}
	var found []lowContainer
	for _, c := range containers {
		l := lowContainer{runningContainer: c}
		for _, pid := range running[c.ID] {
			if limit, err := r.processes.Memlock(pid); err == nil && limit.Soft < c.wanted.Memlock {
				l.processes++
			}
		}
		// A spec that says nothing of memlock leaves later execs what the runtime itself has.
		saysLess := c.spec.MemlockKnown && c.spec.Memlock.Soft < c.wanted.Memlock
		l.spec = r.specs != nil && (saysLess || !c.spec.MemlockKnown && l.processes > 0)
		if l.processes > 0 || l.spec {
			found = append(found, l)
		}
	}
	return found, nil
}

// tell says what repair would do.
func (r *repairer) tell(low []lowContainer) error {
	for _, c := range low {
		r.say(c.runningContainer, "would be raised to", c.processes, c.spec)
	}
	if len(low) > 0 {
		return errProblemFound
	}
	return nil
}

// repair raises containers.
func (r *repairer) repair(ctx context.Context, low []lowContainer) error {
	wanted := map[string]spec.Limit{}
	for _, c := range low {
		wanted[c.ID] = c.wanted.Memlock
	}
	outcomes := r.processes.Repair(ctx, wanted, r.specs)
	failed := false
	for _, c := range low {
		o := outcomes[c.ID]
		if o.Raised > 0 || o.SpecChanged {
			r.raised++
			r.say(c.runningContainer, "raised to", o.Raised, o.SpecChanged)
		}
		if o.Err != nil {
			fmt.Fprintf(r.stderr, "rdma-spec: %s %s: %v\n", c.pod(), c.Container, o.Err)
		}
		if o.SpecErr != nil {
			fmt.Fprintf(r.stderr, "rdma-spec: %s %s: later execs into it keep the old limit: %v\n", c.pod(), c.Container, o.SpecErr)
		}
		failed = failed || o.Err != nil || o.SpecErr != nil
	}
	if failed {
		return errProblemFound
	}
	return nil
}

func (r *repairer) say(c runningContainer, verb string, processes int, withSpec bool) {
	what := "1 process"
	if processes != 1 {
		what = fmt.Sprintf("%d processes", processes)
	}
	if withSpec {
		what += " and the stored spec"
	}
	fmt.Fprintf(r.stdout, "%s %s: memlock %s %s: %s\n", c.pod(), c.Container, verb, c.wanted.Memlock, what)
}
