// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/plugin/policy/resource"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// HCAReader reads HCAs, all at once, and closes the channel when it has no more. It returns when it reads, and sends
// without waiting for the receiver.
type HCAReader func(names []string) <-chan hca.HCA

// ReadHere returns a reader of the HCAs below a root in this process.
func ReadHere(root string) HCAReader {
	return func(names []string) <-chan hca.HCA {
		answers := make(chan hca.HCA, len(names))
		reader := hca.NewReader(root)
		var group sync.WaitGroup
		for _, name := range names {
			group.Go(func() { answers <- reader.Read(hca.HCA{Name: name}, hca.All) })
		}
		go func() { group.Wait(); close(answers) }()
		return answers
	}
}

// readHCAs reads all HCAs.
func (s *Snapshot) readHCAs() (*hca.Inventory, error) {
	listed, err := hca.List(s.Root)
	if err != nil || len(listed.HCAs) == 0 {
		return listed, err
	}
	return s.ReadListed(listed), nil
}

// ReadListed reads the HCAs of a list. One that does not answer in time, although it was asked a second time, is
// unread, and costs the others nothing.
func (s *Snapshot) ReadListed(listed *hca.Inventory) *hca.Inventory {
	read := s.ReadHCAs
	got := map[string]hca.HCA{}
	left := func() (names []string) {
		for _, h := range listed.HCAs {
			if got[h.Name].Name == "" {
				names = append(names, h.Name)
			}
		}
		return names
	}
	if read == nil {
		read = ReadHere(s.Root)
		if !hasSysfs(s.Root) { // a copy answers, however slow this process is
			for h := range read(left()) {
				got[h.Name] = h
			}
		}
	}
	timeout := s.Each()
	first := read(left())
	second := (<-chan hca.HCA)(nil)
	var late <-chan time.Time
	for half, over := time.After(timeout/2), false; !over && len(left()) > 0; {
		select {
		case h, more := <-first:
			got[h.Name] = h
			if !more {
				first = nil
			}
		case h, more := <-second:
			got[h.Name] = h
			if !more {
				second = nil
			}
		case <-half:
			asked := time.Now()
			second = read(left())
			// Where others use the CPUs, the process took long to start, and takes long to read.
			late = time.After(max(timeout/2, slower*time.Since(asked)))
		case <-late:
			over = true
		}
	}
	return listed.Complete(func(name string) hca.HCA {
		if h, ok := got[name]; ok {
			return h
		}
		return hca.HCA{Name: name, NUMANode: -1, Unread: fmt.Sprintf("it did not respond within %s", timeout)}
	})
}

// slower is how much longer than the start of a process it may take to read HCAs, which is less work.
const slower = 10

// UsedByPods reports whether a container uses RDMA, or the kubelet has resources for some that would.
func (s *Snapshot) UsedByPods() bool {
	kubelet, _ := s.Kubelet() // what is unknown has none
	if slices.ContainsFunc(slices.Collect(maps.Keys(kubelet.Allocatable)), resource.IsRDMA) {
		return true
	}
	found, err := s.Containers()
	return err == nil && len(found.Containers) > 0
}

// ReadHCAs is the hidden command that reads HCAs for the doctor, in a process of its own: no signal interrupts the read
// of an HCA whose firmware hangs, and a process with such a read does not end before it. So the doctor leaves that
// process behind and ends in time.
const ReadHCAs = "read-hcas"

// ReadHCAsCommand is that command.
func ReadHCAsCommand() *cobra.Command {
	var root string
	cmd := &cobra.Command{
		Use:     ReadHCAs + " HCA…",
		Short:   "Read HCAs, and write each one as JSON as soon as it responds",
		Example: "  rdma-spec " + ReadHCAs + " mlx5_0 mlx5_1",
		Hidden:  true,
		RunE: func(cmd *cobra.Command, names []string) error {
			_, _ = fmt.Fprintln(cmd.OutOrStdout()) // see HCAReader
			out := json.NewEncoder(cmd.OutOrStdout())
			for h := range ReadHere(root)(names) {
				_ = out.Encode(h) // run reports a failed write
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&root, "root", "/", "find the node's /sys under this `DIR`")
	return cmd
}

// LiveReader is ProcessReader where the root has the kernel's sysfs, else nil.
func LiveReader(root string) HCAReader {
	if !hasSysfs(root) {
		return nil
	}
	return ProcessReader(root)
}

// hasSysfs reports whether a root has the kernel's sysfs.
func hasSysfs(root string) bool {
	var on unix.Statfs_t
	return unix.Statfs(filepath.Join(root, "sys"), &on) == nil && on.Type == unix.SYSFS_MAGIC
}

// ProcessReader reads the HCAs below a root in a process of its own.
func ProcessReader(root string) HCAReader {
	return func(names []string) <-chan hca.HCA {
		reader := exec.Command("/proc/self/exe", append([]string{ReadHCAs, "--root", root}, names...)...)
		out, err := reader.StdoutPipe()
		if err == nil {
			err = reader.Start()
		}
		if err == nil {
			_, err = io.ReadFull(out, make([]byte, 1)) // the empty line
		}
		if err != nil {
			return ReadHere(root)(names)
		}
		answers := make(chan hca.HCA, len(names))
		go func() {
			defer close(answers)
			defer func() { _ = reader.Wait() }() // what it has not answered is missing
			decoder := json.NewDecoder(out)
			for last := len(names) - 1; last >= 0; last-- { // at most as many as the channel has room for
				var h hca.HCA
				if err := decoder.Decode(&h); err != nil {
					return
				}
				if last == 0 {
					_ = reader.Wait() // else it is left to a first process that may wait for none
				}
				answers <- h
			}
		}()
		return answers
	}
}
