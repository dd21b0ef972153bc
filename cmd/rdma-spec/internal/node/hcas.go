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

// HCAReader reads HCAs concurrently, and closes the channel after the last HCA. It returns when the reads have started,
// and sends without waiting for the receiver.
type HCAReader func(names []string) <-chan hca.HCA

// ReadHere returns a reader that reads the HCAs under a root in this process.
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

// ReadListed reads the HCAs of a list. If an HCA does not respond in time, even to a second request, Unread contains
// the error. Such an HCA does not delay the others.
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
		if !hasSysfs(s.Root) { // in a copy, reads always succeed
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
			// On busy CPUs, the process starts slowly, and reads slowly.
			late = time.After(max(timeout/2, slower*time.Since(asked)))
		case <-late:
			over = true
		}
	}
	return listed.Complete(func(name string) hca.HCA {
		if h, ok := got[name]; ok {
			return h
		}
		return hca.HCA{Name: name, NUMANode: -1, Unread: fmt.Sprintf("no response within %s", timeout)}
	})
}

// slower is the maximum ratio of the time to read HCAs to the time to start a process.
const slower = 10

// UsedByPods reports whether a container uses RDMA, or whether the kubelet has RDMA resources.
func (s *Snapshot) UsedByPods() bool {
	kubelet, _ := s.Kubelet() // an unknown kubelet has no resources
	if slices.ContainsFunc(slices.Collect(maps.Keys(kubelet.Allocatable)), resource.IsRDMA) {
		return true
	}
	found, err := s.Containers()
	return err == nil && len(found.Containers) > 0
}

// ReadHCAs is the hidden command that reads HCAs for the doctor in a separate process. If an HCA's firmware hangs, no
// signal interrupts the read, and the process cannot exit before the read ends. Therefore, the doctor leaves this
// process behind and exits in time.
const ReadHCAs = "read-hcas"

// ReadHCAsCommand returns the command read-hcas.
func ReadHCAsCommand() *cobra.Command {
	var root string
	cmd := &cobra.Command{
		Use:     ReadHCAs + " HCA…",
		Short:   "Read the named HCAs, and write each one as JSON as soon as it responds",
		Example: "  rdma-spec " + ReadHCAs + " mlx5_0 mlx5_1",
		Hidden:  true,
		RunE: func(cmd *cobra.Command, names []string) error {
			_, _ = fmt.Fprintln(cmd.OutOrStdout()) // see HCAReader
			out := json.NewEncoder(cmd.OutOrStdout())
			for h := range ReadHere(root)(names) {
				_ = out.Encode(h) // cli reports a failed write
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&root, "root", "/", "find the node's /sys under this `DIR`")
	return cmd
}

// LiveReader returns ProcessReader if the root has the kernel's sysfs; otherwise nil.
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

// ProcessReader returns a reader that reads the HCAs under a root in a separate process.
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
			defer func() { _ = reader.Wait() }() // HCAs without a response are missing
			decoder := json.NewDecoder(out)
			for last := len(names) - 1; last >= 0; last-- { // at most the channel's capacity
				var h hca.HCA
				if err := decoder.Decode(&h); err != nil {
					return
				}
				if last == 0 {
					_ = reader.Wait() // otherwise, a PID 1 that does not reap would inherit it
				}
				answers <- h
			}
		}()
		return answers
	}
}
