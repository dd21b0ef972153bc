// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

func TestEnsureBuildsOnce(t *testing.T) {
	cache := scratch.Dir(t)
	var built atomic.Int32
	p := part{name: "thing", recipe: []string{"1"}, build: func(_ context.Context, dir string) error {
		built.Add(1)
		return os.WriteFile(filepath.Join(dir, "file"), []byte("whole"), 0o644)
	}}
	var clones sync.WaitGroup
	for range 5 {
		clones.Go(func() {
			if err := ensure(t.Context(), cache, p, io.Discard); err != nil {
				t.Error(err)
			}
		})
	}
	clones.Wait()
	if built.Load() != 1 {
		t.Errorf("built %d times", built.Load())
	}
	if got, err := os.ReadFile(filepath.Join(p.dir(cache), "file")); string(got) != "whole" {
		t.Errorf("the part holds %q, %v", got, err)
	}
}

func TestEnsureLeavesNothingHalf(t *testing.T) {
	cache := scratch.Dir(t)
	broken := errors.New("no space")
	p := part{name: "thing", recipe: []string{"1"}, build: func(_ context.Context, dir string) error {
		if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o644); err != nil {
			return err
		}
		return broken
	}}
	if err := ensure(t.Context(), cache, p, io.Discard); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	left, err := os.ReadDir(cache)
	if err != nil || len(left) != 1 || left[0].Name() != "thing.lock" {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestDir(t *testing.T) {
	same := part{name: "a", recipe: []string{"1", "2"}}
	for _, other := range []part{
		{name: "b", recipe: []string{"1", "2"}},
		{name: "a", recipe: []string{"12"}},
		{name: "a", recipe: []string{"1", "3"}},
	} {
		if same.dir("/c") == other.dir("/c") {
			t.Errorf("%v and %v share a directory", same, other)
		}
	}
	if again := (part{name: "a", recipe: []string{"1", "2"}}); same.dir("/c") != again.dir("/c") {
		t.Error("the same recipe has two directories")
	}
}

func TestLockWaits(t *testing.T) {
	path := filepath.Join(scratch.Dir(t), "lock")
	unlock, err := lock(t.Context(), path, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := lock(ended, path, io.Discard); !errors.Is(err, context.Canceled) {
		t.Errorf("a lock that is held was given: %v", err)
	}
	unlock()
	again, err := lock(t.Context(), path, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	again()
}

// TestRecipes checks that each part's recipe contains everything from which the part is built.
func TestRecipes(t *testing.T) {
	all, err := recipes()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"containerd-1.7.35", "containerd-2.2.9", "containerd-2.3.7",
		"containerd-2.4.2", "runc", "kubernetes"} {
		for _, file := range []string{"go.mod", "go.sum"} {
			if path := filepath.Join(all.source, "parts", name, file); !exists(path) {
				t.Errorf("no %s", path)
			}
		}
	}
	names := map[string]bool{}
	for _, p := range all.all() {
		if names[p.name] {
			t.Errorf("two parts are called %s", p.name)
		}
		names[p.name] = true
	}
	if _, err := all.selected("spare"); err == nil {
		t.Error("parts that do not exist were selected")
	}
}
