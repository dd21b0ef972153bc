// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Command suite runs the parts of `make test` and `make test-all`, as many at once as keep the host's cores busy, and
// prints a table of them at the end.
//
// A part is a make target whose output is that of `go test -v` where SUITE is set, or of any other program, the number
// of places that it takes, of which each core has two, and the part before it that makes what it needs, if there is
// one. It fails where its target fails, where a pattern of tests matches none, or where what it needs was not made:
//
//	suite prepare=2 unit=1 node-main=1:prepare
//
// Parts start in the order in which they are given as places become free, so the longest belong first. What a part
// prints goes to bin/log/PART.log. What failed is said at the end, and what was skipped is in bin/log/skipped.log, or
// is printed with -v. suite knows nothing about what a part tests.
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

// lastLines is how many lines of its log are shown of a part that fails without a failed test.
const lastLines = 30

// part is one make target: what it needs, and what became of it.
type part struct {
	name   string
	places int
	after  *part // makes what this one needs; nil: nothing has to be made
	needed bool  // another part waits for this one
	ended  bool
	tests  results
	took   time.Duration
	failed error
	// computed is the CPU time of its processes, and of those of a node
	computed time.Duration
}

func main() {
	// A part waits for a third of its time and more: one for each core would leave cores idle.
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

// parseParts reads NAME=PLACES or NAME=PLACES:AFTER. A part that wants more places than there are gets all of them.
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

// schedule runs each part once. The first part that fits into the free places, and that waits for none, starts next.
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

// log is the file with all that the part prints.
func (p *part) log() string { return filepath.Join(logDir, p.name+".log") }

// run runs the part and reports on out how it went.
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

// niceness is how much the part gives way to others: to one that others wait for, and to nodes. A compiler takes all
// the cores that it gets, and deadlines on a node pass while its emulated CPU stands still.
func (p *part) niceness() string {
	if p.needed || strings.HasPrefix(p.name, "node-") {
		return "0"
	}
	return "5"
}

// makeInto makes the part's target, keeps what it prints in a file, and counts the tests in it.
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
		_, _ = io.Copy(io.Discard, events) // the target must never wait for a reader that is gone
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
	_ = said.Close() // a pipe in memory: cannot fail
	counting := <-counted
	if err == nil && len(p.tests.failed) > 0 {
		err = fmt.Errorf("%d tests failed although the target succeeded", len(p.tests.failed))
	}
	if err == nil && p.tests.unmatched {
		err = errors.New("a pattern of tests matches none")
	}
	return cmp.Or(err, counting)
}

// longestFirst returns the parts by the time that they took.
func longestFirst(parts []*part) []*part {
	return slices.SortedFunc(slices.Values(parts), func(a, b *part) int { return cmp.Compare(b.took, a.took) })
}

// printTable prints the parts, the longest first, and the sum of all.
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
	_ = table.Flush() // out is standard output
	fmt.Fprintf(out, "\nin %s\n%d passed, %d failed, %d skipped\n", took.Round(time.Second), passed, failed, skipped)
}

// reportSkipped writes down which tests were skipped, and why, and says where, or prints all of it.
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

// printFailures prints what the failed tests have logged: of a part that fails without one, what it printed last.
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
