// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

func TestMatch(t *testing.T) {
	root := scratch.Dir(t, "a", "b", "empty", "large")
	scratch.Files(t, root, map[string]string{"a/2.so": "", "a/1.so": "", "a/1.txt": "", "b/3.so": ""}, 0o600)
	tree, err := Open(root)
	must.Succeed(t, err)
	t.Cleanup(func() { _ = tree.Close() }) // it was only read
	got, err := tree.Match("*/*.so")
	if want := []string{"a/1.so", "a/2.so", "b/3.so"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
	for i := range mostMatched + 1 { // a container's author can create as many files
		must.Succeed(t, os.Link(filepath.Join(root, "a/1.so"), filepath.Join(root, "large", fmt.Sprint(i))))
	}
	if got, err = tree.Match("large/*"); len(got) > 0 || err == nil || !strings.Contains(err.Error(), "large has more than 65536") {
		t.Errorf("a large directory: %d names, %v", len(got), err)
	}
}
