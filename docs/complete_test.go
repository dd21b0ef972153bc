// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/testing/repository"
)

// TestUninstallHasWhatPagesApply checks that the page about uninstalling names each object that the pages about pods
// without the plugin apply. What waits for the plugin waits for ever once that is gone, and a taint stays.
func TestUninstallHasWhatPagesApply(t *testing.T) {
	_, uninstall, _ := strings.Cut(repository.Read(t, "docs/upgrade-and-uninstall.md"), "\n## Uninstall\n")
	count := 0
	for _, file := range []string{"docs/fail-closed.md", "docs/gate.md", "docs/security.md"} {
		for _, applied := range regexp.MustCompile(`(?m)^ *kubectl apply .*-[fk] (\S+)$`).FindAllStringSubmatch(
			repository.Read(t, file), -1) {
			if count++; !strings.Contains(uninstall, applied[1]) {
				t.Errorf("%s applies %s, and nothing says how to remove it", file, applied[1])
			}
		}
	}
	if count < 6 {
		t.Errorf("%d objects found, want more", count)
	}
}
