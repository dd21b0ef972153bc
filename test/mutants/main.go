// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Command mutants changes packages at random places, and lists the changes that the packages' own tests do not notice:
//
//	mutants -seed 1 -number 40 ./plugin/policy ./spec/hca
//
// A hash of the source at a place decides whether the place is chosen, so changes elsewhere have no influence. All
// mutants of a package are compiled into one test program, which runs once for each mutant. The sources are not
// changed. If a mutant survives that is not in the table, mutants reports an error. -update writes the table.
package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	table = "test/mutants/survivors.tsv"
	// variable is the environment variable with the number of the mutant that a test program runs as.
	variable = "RDMA_SPEC_MUTANT"
	// shortest and factor bound the duration of a run, so that a mutant that hangs is noticed. The bound is a multiple of
	// the duration without a mutant, but at least shortest.
	shortest, factor = 20 * time.Second, 5
)

// chooser is a template of a file that is added to each package.
const chooser = `package %s

import "os"

var onlyMutant = os.Getenv("` + variable + `")

func chosenMutant(number string) bool { return number == onlyMutant }
`

func main() {
	seed := flag.Int("seed", 1, "which mutants are chosen")
	number := flag.Int("number", 40, "how many of each package")
	update := flag.Bool("update", false, "write "+table)
	flag.Parse()
	if err := tryMutants(context.Background(), *seed, *number, *update, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func tryMutants(ctx context.Context, seed, number int, update bool, dirs []string) error {
	known, err := os.ReadFile(table)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	old := strings.SplitAfter(string(known), "\n")
	kept := old
	unknown := 0
	problems := []error(nil)
	for _, dir := range dirs {
		survivors, ran, err := tryPackage(ctx, dir, seed, number)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", dir, err))
			continue
		}
		kept = slices.DeleteFunc(slices.Clone(kept), func(line string) bool { return strings.HasPrefix(line, dir+"\t") })
		fmt.Printf("%s: %d of %d mutants are killed\n", dir, ran-len(survivors), ran)
		for _, m := range survivors {
			line := dir + "\t" + m.name() + "\n"
			kept = append(kept, line)
			if !slices.Contains(old, line) {
				unknown++
				fmt.Printf("  survives: %s", line)
			}
		}
	}
	if update {
		slices.Sort(kept)
		problems = append(problems, os.WriteFile(table, []byte(strings.Join(kept, "")), 0o644))
	} else if unknown > 0 {
		problems = append(problems, fmt.Errorf("%d survivors are not in %s: test what they change, or add them with -update",
			unknown, table))
	}
	return errors.Join(problems...)
}

// choose returns this number of a package's mutants, chosen by the hashes of their names.
func choose(all []mutant, seed, number int) []mutant {
	seen := map[string]int{}
	rank := map[*mutant][32]byte{}
	var order []*mutant
	for i := range all {
		m := &all[i]
		seen[m.name()]++
		rank[m] = sha256.Sum256(fmt.Appendf(nil, "%d %s %d", seed, m.name(), seen[m.name()]))
		order = append(order, m)
	}
	slices.SortFunc(order, func(a, b *mutant) int {
		x := rank[a]
		y := rank[b]
		return cmp.Or(bytes.Compare(x[:], y[:]), cmp.Compare(a.from, b.from))
	})
	var chosen []mutant
	for i, m := range order[:min(number, len(order))] {
		m.number = i + 1
		chosen = append(chosen, *m)
	}
	return chosen
}

// tryPackage returns the mutants that the tests of a package do not notice, and how many mutants ran.
func tryPackage(ctx context.Context, dir string, seed, number int) (survivors []mutant, ran int, err error) {
	scratch, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = os.RemoveAll(scratch) }() // if this fails, only a temporary directory is left
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, 0, err
	}
	var all []mutant
	sources := map[string][]byte{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		source, err := os.ReadFile(file)
		if err != nil {
			return nil, 0, err
		}
		found, err := mutants(filepath.Base(file), source)
		if err != nil {
			return nil, 0, err
		}
		sources[filepath.Base(file)] = source
		all = append(all, found...)
	}
	chosen := choose(all, seed, number)
	program, chosen, err := compile(ctx, dir, scratch, sources, chosen)
	if err != nil {
		return nil, 0, err
	}
	begin := time.Now()
	if out, err := start(ctx, dir, program, 0, 10*time.Minute); err != nil {
		return nil, 0, fmt.Errorf("the tests fail without a mutant: %w\n%s", err, out)
	}
	limit := max(shortest, factor*time.Since(begin))
	survived := make([]bool, len(chosen))
	var running errgroup.Group
	running.SetLimit(runtime.NumCPU())
	for i, m := range chosen {
		running.Go(func() error {
			_, err := start(ctx, dir, program, m.number, limit)
			var exit *exec.ExitError
			survived[i] = err == nil
			if err != nil && !errors.As(err, &exit) {
				return err
			}
			return nil
		})
	}
	err = running.Wait()
	for i, m := range chosen {
		if survived[i] {
			survivors = append(survivors, m)
		}
	}
	return survivors, len(chosen), err
}

