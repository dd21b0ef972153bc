// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// If only the main parts are allowed, a test gets the main containerd, and is skipped if it needs another version, even
// if that version is installed.
func TestPart_main(t *testing.T) {
	cache := scratch.Dir(t)
	t.Setenv("XDG_CACHE_HOME", cache)
	for _, version := range []string{"1.7.35", "2.4.2"} {
		dir := filepath.Join(cache, "rdma-spec", "containerd-"+version+"-0")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		scratch.File(t, filepath.Join(dir, "containerd"), "", 0o755)
	}
	for _, test := range []struct {
		parts, version string
		skipped        bool
	}{
		{"", "1.7.35", false},
		{"", "2.4", false},
		{"", "2.3.7", true},
		{"main", "1.7.35", true},
		{"main", "2.4.2", false},
		{"main", "2.4", false},
	} {
		t.Setenv(onlyParts, test.parts)
		skipped := true
		done := make(chan struct{})
		go func() { // Skip ends the goroutine that calls it
			defer close(done)
			Containerd(&skipping{TB: t}, test.version)
			skipped = false
		}()
		<-done
		if skipped != test.skipped {
			t.Errorf("%s=%s, containerd %s: skipped: %t", onlyParts, test.parts, test.version, skipped)
		}
	}
}

// skipping is a testing.TB whose Skip ends the calling goroutine but does not skip the surrounding test.
type skipping struct{ testing.TB }

func (s *skipping) Skipf(string, ...any) { runtime.Goexit() }
