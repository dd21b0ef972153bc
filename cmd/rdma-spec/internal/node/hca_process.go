// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"io"
	"os/exec"
	"path/filepath"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// ReadHCAs is the hidden command that reads HCAs for the doctor, in a process of its own: no signal interrupts the read
// of an HCA whose firmware hangs, and a process with such a read does not end before it. So the doctor leaves that
// process behind and ends in time.
const ReadHCAs = "read-hcas"

// ReadHCAsCommand is that command.
func ReadHCAsCommand() *cobra.Command {
	var root string
	cmd := &cobra.Command{
		Use:     ReadHCAs + " HCA…",
		Short:   "Read HCAs, and write each as JSON once it has answered",
		Example: "  rdma-spec " + ReadHCAs + " mlx5_0 mlx5_1",
		Hidden:  true,
		RunE: func(cmd *cobra.Command, names []string) error {
			var group sync.WaitGroup
			var writing sync.Mutex
			out := json.NewEncoder(cmd.OutOrStdout())
			for _, name := range names {
				group.Go(func() {
					h := hca.Read(root, name)
					writing.Lock()
					defer writing.Unlock()
					_ = out.Encode(h) // run reports a failed write
				})
			}
			group.Wait()
			return nil
		},
	}
	cmd.Flags().StringVar(&root, "root", "/", "find the node's sys below this `DIR`")
	return cmd
}

// LiveReader is ProcessReader where the root has the kernel's sysfs, else nil: a copy answers at once.
func LiveReader(root string) HCAReader {
	var on unix.Statfs_t
	if err := unix.Statfs(filepath.Join(root, "sys"), &on); err != nil || on.Type != unix.SYSFS_MAGIC {
		return nil
	}
	return ProcessReader(root)
}

// ProcessReader reads the HCAs below a root in a process of its own.
func ProcessReader(root string) HCAReader {
	return func(names []string) <-chan hca.HCA {
		answers := make(chan hca.HCA, len(names))
		go func() {
			defer close(answers)
			reader := exec.Command("/proc/self/exe", append([]string{ReadHCAs, "--root", root}, names...)...)
			out, err := reader.StdoutPipe()
			if err == nil {
				err = reader.Start()
			}
			if err == nil {
				receive(out, answers, len(names))
				return
			}
			for _, name := range names {
				answers <- hca.Read(root, name)
			}
		}()
		return answers
	}
}

// receive sends on what the other process writes, and at most as many as the channel has room for.
func receive(out io.Reader, answers chan<- hca.HCA, most int) {
	decoder := json.NewDecoder(out)
	for range most {
		var h hca.HCA
		if err := decoder.Decode(&h); err != nil {
			return
		}
		answers <- h
	}
}
