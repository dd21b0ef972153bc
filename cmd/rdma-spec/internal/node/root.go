// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/archive"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

const (
	rootFlag = "root"
	// readsArchives marks the flag of a command that only reads the node, as an annotation.
	readsArchives = "reads-archives"
)

// AddRootFlag adds the flag --root to a command that only reads the node: it names a folder, or an archive of rdma-spec
// collect. The text says what is read there: "the node's sys and dev".
func AddRootFlag(f *pflag.FlagSet, root *string, what string) {
	f.StringVar(root, rootFlag, "/", "read "+what+" below this `DIR`, or from FILE.tar.gz of rdma-spec collect")
	f.Lookup(rootFlag).Annotations = map[string][]string{readsArchives: {}}
}

// OpenRoot unpacks the archive that the command's --root names, if it names one, and sets the flag to the temporary
// folder. release removes that.
func OpenRoot(cmd *cobra.Command) (release func() error, err error) {
	release = func() error { return nil }
	flag := cmd.Flags().Lookup(rootFlag)
	if flag == nil || flag.Annotations[readsArchives] == nil {
		return release, nil
	}
	folder, remove, err := archive.Open(flag.Value.String())
	if err != nil {
		return release, fmt.Errorf("--root: %w", err)
	}
	if folder == flag.Value.String() {
		return release, nil
	}
	stop := cli.OnSignal(func() { _ = remove() }) // the program ends
	return func() error {
		stop()
		return remove()
	}, flag.Value.Set(folder)
}

// HCANames completes a list of HCAs below a root: the last name in it, by those that are not in it yet.
func HCANames(root *string, others ...string) func(typed string) []string {
	return func(typed string) []string {
		before := typed[:strings.LastIndexByte(typed, ',')+1]
		var words []string
		if before == "" {
			words = others
		}
		node, err := hca.Scan(*root)
		if err != nil {
			return words
		}
		for _, h := range node.HCAs {
			if !strings.Contains(","+before, ","+h.Name+",") {
				words = append(words, before+h.Name)
			}
		}
		return words
	}
}
