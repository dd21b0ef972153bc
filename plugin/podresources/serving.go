// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package podresources

import (
	"os"
	"sync"
)

// serving remembers the socket at which a kubelet was last seen. Each kubelet makes a socket of its own.
type serving struct {
	mu   sync.Mutex
	seen os.FileInfo
}

// changed reports whether the socket is another one than the last time. A file system may use an inode's number again at once,
// but not with the same time.
func (s *serving) changed(socket string) bool {
	info, err := os.Stat(socket)
	if err != nil {
		return false // the look-up fails and says why
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	same := s.seen != nil && os.SameFile(s.seen, info) && s.seen.ModTime().Equal(info.ModTime())
	s.seen = info
	return !same
}
