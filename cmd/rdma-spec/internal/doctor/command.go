// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/passes"
	"github.com/rdma-spec/rdma-spec/docs"
	"github.com/rdma-spec/rdma-spec/spec/files/atomicfile"
)

// every is the interval between checks with --http, as in deploy/systemd/rdma-spec-doctor.timer.
const every = 2 * time.Minute

// The formats of doctor for monitoring systems.
const (
	formatNPD        = "npd"
	formatPrometheus = "prometheus"
)

// Command returns the command rdma-spec doctor with all checks.
func Command(checks []Check) *cobra.Command {
	var o node.Options
	var only []string
	var list, verbose bool
	var to, explain, address string
	var format *cli.FormatFlag
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find faults on the node, and print their fixes",
		Long: `Find faults that affect RDMA on the node, and print their fixes. doctor checks HCAs and their
ports, kernel modules, devices, GPUs, container runtimes, NRI, the nri-rdma plugin, containers,
and the kubelet. doctor changes nothing on the node. Run doctor as root. If doctor cannot read a
file that a check needs, the result of the check is unknown.

Each check has one of these results:
  wrong           the check found a fault; doctor prints the impact and the fix, which is a
                  command that is safe to run now, a disruptive command with a warning, or a
                  manual step
  unknown         the check cannot determine a result; this is not a fault, but examine the node
                  manually
  ignored         the result is wrong or unknown, but an entry in /etc/rdma-spec/doctor.yaml
                  tells doctor to ignore it; for each fault, doctor prints an entry that you
                  can add to this file
  ok              the check found no fault
  skipped         the check depends on another check whose result is wrong or unknown
  not applicable  the check does not apply to the node

-o npd uses the protocol of node-problem-detector's custom plugins. doctor prints one line, and
exits with status 0 if no check finds a fault, 1 if a check does, or 2 if all results of a family
are unknown. -o prometheus writes metrics for node_exporter's textfile collector. The metrics
contain the results of the checks. Without --only, the metrics also include the amount of memory
that each RDMA container has registered.

The exit status is 1 if a check finds a fault. If no check finds a fault, but all results of a
family are unknown, the exit status is 3. This can happen, for example, if the runtime does not
respond. doctor prints the name of each such family to standard error.`,
		Example: `  rdma-spec doctor
  rdma-spec doctor --only port-active,port-rate
  rdma-spec doctor --explain port-active
  rdma-spec doctor --root node.tar.gz
  rdma-spec doctor -o json | jq '.findings[] | select(.status == "wrong")'`,
		GroupID: cli.GroupNode,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if explain != "" {
				return explainCheck(cmd.OutOrStdout(), explain)
			}
			if list {
				return listChecks(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), checks, o)
			}
			if address != "" {
				if !cmd.Flags().Changed("timeout") {
					o.Timeout = every / 2 // no person waits for the result
				}
				look := func(ctx context.Context, metrics io.Writer) error {
					return runDoctor(o, ctx, metrics, cmd.ErrOrStderr(), checks, only, formatPrometheus, false)
				}
				return passes.Passes{Every: every, Address: address, Look: look, Stderr: cmd.ErrOrStderr()}.Run(cmd.Context())
			}
			var text bytes.Buffer
			out := cmd.OutOrStdout()
			if to != "" {
				out = &text
			}
			err := runDoctor(o, cmd.Context(), out, cmd.ErrOrStderr(), checks, only, format.Format, verbose)
			if text.Len() == 0 {
				return err
			}
			return cmp.Or(atomicfile.Write(to, text.Bytes(), 0o644), err)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringSliceVar(&only, "only", nil, "run only these `CHECKS` or families of checks, and the checks that they "+
		"depend on")
	f.BoolVarP(&verbose, "verbose", "v", false,
		"on a terminal, also list the checks that are ok or not applicable, and list each fault in full")
	f.BoolVar(&list, "list", false, "list the checks, and the entries of the ignore file that match no finding")
	f.StringVar(&explain, "explain", "", "print the page about this `CHECK`, without running checks or using the "+
		"network")
	cli.AddFileFlag(f, &to, "write the result to a `FILE` instead of standard output; the file is replaced atomically, "+
		"and is readable by all users")
	f.StringVar(&address, "http", "",
		"run continuously: check every 2m with a timeout of 1m, and serve the result as metrics at this `ADDR`, such as "+
			"127.0.0.1:9799")
	cli.AddDurationFlag(f, &o.Timeout, "timeout", node.Daemons,
		"total timeout for all daemons; if a daemon does not respond in time, the results of its checks are "+
			"unknown; on slow nodes, increase the timeout")
	o.AddFlags(f)
	format = cli.AddFormatFlag(cmd, cli.FormatTable, cli.FormatJSON, formatNPD, formatPrometheus)
	for _, flag := range []string{"only", "explain"} {
		cli.Complete(cmd, flag, func(typed string) []string { return checkNames(checks, typed) })
	}
	return cmd
}

// checkNames completes the last name in a list of checks, with the checks that the list does not contain yet.
func checkNames(checks []Check, typed string) []string {
	before := typed[:strings.LastIndexByte(typed, ',')+1]
	var words []string
	for _, c := range checks {
		if !strings.Contains(","+before, ","+c.ID+",") {
			words = append(words, before+c.ID+"\t"+c.Title)
		}
	}
	return words
}

// explainCheck writes the page about a check, starting at its title.
func explainCheck(stdout io.Writer, check string) error {
	page, err := docs.Fault(check)
	if err != nil {
		return cli.Usage(fmt.Errorf("--explain: there is no check %q%s; run rdma-spec doctor --list to list the checks, or "+
			"rdma-spec why %s to explain a message", check, cli.DidYouMean(check, docs.FaultNames()), cli.ShellWord(check)))
	}
	_, text, _ := strings.Cut(page, "\n\n")
	_, err = io.WriteString(stdout, text)
	return err
}

