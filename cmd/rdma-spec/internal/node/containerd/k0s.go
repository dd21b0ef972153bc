// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"regexp"

	"github.com/rdma-spec/rdma-spec/spec/files"
)

// k0sManaged is what k0s begins its configuration with; older ones have an empty line before it.
var k0sManaged = regexp.MustCompile(`\A(\r?\n)*# k0s_managed=true\r?(\n|\z)`)

// managed reports whether k0s writes its configuration at each start, and loads its drop-ins: where people have removed
// the mark, it does neither.
func managed(file string) bool {
	text, err := files.Content(file)
	return err == nil && (text == nil || k0sManaged.Match(text))
}