// start runs a test program as one of its mutants; number 0 means the original.
func start(ctx context.Context, dir, program string, number int, limit time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, limit+shortest) // the program usually ends by itself
	defer cancel()
	command := exec.CommandContext(ctx, program, "-test.failfast", "-test.timeout="+limit.String())
	command.Dir = dir
	command.WaitDelay = shortest
	command.Env = append(os.Environ(), variable+"="+strconv.Itoa(number))
	return command.CombinedOutput()
}

// compile builds a test program of the package with the mutants. It omits mutants that do not compile.
func compile(ctx context.Context, dir, scratch string, sources map[string][]byte,
	chosen []mutant) (program string, left []mutant, err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return "", nil, err
	}
	program = filepath.Join(scratch, "tests")
	for {
		replaced := map[string]string{}
		name := ""
		written := map[string]string{}
		for file, source := range sources {
			of := slices.Clone(chosen)
			of = slices.DeleteFunc(of, func(m mutant) bool { return m.file != file })
			written[file] = withMutants(source, of)
			for _, m := range of {
				if !strings.Contains(written[file], m.condition()) {
					return "", nil, fmt.Errorf("%s: there is no switch for %s", file, m.name())
				}
			}
			name = regexp.MustCompile(`(?m)^package (\w+)`).FindStringSubmatch(string(source))[1]
		}
		written["chosen_mutant.go"] = fmt.Sprintf(chooser, name)
		for file, text := range written {
			replaced[filepath.Join(dir, file)] = filepath.Join(scratch, file)
			if err := os.WriteFile(filepath.Join(scratch, file), []byte(text), 0o600); err != nil {
				return "", nil, err
			}
		}
		overlay, err := json.Marshal(map[string]any{"Replace": replaced})
		if err == nil {
			err = os.WriteFile(filepath.Join(scratch, "overlay.json"), overlay, 0o600)
		}
		if err != nil {
			return "", nil, err
		}
		command := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-gcflags=-e", "-overlay",
			filepath.Join(scratch, "overlay.json"), "-o", program, dir)
		out, err := command.CombinedOutput()
		if err == nil {
			return program, chosen, nil
		}
		wrong := onLines(string(out), written)
		before := len(chosen)
		chosen = slices.DeleteFunc(chosen, func(m mutant) bool { return wrong[m.number] })
		if len(chosen) == before {
			return "", nil, fmt.Errorf("compile: %w\n%s", err, out)
		}
	}
}

// onLines returns the numbers of the mutants on the lines that the compiler's messages name.
func onLines(said string, files map[string]string) map[int]bool {
	wrong := map[int]bool{}
	for _, place := range regexp.MustCompile(`(\w+\.go):(\d+):`).FindAllStringSubmatch(said, -1) {
		lines := strings.Split(files[place[1]], "\n")
		at, _ := strconv.Atoi(place[2]) // cannot fail, because the pattern matches digits
		if at > len(lines) {
			continue
		}
		for _, found := range regexp.MustCompile(`chosenMutant\("(\d+)"\)`).FindAllStringSubmatch(lines[at-1], -1) {
			number, _ := strconv.Atoi(found[1]) // cannot fail, because the pattern matches digits
			wrong[number] = true
		}
	}
	return wrong
}