// listChecks lists the checks. It runs the checks only if the ignore file has entries, to find those that match no
// finding.
func listChecks(ctx context.Context, stdout, stderr io.Writer, checks []Check, o node.Options) error {
	var rows [][]string
	for _, c := range checks {
		rows = append(rows, []string{c.ID, c.Family, c.Title})
	}
	if err := cli.WriteTable(stdout, []string{"CHECK", "FAMILY", "EXPECTS"}, rows); err != nil {
		return err
	}
	_, unused, err := diagnose(o, stderr, func(s *node.Snapshot) []Finding {
		if entries, _ := s.Ignored(); len(entries) == 0 {
			return nil
		}
		return Run(ctx, s, checks)
	})
	for _, entry := range unused {
		fmt.Fprintf(stderr, "rdma-spec: this entry in %s matches no finding on this node: %s\n", node.IgnoreFile,
			cli.PlainText(entry.String()))
	}
	return err
}

// Diagnosis is the result of rdma-spec doctor.
type Diagnosis struct {
	cli.Meta
	// Findings are the results of the checks.
	Findings []Finding `json:"findings"`
	// Missed are the families in which all checks are unknown.
	Missed []string `json:"missed,omitempty"`
}

// runDoctor runs the checks, and writes the findings.
func runDoctor(o node.Options, ctx context.Context, stdout, stderr io.Writer, checks []Check,
	only []string, format string, verbose bool) error {
	o.Use = format == formatPrometheus && len(only) == 0
	findings, containers, err := Diagnose(ctx, o, checks, only, stderr)
	switch {
	case err != nil && format == formatNPD && !cli.IsUsageError(err):
		return WriteNPD(stdout, nil, err)
	case err != nil:
		return err
	}
	switch format {
	case formatNPD:
		return WriteNPD(stdout, findings, nil)
	case formatPrometheus:
		err = writePrometheus(stdout, findings, containers)
	case cli.FormatJSON:
		err = cli.WriteStructured(stdout, format, Diagnosis{cli.Result("Doctor"), findings, unknownFamilies(findings)})
	default:
		if err = ListFindings(stdout, findings, cli.IsTerminal(stdout), verbose); err == nil {
			err = CountFindings(stderr, findings)
		}
	}
	if err != nil {
		return err
	}
	err = Concluded(findings)
	if families := unknownFamilies(findings); errors.Is(err, cli.ErrProblemFound) && len(families) > 0 {
		fmt.Fprintf(stderr, "rdma-spec: %v\n", notLookedAt(families))
	}
	return err
}

// Diagnose runs the named checks, or all checks, and returns the findings. If o.Use is set, Diagnose also returns the
// containers. It prints to stderr which daemons it waits for.
func Diagnose(ctx context.Context, o node.Options, checks []Check, only []string,
	stderr io.Writer) (found []Finding, using []node.Container, err error) {
	if len(only) > 0 {
		if checks, only, err = Named(checks, only...); err != nil {
			return nil, nil, cli.Usage(fmt.Errorf("--only: %w; to list the checks, run rdma-spec doctor --list", err))
		}
	}
	findings, _, err := diagnose(o, stderr, func(s *node.Snapshot) []Finding {
		findings := Run(ctx, s, checks)
		if o.Use {
			containers, _ := s.Containers() // a check reports the error
			using = containers.Containers
		}
		return findings
	})
	if len(only) == 0 || err != nil {
		return findings, using, err
	}
	// A named check can be skipped. In this case, the finding that caused the skip is part of the result.
	skipped := slices.ContainsFunc(findings,
		func(f Finding) bool { return f.Status == Skipped && slices.Contains(only, f.Check) })
	return slices.DeleteFunc(findings, func(f Finding) bool {
		return !slices.Contains(only, f.Check) && (!skipped || f.Status != Wrong)
	}), nil, nil
}

// diagnose runs checks, and ignores the findings that the administrator has listed. It also returns the entries that
// match no finding.
func diagnose(o node.Options, stderr io.Writer, run func(*node.Snapshot) []Finding) ([]Finding, []node.Ignored, error) {
	o.Inside = true
	s, err := node.Open(o)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = s.Close() }() // the snapshot was only read
	entries, err := s.Ignored()
	if err != nil && !s.Archived { // a support bundle of an older version has no ignore file
		return nil, nil, err
	}
	s.ReadHCAs = node.LiveReader(o.Root)
	defer s.SayLate(stderr)()
	findings := run(s)
	return findings, ignore(findings, entries), nil
}

// Concluded returns nil if no check is wrong, and each family has a check with a known result.
func Concluded(findings []Finding) error {
	if slices.ContainsFunc(findings, func(f Finding) bool { return f.Status == Wrong }) {
		return cli.ErrProblemFound
	}
	if families := unknownFamilies(findings); len(families) > 0 {
		return notLookedAt(families)
	}
	return nil
}

func notLookedAt(families []string) error {
	return fmt.Errorf("not checked: %s (for the reasons, see the results)", strings.Join(families, ", "))
}

// unknownFamilies returns the families in which all checks are unknown or skipped. A family that is not visible from a
// container counts only if no family has a known result.
func unknownFamilies(findings []Finding) []string {
	known := map[string]bool{}
	for _, f := range findings {
		known[f.Family] = known[f.Family] || f.Status != Unknown && f.Status != Skipped
	}
	blind := !slices.Contains(slices.Collect(maps.Values(known)), true)
	var families []string
	for _, f := range findings {
		if !known[f.Family] && (blind || !strings.Contains(f.Text, node.NotFromHere)) {
			families = append(families, f.Family)
		}
	}
	return slices.Compact(families)
}
