// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package editor

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/goal"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/record"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
	"github.com/rdma-spec/rdma-spec/spec/files"
	"github.com/rdma-spec/rdma-spec/spec/platform"
)

// ByHand means that people must make a change manually, because it would affect their own lines, or would be in a place
// where it does not persist.
type ByHand struct {
	Problems []string // why the command cannot make the change
	Steps    string   // the manual steps, line by line
}

// Error implements error.
func (b *ByHand) Error() string {
	return "cannot make the change: " + strings.Join(b.Problems, "; ")
}

// byHand returns a ByHand error with the steps that people must take.
func (w *writing) byHand(g record.Goal, tree map[string]any, all []containerd.File, ways [][]set,
	problems []string) error {
	if len(ways) == 0 || len(ways[0]) == 0 {
		return &ByHand{Problems: problems}
	}
	way := ways[0]
	file := all[0]
	if last, is := containerd.Last(all, containerd.Sets(way[0].path[:len(way[0].path)-1]...)); is {
		file = last
	}
	lines, err := tables(way)
	if err != nil {
		return err
	}
	var text strings.Builder
	fmt.Fprintf(&text, "# Make this change manually. %s\n%s", w.where(file), lines)
	if name, isHandler := strings.CutPrefix(g.Feature, goal.Handler); isHandler {
		from := ""
		_, handlers := containerd.Handlers(tree)
		if base, _ := tomledit.Lookup(handlers, g.Asked[goal.Like], containerd.BaseSpecKey); base != nil && base != "" {
			from = fmt.Sprintf(" --from %s", base)
		}
		fmt.Fprintf(&text, "# To write the base spec, run: rdma-spec generate --for containerd%s --to %s\n", from,
			goal.BaseSpec(g.Config, name))
	}
	text.WriteString("# Then restart containerd, and rerun this command. The command must print \"nothing to change\".\n")
	if slices.ContainsFunc(problems, func(problem string) bool {
		return strings.HasPrefix(problem, "/etc/") && strings.HasSuffix(problem, readOnly)
	}) {
		problems = append(slices.Clone(problems[:len(problems)-1]), problems[len(problems)-1]+": "+platform.Immutable(w.Root))
	}
	return &ByHand{Problems: problems, Steps: text.String()}
}

// where returns the instruction for the file to which people must add the lines.
func (w *writing) where(file containerd.File) string {
	name := files.OnNode(w.Root, file.Path)
	switch {
	case w.DropIns != "":
		return "In " + w.DropIns + ", find the last file that contains the table, and add these lines to the table."
	case strings.HasPrefix(name, "/nix/store/"):
		return "Nix builds " + name + ": set these values in virtualisation.containerd.settings instead."
	case strings.HasPrefix(name, "/usr/"):
		return fmt.Sprintf("Copy %s to /etc/containerd/config.toml, and add these lines to the copy. Then set "+
			"CONTAINERD_CONFIG=/etc/containerd/config.toml in a drop-in for containerd's unit.", name)
	case strings.HasPrefix(name, "/run/"):
		return fmt.Sprintf("%s is generated at each boot, so do not edit that file. Copy its content to a file under %s "+
			"that %s imports, and add these lines to the copy.", name, filepath.Dir(w.Config), w.Config)
	case w.Rendered(file):
		return "Add these lines to the table in " + w.Template + "."
	}
	return "Add these lines to the table in " + file.Path + "; the file can contain the table only once."
}
