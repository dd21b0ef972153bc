// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/testing/repository"
)

// TestReadmeIsShort checks that README.md keeps to what a new reader needs.
func TestReadmeIsShort(t *testing.T) {
	const most = 170
	if lines := strings.Count(repository.Read(t, "README.md"), "\n"); lines > most {
		t.Errorf("README.md has %d lines, want %d at most", lines, most)
	}
}
