// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"golang.org/x/term"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
)

// atOnce is how many nodes are asked side by side, beside those that have not answered for slow.
const (
	atOnce = 50
	slow   = 2 * time.Second
)

// unanswered is the exit status where somebody has not answered, or not looked at everything.
const unanswered = 3

// answer is what a node says.
type answer struct {
	Node   string          `json:"node"`
	Status int             `json:"status"` // rdma-spec's exit status
	Result json.RawMessage `json:"result,omitempty"`
	Error  string          `json:"error,omitempty"` // why there is no result

	read result
}

// result is what a table has of the results of rdma-spec.
type result struct {
	Missed []string

	Containers, Outside []struct {
		Namespace, Pod, Container, State string
		Memlock                          struct{ Soft, Hard string }
		IPCLock                          *bool
		Use                              struct{ Summary string }
		Problems, Notes                  []string
	}
	Findings []struct{ Check, Status, Object, Text, Class, Cure string }
	HCAs     []struct {
		Name, Unread string
		Ports        []struct {
			Number      int
			Netdevs     []string
			State, Rate string
		}
	}
}

// onNodes is a command that rdma-spec has as well. It calls that one on every node, or on those that are named, side by
// side.
func (o *options) onNodes(name, short string, v view) *cobra.Command {
	return &cobra.Command{Use: name + " [NODE…]", Short: short, RunE: func(cmd *cobra.Command, named []string) error {
		if o.host {
			return o.doctorOnHost(cmd.Context(), named)
		}
		o.named = named
		c, err := o.connect(cmd.Context())
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
		answers, err := o.ask(c, asked, asks)
		if err != nil {
			return err
		}
		return o.show(answers, asked, v)
	}}
}

// ask calls a command on all nodes that have a pod. One that takes long holds up no other.
func (o *options) ask(c *cluster, asked *expected, asks *corev1.PodExecOptions) ([]answer, error) {
	progress := io.Discard
	if file, ok := o.stderr.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		progress = file
	}
	answers := asked.answers()
	group, ctx := errgroup.WithContext(c.Context)
	c.Context = ctx
	places := make(chan struct{}, atOnce)
	var done atomic.Int64
	for i := range answers {
		a := &answers[i]
		pod, runs := asked.pods[a.Node]
		if !runs {
			continue
		}
		places <- struct{}{}
		leave := sync.OnceFunc(func() { <-places })
		late := time.AfterFunc(slow, leave)
		group.Go(func() error {
			defer leave()
			defer late.Stop()
			stdout, stderr, status, err := c.answer(pod, asks)
			if apierrors.IsForbidden(err) {
				return fmt.Errorf("%w: the chart's value execRole.enabled makes the Role nri-rdma-exec in namespace %s, "+
					"which allows it, and its holder may be root on the nodes", err, pod.Namespace)
			}
			node := a.Node
			*a = read(stdout, stderr, status, err)
			if a.Node = node; o.output == cli.FormatJSON {
				a.read.Containers, a.read.Outside = nil, nil // the result has them
			}
			fmt.Fprintf(progress, "\r%d of %d nodes asked ", done.Add(1), len(asked.pods))
			return nil
		})
	}
	err := group.Wait() // an answer has its own error
	fmt.Fprintf(progress, "\r%40s\r", "")
	return answers, err
}

// read makes an answer of what came of a call on a node. With the exit status 3, a result may lack something.
func read(stdout, stderr []byte, status int, err error) (a answer) {
	a.Status = status
	notes := strings.TrimSpace(string(stderr))
	last := notes[strings.LastIndexByte(notes, '\n')+1:]
	switch {
	case err != nil:
		a.Status, a.Error = unanswered, err.Error()
	case status <= 3 && strings.HasPrefix(string(stdout), "{") && json.Unmarshal(stdout, &a.read) == nil:
		if a.Result = stdout; status == unanswered && len(a.read.Missed) == 0 { // status says it in its last line
			a.read.Missed = []string{strings.TrimPrefix(last, "rdma-spec: ")}
		}
	default:
		a.Error = cmp.Or(last, fmt.Sprintf("rdma-spec ended with status %d, and without a result", status))
	}
	return a
}

// show writes what the nodes say, and which of them have not answered or not looked at everything.
func (o *options) show(answers []answer, of *expected, v view) error {
	var rows [][]string
	var notes strings.Builder
	missed, silent := map[string][]string{}, map[string][]string{}
	statuses := map[int]int{}
	for _, a := range answers {
		if a.Error != "" {
			silent[plain(a.Error)] = append(silent[plain(a.Error)], a.Node)
			continue
		}
		statuses[a.Status]++
		for _, row := range v.rows(&a.read, o.all) {
			for i, cell := range row {
				row[i] = strings.ReplaceAll(cell, "rdma-spec repair --root "+hostRoot, "kubectl rdma repair "+a.Node)
			}
			rows = append(rows, append([]string{a.Node}, row...))
		}
		if what := strings.Join(a.read.Missed, ", "); what != "" {
			missed[what] = append(missed[what], a.Node)
		}
	}
	byNode := func(a, b string) int { return strings.Compare(silent[a][0], silent[b][0]) }
	for _, why := range slices.SortedFunc(maps.Keys(silent), byNode) {
		if nodes := silent[why]; len(nodes) == 1 {
			fmt.Fprintf(&notes, "kubectl rdma: node %s does not answer: %s\n", nodes[0], why)
		} else {
			fmt.Fprintf(&notes, "kubectl rdma: %d nodes do not answer: %s: %s\n", len(nodes), some(nodes), why)
		}
	}
	for _, what := range slices.Sorted(maps.Keys(missed)) {
		fmt.Fprintf(&notes, "kubectl rdma: not seen on %s: %s\n", some(missed[what]), plain(what))
	}
	answered, all := statuses[0]+statuses[1]+statuses[2]+statuses[3], max(len(answers), of.desired)
	if of.unlisted != nil && len(o.named) == 0 {
		fmt.Fprintf(&notes, "kubectl rdma: %s: which nodes have no pod, and no plugin although they have an RDMA resource, "+
			"is unknown\n", plain(of.unlisted.Error()))
	}
	err := o.write("nodes", answers, "NODE "+v.header, rows)
	fmt.Fprintf(o.stderr, "%skubectl rdma: %d of %d nodes answer\n", notes.String(), answered, all)
	switch {
	case err != nil:
		return err
	case answered < all:
		return cli.ExitStatus(unanswered)
	case statuses[1] > 0:
		return cli.ErrProblemFound
	case statuses[unanswered] > 0:
		return cli.ExitStatus(unanswered)
	}
	return nil
}

// view is the table of results of rdma-spec: its columns behind NODE, and its rows; all has those that are well.
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
				c.Use.Summary, c.State, strings.Join(append(c.Problems, c.Notes...), "; ")})
		}
	}
	return rows
}}

var doctorView = view{"CHECK STATUS OBJECT TEXT CURE", func(r *result, all bool) (rows [][]string) {
	for _, f := range r.Findings {
		if f.Class != "" {
			f.Cure = f.Class + ": " + f.Cure
		}
		// What no pod of the DaemonSet can see is the same on every node.
		if all || f.Status == "wrong" || f.Status == "ignored" ||
			f.Status == "unknown" && !strings.Contains(f.Text, "cannot be seen from here") {
			rows = append(rows, []string{f.Check, f.Status, f.Object, f.Text, f.Cure})
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
