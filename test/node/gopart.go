// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sort"
	"strings"
)

// goModule describes how to build the tools of the module in the directory parts/NAME. Its go.mod and go.sum pin each
// version by checksum.
type goModule struct {
	name   string
	cost   string
	tags   string
	testOf string // the package whose test binary is the tool; "" builds the tools that go.mod names
	needsC bool
	// stamps are the variables that release builds of the tools set, as NAME=VALUE. Without them, a program does not know
	// its own version.
	stamps []string
}

// compilerMemory makes the compiler collect garbage only above 2 GiB. Together with -dwarf=false, which omits data that
// the linker would strip, this saves a third of the build time.
var compilerMemory = []string{"GOGC=off", "GOMEMLIMIT=2GiB"}

// goPart returns the part that contains a module's tools.
func (r recipeBook) goPart(m goModule) part {
	dir := filepath.Join(r.source, "parts", m.name)
	link := "-s -w"
	for _, stamp := range m.stamps {
		link += " -X " + stamp
	}
	recipe := []string{m.tags, link, runtime.GOARCH}
	env := []string{"CGO_ENABLED=0"}
	if m.needsC {
		env = []string{"CGO_ENABLED=1"}
		recipe = append(recipe, r.host)
	}
	recipe = append(recipe, env...)
	own, _ := filepath.Glob(filepath.Join(dir, "*.go")) // the pattern is valid
	for _, file := range append([]string{filepath.Join(dir, "go.mod"), filepath.Join(dir, "go.sum")}, own...) {
		recipe = append(recipe, readRecipe(file))
	}
	command := []string{"build"}
	what := "tool"
	if m.testOf != "" {
		command = []string{"test", "-c"}
		what = m.testOf
		recipe = append(recipe, m.testOf)
	}
	return part{name: m.name, recipe: recipe, cost: m.cost, compiled: true,
		build: func(ctx context.Context, target string) error {
			flags := []string{"-mod=readonly", "-trimpath", "-gcflags=all=-dwarf=false", "-ldflags=" + link, "-tags=" + m.tags,
				"-o", target + "/", what}
			return run(ctx, dir, append(env, compilerMemory...), "go", slices.Concat(command, flags)...)
		}}
}

// version returns the version of a module in a part's go.mod, such as v1.36.3.
func (r recipeBook) version(part, module string) string {
	for line := range strings.Lines(readRecipe(filepath.Join(r.source, "parts", part, "go.mod"))) {
		if words := strings.Fields(line); len(words) > 1 && words[0] == module {
			return words[1]
		}
	}
	return ""
}

// agent returns the part that contains this repository's program for running jobs in the guest.
func (r recipeBook) agent() part {
	recipe := []string{runtime.GOARCH, readRecipe(filepath.Join(r.source, "../../go.sum"))}
	var sources []string
	for _, dir := range []string{"agent", "wire"} {
		found, _ := filepath.Glob(filepath.Join(r.source, dir, "*.go")) // the pattern is valid
		sources = append(sources, found...)
	}
	sort.Strings(sources)
	for _, source := range sources {
		recipe = append(recipe, readRecipe(source))
	}
	return part{name: "agent", recipe: recipe, cost: "a few seconds",
		build: func(ctx context.Context, dir string) error {
			return run(ctx, r.source, []string{"CGO_ENABLED=0"}, "go", "build", "-trimpath", "-ldflags=-s -w",
				"-o", dir+"/", "./agent")
		}}
}

// readRecipe returns a file's content. If the file cannot be read, it returns the text of the error, so that the recipe
// differs; the build that needs the file then fails.
func readRecipe(path string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(content)
}
