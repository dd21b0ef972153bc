// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
)

// ignore sets the status of findings that match an entry to ignored. It gives each other wrong or unknown finding the
// entry that would ignore the finding. It returns the entries that match no finding.
func ignore(findings []Finding, entries []node.Ignored) (unused []node.Ignored) {
	used := make([]bool, len(entries))
	for i := range findings {
		f := &findings[i]
		if f.Status != Wrong && f.Status != Unknown {
			continue
		}
		literally := strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(f.Object)
		f.Entry = node.Ignored{Check: f.Check, Object: literally, Reason: "give the reason"}.String()
		for n, entry := range entries {
			if entry.Matches(f.Check, f.Object) {
				used[n] = true
				if f.Status != Ignored {
					f.Status = Ignored
					f.Entry = ""
					f.Text = fmt.Sprintf("%s (ignored: %s).", strings.TrimSuffix(f.Text, "."), entry.Reason)
				}
			}
		}
	}
	for n, entry := range entries {
		if !used[n] {
			unused = append(unused, entry)
		}
	}
	return unused
}
