// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"sync"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/archive"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
)

// GIDs returns the GID table of a port. The table is read only once, because it can have a thousand files.
func (s *Snapshot) GIDs(hca string, port int) ([]process.GID, error) {
	at := fmt.Sprintf("sys/class/infiniband/%s/ports/%d", hca, port)
	table, _ := s.gids.LoadOrStore(at, sync.OnceValues(func() ([]process.GID, error) {
		return process.GIDs(at, s.Files.Match, func(name string) (string, error) {
			text, err := s.Files.Read(name, archive.MaxFile)
			return string(text), err
		})
	}))
	return table.(func() ([]process.GID, error))()
}
