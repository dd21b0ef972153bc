// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Command suite runs the parts of `make test` and `make test-all`, as many at the same time as keep the host's cores
// busy. At the end, it prints a table of the parts.
//
// A part is a make target. If SUITE is set, the target's output is that of `go test -v`, or of any other program. Each
// part takes a number of places, of which each core has two. A part can name an earlier part that makes what it needs.
// A part fails if its target fails, if a pattern of tests matches none, or if the part that it needs failed. For
// example:
//
//	suite prepare=2 unit=1 node-main=1:prepare
//
// Parts start in the given order when places become free, so list the longest first. A part's output is in
// bin/log/PART.log. Failures are printed at the end. Skipped tests are listed in bin/log/skipped.log, or printed with
// -v. suite does not know what a part tests.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

const (
	logDir     = "bin/log"
	skippedLog = "bin/log/skipped.log"
)

// lastLines is how many of the last lines of its log are shown for a part that fails without a failed test.
const lastLines = 30

// part is one make target: what it needs, and its result.
type part struct {
	name   string
	places int
	after  *part // the part that makes what this part needs; nil if there is none
	needed bool  // another part waits for this one
	ended  bool
	tests  results
	took   time.Duration
	failed error
	// computed is the CPU time of its processes, including those of a node.
	computed time.Duration
}

func main() {
	// A part waits for at least a third of its time, so with one part per core, cores would be idle.
	places := 2 * runtime.NumCPU()
	verbose := flag.Bool("v", false, "print which tests were skipped, and why")
	flag.Parse()
	parts, err := parseParts(flag.Args(), places)
	if err == nil {
		err = os.MkdirAll(logDir, 0o755)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "suite:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	begin := time.Now()
	schedule(parts, places, func(p *part) { p.run(ctx, os.Stdout) })
	stop()
	printTable(os.Stdout, parts, time.Since(begin))
	if err := reportSkipped(os.Stdout, parts, *verbose); err != nil {
		fmt.Fprintln(os.Stderr, "suite:", err)
	}
	printFailures(os.Stdout, parts)
	if slices.ContainsFunc(parts, func(p *part) bool { return p.failed != nil }) {
		os.Exit(1)
	}
}

// parseParts parses NAME=PLACES or NAME=PLACES:AFTER. A part that requests more places than there are gets all of them.
func parseParts(args []string, places int) ([]*part, error) {
	var parts []*part
	for _, arg := range args {
		name, wanted, found := strings.Cut(arg, "=")
		wanted, after, waits := strings.Cut(wanted, ":")
		n, err := strconv.Atoi(wanted)
		if !found || err != nil || n < 1 || name == "" {
			return nil, fmt.Errorf("%q is not a part: write TARGET=PLACES, as in unit=1", arg)
		}
		p := &part{name: name, places: min(n, places)}
		if waits {
			at := slices.IndexFunc(parts, func(other *part) bool { return other.name == after })
			if at < 0 {
				return nil, fmt.Errorf("%q waits for a part that is not before it: %q", arg, after)
			}
			p.after = parts[at]
			p.after.needed = true
		}
		parts = append(parts, p)
	}
	if len(parts) == 0 {
		return nil, fmt.Errorf("no parts: write TARGET=PLACES, as in unit=1")
	}
	return parts, nil
}

// schedule runs each part once. The next part to start is the first one that fits into the free places and does not
// wait for another part.
func schedule(parts []*part, free int, run func(*part)) {
	waiting := slices.Clone(parts)
	ended := make(chan *part)
	for running := 0; len(waiting) > 0 || running > 0; {
		next := slices.IndexFunc(waiting, func(p *part) bool { return p.places <= free && (p.after == nil || p.after.ended) })
		if next < 0 {
			p := <-ended
			p.ended = true
			free += p.places
			running--
			continue
		}
		p := waiting[next]
		waiting = slices.Delete(waiting, next, next+1)
		free -= p.places
		running++
		go func() {
			run(p)
			ended <- p
		}()
	}
}

// log returns the path of the file that contains the part's output.
func (p *part) log() string { return filepath.Join(logDir, p.name+".log") }

// run runs the part, and prints its result to out.
func (p *part) run(ctx context.Context, out io.Writer) {
	if p.after != nil && p.after.failed != nil {
		p.failed = fmt.Errorf("not run: %s failed", p.after.name)
		return
	}
	begin := time.Now()
	log := p.log()
	p.failed = p.makeInto(ctx, log)
	p.took = time.Since(begin)
	if p.failed == nil {
		fmt.Fprintf(out, "%s  %s ok, %d tests in %s\n", time.Now().Format(time.TimeOnly), p.name, p.tests.passed,
			p.took.Round(time.Second))
		return
	}
	fmt.Fprintf(out, "%s  %s FAILED after %s: %v; see %s\n", time.Now().Format(time.TimeOnly), p.name, p.took.Round(time.Second),
		p.failed, log)
}

// niceness returns the part's niceness. Parts for which others wait, and nodes, have priority over other parts: a
// compiler uses all cores that it can get, and timeouts on a node expire while the node's emulated CPU does not run.
func (p *part) niceness() string {
	if p.needed || strings.HasPrefix(p.name, "node-") {
		return "0"
	}
	return "5"
}

// makeInto makes the part's target, writes its output to a file, and counts its tests.
func (p *part) makeInto(ctx context.Context, file string) error {
	log, err := os.Create(file)
	if err != nil {
		return err
	}
	defer log.Close() //nolint:errcheck // it only helps a reader
	events, said := io.Pipe()
	counted := make(chan error, 1)
	go func() {
		err := p.tests.count(ctx, events)
		_, _ = io.Copy(io.Discard, events) // read the rest, so that the target never blocks
		counted <- err
	}()
	command := exec.CommandContext(ctx, "nice", "-n", p.niceness(), "make", "--no-print-directory", p.name, "SUITE=yes")
	command.Stdout = io.MultiWriter(log, said)
	command.Stderr = command.Stdout
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGTERM) }
	err = command.Run()
	if ended := command.ProcessState; ended != nil {
		p.computed = ended.UserTime() + ended.SystemTime()
	}
	_ = said.Close() // a pipe in memory, which cannot fail
	counting := <-counted
	if err == nil && len(p.tests.failed) > 0 {
		err = fmt.Errorf("%d tests failed although the target succeeded", len(p.tests.failed))
	}
	if err == nil && p.tests.unmatched {
		err = errors.New("a pattern of tests matches none")
	}
	return cmp.Or(err, counting)
}

