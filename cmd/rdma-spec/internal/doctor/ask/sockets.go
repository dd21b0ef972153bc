// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ask answers the doctor's questions on a live node: which container runtimes, plugins and kubelet run, how they are configured,
// and what the processes of a container see. It judges nothing, and changes nothing.
package ask

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
)

// listening returns the inodes of the sockets that listen at a path.
func listening(root, path string) (inodes []string) {
	const accepting = 0x10000 // the kernel's flag of a socket that listens
	text, _ := os.ReadFile(filepath.Join(root, "proc/net/unix"))
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line) // Num RefCount Protocol Flags Type St Inode Path
		if len(fields) < 8 || !doctor.SamePath(fields[7], path) {
			continue
		}
		if flags, err := strconv.ParseUint(fields[3], 16, 32); err == nil && flags&accepting != 0 {
			inodes = append(inodes, fields[6])
		}
	}
	return inodes
}
