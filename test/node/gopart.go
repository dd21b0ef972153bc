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

// goModule is how to build the tools of the module in the directory parts/NAME.
// Its go.mod and go.sum pin every version by checksum.
type goModule struct {
	name   string
	cost   string
	tags   string
	testOf string // the package whose tests are the tool; "" builds the tools that go.mod names
	needsC bool
	// stamps are variables that its releases set when they are built, NAME=VALUE:
	// without them a program does not know its own version.
	stamps []string
}

// compilerMemory lets the compiler collect no garbage below 2 GiB, and -dwarf=false spares it what the linker would
// strip: together a third of a build.
var compilerMemory = []string{"GOGC=off", "GOMEMLIMIT=2GiB"}

// goPart is a module's tools, built.
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
	own, _ := filepath.Glob(filepath.Join(dir, "*.go")) // the pattern is sound
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

// version is the version of a module in a part's go.mod, as in v1.36.3.
func (r recipeBook) version(part, module string) string {
	for line := range strings.Lines(readRecipe(filepath.Join(r.source, "parts", part, "go.mod"))) {
		if words := strings.Fields(line); len(words) > 1 && words[0] == module {
			return words[1]
		}
	}
	return ""
}

// agent is the program of this module that runs jobs in the guest.
func (r recipeBook) agent() part {
	recipe := []string{runtime.GOARCH, readRecipe(filepath.Join(r.source, "../../go.sum"))}
	var sources []string
	for _, dir := range []string{"agent", "wire"} {
		found, _ := filepath.Glob(filepath.Join(r.source, dir, "*.go")) // the pattern is sound
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

// readRecipe returns a file's content. One that is missing changes the recipe,
// and the build that needs it will say so.
func readRecipe(path string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(content)
}
