// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/atomicfile"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// The formats of doctor for monitoring systems.
const (
	formatNPD        = "npd"
	formatPrometheus = "prometheus"
)

func newDoctorCommand() *cobra.Command {
	var o nodeOptions
	var only []string
	var list bool
	var output string
	var format *formatFlag
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find what is wrong with the node, and how to cure it",
		Long: `Find what is wrong with the node for RDMA, and how to cure it: HCAs and their ports, kernel
modules, devices, GPUs, container runtimes, NRI, the plugin nri-rdma, containers, and the
kubelet. doctor changes nothing. Run it as root: what other users cannot read is unknown.

The result of a check is one of these:
  wrong           a fault; doctor explains why it matters and how to cure it, with a
                  command to paste if there is one
  unknown         doctor cannot find out; this is not a fault
  ok              no fault was found
  skipped         the check depends on one that is wrong or unknown
  not applicable  the node has nothing of that kind

-o npd speaks the protocol of node-problem-detector's custom plugins: one line, and the exit
status 0 if all is well, 1 if something is wrong, and 2 if no check could be run.
-o prometheus writes metrics for node_exporter's textfile collector.

The exit status is 1 if something is wrong, and 3 if no check could be run.`,
		Example: `  rdma-spec doctor
  rdma-spec doctor --only port-active,port-rate
  rdma-spec doctor --root node.tar.gz
  rdma-spec doctor -o json | jq '.findings[] | select(.status == "wrong")'`,
		GroupID: groupNode,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if list {
				return listChecks(cmd.OutOrStdout())
			}
			if output == "" {
				return o.doctor(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), only, format.format)
			}
			var text bytes.Buffer
			err := o.doctor(cmd.Context(), &text, cmd.ErrOrStderr(), only, format.format)
			if text.Len() == 0 {
				return err
			}
			if failed := atomicfile.Write(output, text.Bytes(), 0o644); failed != nil {
				return failed
			}
			return err
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringSliceVar(&only, "only", nil, "run only these `CHECKS`, or families of checks, and those that they need")
	f.BoolVar(&list, "list", false, "list the checks, and run none")
	f.StringVar(&output, "output", "", "write the result to a `FILE` instead of standard output: atomically, for everyone to read")
	f.DurationVar(&o.patience, "patience", doctor.Patience, "how long a check may take before its result is unknown; longer for a slow node")
	o.addFlags(f)
	format = addFormatFlag(cmd, formatTable, formatJSON, formatNPD, formatPrometheus)
	complete(cmd, "only", checkNames)
	return cmd
}

// checkNames completes a list of checks: the last in it, by those that are not in it yet.
func checkNames(typed string) []string {
	before := typed[:strings.LastIndexByte(typed, ',')+1]
	var words []string
	for _, c := range doctor.Checks() {
		if !strings.Contains(","+before, ","+c.ID+",") {
			words = append(words, before+c.ID+"\t"+c.Title)
		}
	}
	return words
}

func listChecks(stdout io.Writer) error {
	var rows [][]string
	for _, c := range doctor.Checks() {
		rows = append(rows, []string{c.ID, c.Family, c.Title})
	}
	return writeTable(stdout, []string{"CHECK", "FAMILY", "WHAT HOLDS"}, rows)
}

// diagnosis is the result for programs.
type diagnosis struct {
	APIVersion string           `json:"apiVersion"`
	Findings   []doctor.Finding `json:"findings"`
}

// doctor runs the checks and writes what they find.
func (o nodeOptions) doctor(ctx context.Context, stdout, stderr io.Writer, only []string, format string) error {
	findings, err := o.diagnose(ctx, only)
	switch {
	case err != nil && format == formatNPD && !isUsageError(err):
		return writeNPD(stdout, nil, err)
	case err != nil:
		return err
	}
	switch format {
	case formatNPD:
		return writeNPD(stdout, findings, nil)
	case formatPrometheus:
		err = writePrometheus(stdout, findings)
	case formatJSON:
		err = writeStructured(stdout, format, diagnosis{apiVersion, findings})
	default:
		if err = listFindings(stdout, findings, isTerminal(stdout)); err == nil {
			err = countFindings(stderr, findings)
		}
	}
	if err != nil {
		return err
	}
	return concluded(findings)
}

// diagnose runs the checks that are named, or all, and returns what those find.
func (o nodeOptions) diagnose(ctx context.Context, only []string) ([]doctor.Finding, error) {
	checks := doctor.Checks()
	if len(only) > 0 {
		var err error
		if only, err = doctor.Named(checks, only...); err == nil {
			checks, err = doctor.With(checks, only...)
		}
		if err != nil {
			return nil, usageError{fmt.Errorf("--only: %w: rdma-spec doctor --list has them", err)}
		}
	}
	var node *doctor.Node
	o.scan = func() (*hca.Node, error) { return node.Inventory() }
	node, err := doctor.Open(o.root, o.questions(o.surveyAnyhow))
	if err != nil {
		return nil, err
	}
	defer func() { _ = node.Close() }() // it was only read
	node.HCAs = apart(o.root)
	node.Patience = o.patience
	findings := doctor.Run(ctx, node, checks)
	if len(only) == 0 {
		return findings, nil
	}
	// What is named may be skipped: the cause belongs to the answer.
	skipped := slices.ContainsFunc(findings, func(f doctor.Finding) bool { return f.Status == doctor.Skipped && slices.Contains(only, f.Check) })
	return slices.DeleteFunc(findings, func(f doctor.Finding) bool {
		return !slices.Contains(only, f.Check) && (!skipped || f.Status != doctor.Wrong)
	}), nil
}

// concluded is nil if nothing is wrong. Unknown is not a fault, unless there is nothing else.
func concluded(findings []doctor.Finding) error {
	known := false
	for _, f := range findings {
		switch f.Status {
		case doctor.Wrong:
			return errProblemFound
		case doctor.OK, doctor.NotApplied:
			known = true
		}
	}
	if !known {
		return errors.New("no check could be run: the results list why")
	}
	return nil
}
