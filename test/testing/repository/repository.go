// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package repository provides the files of this repository to tests, and the programs that are built from it.
package repository

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Path returns the path of a file whose name is relative to the repository's top directory. It returns an absolute path
// unchanged.
func Path(t testing.TB, file string) string {
	t.Helper()
	if filepath.IsAbs(file) {
		return file
	}
	dir, err := os.Getwd() // the directory of the tested package
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(dir, file)
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("no directory above has a go.mod")
		}
		dir = filepath.Dir(dir)
	}
}

// Read returns the content of a file, which is named as in Path.
func Read(t testing.TB, file string) string {
	t.Helper()
	text, err := os.ReadFile(Path(t, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Containerfile parses the text of a Containerfile. It returns the paths of the programs in the image, and the entry
// point.
func Containerfile(t testing.TB, text string) (programs []string, entrypoint string) {
	t.Helper()
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		switch {
		case len(words) == 0 || words[0] == "#" || line == "FROM scratch\n":
		case words[0] == "COPY":
			for _, name := range words[1 : len(words)-1] {
				programs = append(programs, words[len(words)-1]+name)
			}
		case words[0] == "ENTRYPOINT":
			entrypoint = strings.Trim(words[1], `[]"`)
		default:
			t.Fatalf("Containerfile: this test does not understand %q", line)
		}
	}
	return programs, entrypoint
}

const (
	// onlyParts is an environment variable. If it is "main", the only part that tests can use is the main containerd, so
	// that their result does not depend on what else was built on this machine.
	onlyParts      = "RDMA_TEST_PARTS"
	mainContainerd = "containerd-2.4"
)

// Part returns the path of a program that was built for the tests' node. The pattern is a glob pattern below the cache
// directory; if it matches several programs, Part returns the last one in alphabetical order. It skips the test if no
// program matches.
func Part(t testing.TB, pattern string) string {
	t.Helper()
	if os.Getenv(onlyParts) == "main" && !strings.HasPrefix(pattern, mainContainerd) {
		t.Skipf("%s is not one of the main parts: make configure-older runs this", pattern)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Skip(err)
	}
	found, err := filepath.Glob(filepath.Join(cache, "rdma-spec", pattern))
	if err != nil || len(found) == 0 {
		t.Skipf("no %s: `make e2e` builds it for the node", pattern)
	}
	return found[len(found)-1]
}

// Containerd returns the path of the containerd whose version begins with the given one, as Part does.
func Containerd(t testing.TB, version string) string {
	t.Helper()
	return Part(t, "containerd-"+version+"*/containerd")
}
