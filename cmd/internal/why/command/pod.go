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

// ofPods makes why a command about pods.
func ofPods(cmd *cobra.Command, program string) {
	cmd.Use = "why POD|-|MESSAGE"
	cmd.Short = "Find out why RDMA does not work in a pod, or find causes in a log"
	cmd.Long = `Find out why RDMA does not work in a pod. The command reads only what the pod's author is allowed to
read: the pod's logs, events, state, and spec. It finds the lines that matter, whether they come
from a program that uses RDMA (such as NCCL, UCX, or perftest), the runtime, or the kubelet, and
lists what can cause them, the most likely cause first. It explains the spec as the explain
command does, with the built-in defaults or a configuration file.

` + howLinesAreRead + `

Instead of a POD, specify - for a log on standard input, -f FILE for a log file, or a MESSAGE,
which is a line from a log, in quotes. In these cases, the command does not use the network.`
	cmd.Example = fmt.Sprintf(`  %[1]s why my-pod
  %[1]s why my-pod -n ml -c main --previous
  kubectl logs job/train --all-pods --prefix | %[1]s why -
  %[1]s why -f train.log
`+anExample, program)
}

// Pod is what an API server knows of a pod, and what its texts say.
type Pod struct {
	Pod   string   `json:"pod"`            // NAMESPACE/NAME
	Node  string   `json:"node,omitempty"` // "" before it is scheduled
	State []string `json:"state"`          // the pod's phase, and what its containers do
	Spec  []string `json:"spec"`           // what its spec alone tells,
	// Configuration is the file by which it was explained, or "defaults".
	Configuration string   `json:"configuration"`
	Texts         []Text   `json:"texts"`            // its logs, and its events
	Unread        []string `json:"unread,omitempty"` // what could not be read, and why
	// Wrong reports whether the spec shows by itself that a check finds a fault.
	Wrong func(check string) bool `json:"-"`
}

// Text is a text about a pod, and what it says.
type Text struct {
	Name string `json:"name"`          // such as "log of main"
	Cut  bool   `json:"cut,omitempty"` // only its beginning was read
	*why.Report
}

// podResult is the result for programs.
type podResult struct {
	cli.Meta
	Pod
	Next string `json:"next,omitempty"`
}

// writePod writes what is known of a pod.
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

// writePodText writes it for people.
func writePodText(to io.Writer, pod Pod, next string) error {
	var text strings.Builder
	fmt.Fprintf(&text, "pod %s", pod.Pod)
	if pod.Node != "" {
		fmt.Fprintf(&text, " on %s", pod.Node)
	}
	text.WriteString("\n")
	writeList(&text, pod.State)
	if len(pod.Spec) > 0 {
		fmt.Fprintf(&text, "\nwhat its spec shows (configuration: %s):\n", pod.Configuration)
		writeList(&text, pod.Spec)
	}
	for _, t := range pod.Texts {
		read := cli.Counted(t.Lines, "line", "lines")
		if t.Cut {
			read = "its first " + read
		}
		if !t.Matters() && len(t.Remarks) == 0 {
			fmt.Fprintf(&text, "\n%s, %s: no relevant RDMA lines\n", t.Name, read)
			continue
		}
		fmt.Fprintf(&text, "\n%s, %s:\n", t.Name, read)
		writeReport(&text, t.Report, "according to the pod's spec")
	}
	if len(pod.Unread) > 0 {
		text.WriteString("\nnot read:\n")
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
