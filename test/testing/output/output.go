// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package output collects what a program or a log writes, and lets tests read it in the meantime.
package output

import (
	"bytes"
	"sync"
)

// Buffer is a bytes.Buffer that is safe for concurrent use. The zero Buffer is empty.
type Buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write appends to the buffer. It never fails.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// String returns everything that was written.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
