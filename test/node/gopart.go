// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"sort"
)

// goPart is what the module in the folder parts/NAME names as its tools, built.
// Its go.mod and go.sum pin every version by checksum.
func (r recipeBook) goPart(name, cost, tags string, env []string) part {
	module := filepath.Join(r.source, "parts", name)
	if env == nil {
		env = []string{"CGO_ENABLED=0"}
	}
	recipe := append([]string{tags, runtime.GOARCH}, env...)
	for _, file := range []string{"go.mod", "go.sum"} {
		recipe = append(recipe, readRecipe(filepath.Join(module, file)))
	}
	return part{name: name, recipe: recipe, cost: cost, build: func(ctx context.Context, folder string) error {
		return run(ctx, module, env, "go", "build", "-mod=readonly", "-trimpath", "-ldflags=-s -w",
			"-tags="+tags, "-o", folder+"/", "tool")
	}}
}

// agent is the program of this module that runs jobs in the guest.
func (r recipeBook) agent() part {
	recipe := []string{runtime.GOARCH, readRecipe(filepath.Join(r.source, "../../go.sum"))}
	var sources []string
	for _, folder := range []string{"agent", "wire"} {
		found, _ := filepath.Glob(filepath.Join(r.source, folder, "*.go")) // the pattern is sound
		sources = append(sources, found...)
	}
	sort.Strings(sources)
	for _, source := range sources {
		recipe = append(recipe, readRecipe(source))
	}
	return part{name: "agent", recipe: recipe, cost: "a few seconds", build: func(ctx context.Context, folder string) error {
		return run(ctx, r.source, []string{"CGO_ENABLED=0"}, "go", "build", "-trimpath", "-ldflags=-s -w",
			"-o", folder+"/", "./agent")
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
