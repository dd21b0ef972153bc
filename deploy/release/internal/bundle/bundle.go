// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bundle packs files reproducibly: all archives of the same files are identical. The files in an archive are
// sorted, belong to root, and have the same modification time.
package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// File is a file in an archive.
type File struct {
	Name    string // relative, with slashes
	Mode    int64
	Content []byte
}

// Tar returns the files and their directories as an uncompressed tar archive. The files are sorted by name.
func Tar(files []File, modified time.Time) ([]byte, error) {
	files = slices.Clone(files)
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	dirs := map[string]bool{}
	for _, f := range files {
		for _, dir := range parents(f.Name) {
			if dirs[dir] {
				continue
			}
			dirs[dir] = true
			if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755,
				ModTime: modified}); err != nil {
				return nil, err
			}
		}
		header := &tar.Header{Typeflag: tar.TypeReg, Name: f.Name, Mode: f.Mode,
			Size: int64(len(f.Content)), ModTime: modified}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.Content); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return packed.Bytes(), err
}

// parents returns the parent directories of a file, beginning with the top directory.
func parents(name string) (all []string) {
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		all = append(all, dir)
	}
	slices.Reverse(all)
	return all
}

// Gzip compresses a text. The gzip header contains no name and no time.
func Gzip(text []byte) ([]byte, error) {
	var packed bytes.Buffer
	w, err := gzip.NewWriterLevel(&packed, gzip.DefaultCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(text); err != nil {
		return nil, err
	}
	err = w.Close()
	return packed.Bytes(), err
}

// Read reads a file on the host, and returns it with the given name and mode.
func Read(file, name string, mode int64) (File, error) {
	content, err := os.ReadFile(file)
	return File{name, mode, content}, err
}

// Dir returns all regular files below a directory on the host, with mode 0644. It skips hidden directories.
func Dir(dir string) (files []File, err error) {
	err = filepath.WalkDir(dir, func(file string, entry os.DirEntry, err error) error {
		if err == nil && entry.IsDir() && strings.HasPrefix(entry.Name(), ".") && file != dir {
			return filepath.SkipDir
		}
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		name, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		f, err := Read(file, filepath.ToSlash(name), 0o644)
		files = append(files, f)
		return err
	})
	return files, err
}
