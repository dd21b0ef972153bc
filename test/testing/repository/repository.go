// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package repository gives tests the files of the repository, and the programs that are built from it.
package repository

import (
	"os"
	"path/filepath"
	"testing"
)

// Path returns the path of a file, which is named from the top folder. An absolute path stays.
func Path(t testing.TB, file string) string {
	t.Helper()
	if filepath.IsAbs(file) {
		return file
	}
	folder, err := os.Getwd() // that of the package
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(folder, "go.mod")); err == nil {
			return filepath.Join(folder, file)
		}
		if folder == filepath.Dir(folder) {
			t.Fatal("no folder above has a go.mod")
		}
		folder = filepath.Dir(folder)
	}
}

// Read returns a file, named as in Path.
func Read(t testing.TB, file string) string {
	t.Helper()
	text, err := os.ReadFile(Path(t, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