// longestFirst returns the parts, sorted by duration in descending order.
func longestFirst(parts []*part) []*part {
	return slices.SortedFunc(slices.Values(parts), func(a, b *part) int { return cmp.Compare(b.took, a.took) })
}

// printTable prints the parts with the longest first, and their sum.
func printTable(out io.Writer, parts []*part, took time.Duration) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nPART\tTESTS\tFAILED\tSKIPPED\tTIME\tCPU TIME\tLONGEST")
	var passed, failed, skipped int
	for _, p := range longestFirst(parts) {
		t := &p.tests
		result := fmt.Sprint(len(t.failed))
		if p.failed != nil {
			result += " (" + p.failed.Error() + ")"
		}
		fmt.Fprintf(table, "%s\t%d\t%s\t%d\t%s\t%s\t%s\n", p.name, t.passed, result, len(t.skipped),
			p.took.Round(time.Second), p.computed.Round(time.Second), t.longest())
		passed += t.passed
		failed += max(len(t.failed), count(p.failed != nil))
		skipped += len(t.skipped)
	}
	_ = table.Flush() // the output is standard output
	fmt.Fprintf(out, "\nin %s\n%d passed, %d failed, %d skipped\n", took.Round(time.Second), passed, failed, skipped)
}

// reportSkipped writes the skipped tests and the reasons to a file and prints the file's path. If verbose is set, it
// prints them instead.
func reportSkipped(out io.Writer, parts []*part, verbose bool) error {
	var all strings.Builder
	for _, p := range longestFirst(parts) {
		for _, s := range p.tests.skipped {
			fmt.Fprintf(&all, "skipped in %s: %s\n", p.name, s)
		}
	}
	switch {
	case verbose:
		fmt.Fprint(out, all.String())
	case all.Len() > 0:
		fmt.Fprintf(out, "%s says what was skipped, and why\n", skippedLog)
	}
	return os.WriteFile(skippedLog, []byte(all.String()), 0o644)
}

// printFailures prints what failed tests have logged. For a part that fails without a failed test, it prints the last
// lines of its output.
func printFailures(out io.Writer, parts []*part) {
	for _, p := range longestFirst(parts) {
		for _, f := range p.tests.failed {
			fmt.Fprintf(out, "\nFAILED in %s: %s\n", p.name, strings.TrimSpace(f.dir+" "+f.test))
			printIndented(out, f.said)
		}
		if p.failed != nil && len(p.tests.failed) == 0 {
			fmt.Fprintf(out, "\nFAILED: %s: %v\n", p.name, p.failed)
			if text, err := os.ReadFile(p.log()); err == nil {
				lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
				printIndented(out, lines[max(0, len(lines)-lastLines):])
			}
		}
		if p.failed != nil {
			fmt.Fprintf(out, "all that %s printed is in %s\n", p.name, p.log())
		}
	}
}

func printIndented(out io.Writer, lines []string) {
	for _, line := range lines {
		fmt.Fprintf(out, "  %.300s\n", line)
	}
}

func count(condition bool) int {
	if condition {
		return 1
	}
	return 0
}
