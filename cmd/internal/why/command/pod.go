// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/internal/why"
)

// ofPods changes the command why into a command for pods.
func ofPods(cmd *cobra.Command, program string) {
	cmd.Use = "why POD|-|MESSAGE"
	cmd.Short = "Find out why RDMA does not work in a pod, or find the causes of errors in a log"
	cmd.Long = `Find out why RDMA does not work in a pod. The command reads the pod's logs, events, state, and spec,
all of which the pod's author is allowed to read. The command finds the lines that matter, whether
they come from a program that uses RDMA (such as NCCL, UCX, or perftest), the runtime, or the
kubelet. For each line, the command lists the possible causes, most likely first. The
command also explains the spec like the explain command, based on the built-in defaults or a
configuration file.

` + howLinesAreRead + `

Instead of a POD, you can specify - for a log on standard input, -f FILE for a log file, or a
MESSAGE (a line from a log, in quotes). Without a POD, the command does not use the network.`
	cmd.Example = fmt.Sprintf(`  %[1]s why my-pod
  %[1]s why my-pod -n ml -c main --previous
  kubectl logs job/train --all-pods --prefix | %[1]s why -
  %[1]s why -f train.log
`+anExample, program)
}

// Pod contains the state of a pod from the API server, and the reports on the pod's texts.
type Pod struct {
	Pod   string   `json:"pod"`            // NAMESPACE/NAME
	Node  string   `json:"node,omitempty"` // empty before the pod is scheduled
	State []string `json:"state"`          // the phase of the pod, and the states of its containers
	Spec  []string `json:"spec"`           // findings from the spec alone
	// Configuration is the configuration file with which the spec was explained, or "defaults".
	Configuration string   `json:"configuration"`
	Texts         []Text   `json:"texts"`            // the pod's logs and events
	Unread        []string `json:"unread,omitempty"` // the texts that could not be read, with the reasons
	// Wrong reports whether the spec alone shows that a check would find a fault.
	Wrong func(check string) bool `json:"-"`
}

// Text is a text about a pod, with its report.
type Text struct {
	Name string `json:"name"`          // such as "log of main"
	Cut  bool   `json:"cut,omitempty"` // true if only the beginning was read
	*why.Report
}

// podResult is the structured result.
type podResult struct {
	cli.Meta
	Pod
	Next string `json:"next,omitempty"`
}

// writePod writes the result for a pod.
func (m Machine) writePod(cmd *cobra.Command, pod Pod, format string) error {
	matters := false
	next := ""
	for _, text := range pod.Texts {
		text.Prefer(pod.Wrong)
		matters = matters || text.Matters()
		if next == "" {
			next = m.next(text.Report, false)
		}
	}
	next = strings.Replace(next, "on the node", "on "+pod.Node, 1)
	var err error
	if format == cli.FormatTable {
		err = writePodText(cmd.OutOrStdout(), pod, next)
	} else {
		err = cli.WriteStructured(cmd.OutOrStdout(), format, podResult{cli.Result("WhyPod"), pod, next})
	}
	switch {
	case err != nil:
		return err
	case matters:
		return cli.ErrProblemFound
	case len(pod.Unread) > 0:
		return cli.ExitStatus(3)
	}
	return nil
}

// writePodText writes the result for a pod as text.
func writePodText(to io.Writer, pod Pod, next string) error {
	var text strings.Builder
	fmt.Fprintf(&text, "pod %s", pod.Pod)
	if pod.Node != "" {
		fmt.Fprintf(&text, " on %s", pod.Node)
	}
	text.WriteString("\n")
	writeList(&text, pod.State)
	if len(pod.Spec) > 0 {
		fmt.Fprintf(&text, "\nfindings from the pod's spec (configuration: %s):\n", pod.Configuration)
		writeList(&text, pod.Spec)
	}
	for _, t := range pod.Texts {
		read := cli.Counted(t.Lines, "line", "lines")
		if t.Cut {
			read = "first " + read
		}
		if !t.Matters() && len(t.Remarks) == 0 {
			fmt.Fprintf(&text, "\n%s, %s: no relevant RDMA lines\n", t.Name, read)
			continue
		}
		fmt.Fprintf(&text, "\n%s, %s:\n", t.Name, read)
		writeReport(&text, t.Report, "according to the pod's spec")
	}
	if len(pod.Unread) > 0 {
		text.WriteString("\nlogs and events that could not be read:\n")
		writeList(&text, pod.Unread)
	}
	writeNext(&text, next)
	_, err := io.WriteString(to, strings.Map(cli.Printable, text.String()))
	return err
}

func writeList(to io.Writer, all []string) {
	for _, one := range all {
		fmt.Fprintf(to, "  %s\n", one)
	}
}
