// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
)

// unanswered is the exit status if a node has not responded, or could not make all checks.
const unanswered = 3

// answer is the response of a node.
type answer struct {
	Node   string          `json:"node"`
	Status int             `json:"status"` // rdma-spec's exit status
	Result json.RawMessage `json:"result,omitempty"`
	Error  string          `json:"error,omitempty"` // why there is no result

	rows   [][]string // the table's rows
	missed string     // the checks that were not possible
	err    error      // the error of the API server
	took   time.Duration
}

// result contains the fields of rdma-spec's results that a table shows.
type result struct {
	Missed []string

	Containers, Outside []struct {
		Namespace, Pod, Container, State string
		Memlock                          struct{ Soft, Hard string }
		IPCLock                          *bool
		Use                              struct{ Summary string }
		Problems, Notes                  []string
		Fix                              string
	}
	Findings []struct{ Check, Status, Object, Text, FixType, Fix string }
	HCAs     []struct {
		Name, Unread string
		Ports        []struct {
			Number      int
			Netdevs     []string
			State, Rate string
		}
	}
}

// onNodes returns a command that runs the rdma-spec command of the same name concurrently on every node, or on the
// named nodes. After an interrupt, it writes the responses so far.
func (o *options) onNodes(name, short string, v view) *cobra.Command {
	return &cobra.Command{Use: name + " [NODE…]", Short: short, RunE: func(cmd *cobra.Command, named []string) error {
		if o.host {
			return o.doctorOnHost(cmd.Context(), named)
		}
		o.named = named
		ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		context.AfterFunc(ctx, stop) // a second interrupt ends the program
		c, err := o.connect(ctx)
		if err != nil {
			return err
		}
		asked, err := o.expected(c)
		if err != nil {
			return err
		}
		asks := &corev1.PodExecOptions{Container: container, Stdout: true, Stderr: true,
			Command: []string{"rdma-spec", name, "--root", hostRoot, "-o", "json"}}
		if o.outside {
			asks.Command = append(asks.Command, "--outside")
		}
		ctx, cancel := context.WithCancel(ctx)
		answers := ask(ctx, slices.Sorted(maps.Keys(asked.pods)), c.config.Timeout,
			func(ctx context.Context, node string) answer {
				const most = 16 << 20
				out := said{most: most}
				notes := said{most: most}
				status, err := c.exec(ctx, asked.pods[node], asks, &out, &notes)
				return o.read(v, node, out.Bytes(), notes.Bytes(), status, err)
			})
		err = o.newReport(v, asked).write(answers)
		cancel()
		for range answers { // discard the remaining responses after an error
		}
		return err
	}}
}

// read converts the result of a command on a node to an answer, which contains only the fields to write. With the exit
// status 3, a result can be incomplete.
func (o *options) read(v view, node string, stdout, stderr []byte, status int, err error) answer {
	a := answer{Node: node, Status: status, err: err}
	notes := strings.TrimSpace(string(stderr))
	last := notes[strings.LastIndexByte(notes, '\n')+1:]
	var r result
	switch {
	case err != nil:
		a.Status = unanswered
		a.Error = err.Error()
		return a
	case status > 3 || !strings.HasPrefix(string(stdout), "{") || json.Unmarshal(stdout, &r) != nil:
		a.Error = cmp.Or(last, fmt.Sprintf("rdma-spec printed no result and exited with status %d", status))
		return a
	}
	a.missed = strings.Join(r.Missed, ", ")
	if status == unanswered && a.missed == "" { // the last line of rdma-spec status
		a.missed = strings.TrimPrefix(last, "rdma-spec: ")
	}
	if o.output == cli.FormatJSON {
		a.Result = stdout
		return a
	}
	for _, row := range v.rows(&r, o.all) {
		for i, cell := range row {
			row[i] = plain(strings.ReplaceAll(cell, "rdma-spec repair --root "+hostRoot, "kubectl rdma repair "+node))
		}
		a.rows = append(a.rows, append([]string{node}, row...))
	}
	return a
}

// view is a table of rdma-spec's results, with its columns after NODE and its rows. If all is true, the rows include
// results without a problem.
type view struct {
	header string
	rows   func(r *result, all bool) [][]string
}

var statusView = view{"POD CONTAINER MEMLOCK IPC_LOCK USE STATE WHY", func(r *result, all bool) (rows [][]string) {
	for _, c := range append(r.Containers, r.Outside...) {
		ipcLock := ""
		if c.IPCLock != nil {
			ipcLock = map[bool]string{true: "yes", false: "no"}[*c.IPCLock]
		}
		if c.Memlock.Hard != c.Memlock.Soft {
			c.Memlock.Soft += "/" + c.Memlock.Hard
		}
		if all || c.State != "ok" {
			rows = append(rows, []string{strings.Trim(c.Namespace+"/"+c.Pod, "/"), c.Container, c.Memlock.Soft, ipcLock,
				c.Use.Summary, c.State, cli.Why(c.Problems, c.Fix, c.Notes)})
		}
	}
	return rows
}}

var doctorView = view{"CHECK STATUS OBJECT TEXT FIX", func(r *result, all bool) (rows [][]string) {
	for _, f := range r.Findings {
		if f.FixType != "" {
			f.Fix = f.FixType + ": " + f.Fix
		}
		// Checks that are not possible in a pod of the DaemonSet are the same on every node.
		if all || f.Status == "wrong" || f.Status == "ignored" ||
			f.Status == "unknown" && !strings.Contains(f.Text, "not visible from here") {
			rows = append(rows, []string{f.Check, f.Status, f.Object, f.Text, f.Fix})
		}
	}
	return rows
}}

var devicesView = view{"HCA PORT NETDEV STATE RATE", func(r *result, _ bool) (rows [][]string) {
	for _, h := range r.HCAs {
		for _, p := range h.Ports {
			rows = append(rows, []string{h.Name, strconv.Itoa(p.Number), strings.Join(p.Netdevs, ","), p.State, p.Rate})
		}
		if len(h.Ports) == 0 {
			rows = append(rows, []string{h.Name, "", "", cmp.Or(h.Unread, "no port"), ""})
		}
	}
	if len(rows) == 0 {
		rows = [][]string{{"", "", "", "no HCA", ""}}
	}
	return rows
}}
