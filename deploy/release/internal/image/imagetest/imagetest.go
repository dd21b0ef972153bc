// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package imagetest reads the contents of an image for tests.
package imagetest

import (
	"archive/tar"
	"errors"
	"io"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// Programs returns the contents of an image's programs by path: the files that are executable, belong to root, and have
// the given modification time.
func Programs(t testing.TB, image v1.Image, created time.Time) map[string]string {
	t.Helper()
	unpacked := mutate.Extract(image)
	defer func() { _ = unpacked.Close() }() // the archive was read to its end
	got := map[string]string{}
	for files := tar.NewReader(unpacked); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return got
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(files)
		if err != nil {
			t.Fatal(err)
		}
		if header.Typeflag == tar.TypeReg && header.Mode == 0o755 && header.Uid == 0 && header.Gid == 0 &&
			header.ModTime.Equal(created) {
			got["/"+header.Name] = string(content)
		}
	}
}
