// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// blockedFile is a file that cannot be read for a while, as a port's state whose HCA does not answer. The kernel asks
// the file's watcher (fanotify) whether a read may go on, and the watcher takes its time.
type blockedFile struct {
	events *os.File
	mu     sync.Mutex
	held   []int32       // the descriptors of the reads that wait
	most   int           // how many waited at a time
	waits  chan struct{} // closed when the first read waits
}

// block holds up each read of a file until release is called. It needs root.
func block(t testing.TB, path string) *blockedFile {
	t.Helper()
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_CONTENT|unix.FAN_CLOEXEC|unix.FAN_NONBLOCK, unix.O_RDONLY|unix.O_CLOEXEC)
	if err != nil {
		t.Fatalf("fanotify: %v", err)
	}
	b := &blockedFile{events: os.NewFile(uintptr(fd), "fanotify"), waits: make(chan struct{})}
	if err := unix.FanotifyMark(fd, unix.FAN_MARK_ADD, unix.FAN_ACCESS_PERM, unix.AT_FDCWD, path); err != nil {
		t.Fatalf("fanotify: %s: %v", path, err)
	}
	go b.hold()
	return b
}

func (b *blockedFile) hold() {
	buf := make([]byte, 4096)
	for {
		n, err := b.events.Read(buf)
		if err != nil {
			return
		}
		const size, fdAt = 24, 16 // struct fanotify_event_metadata, and its member fd
		b.mu.Lock()
		for event := buf[:n]; len(event) >= size; event = event[binary.NativeEndian.Uint32(event):] {
			if b.held = append(b.held, int32(binary.NativeEndian.Uint32(event[fdAt:]))); len(b.held) == 1 && b.most == 0 {
				close(b.waits)
			}
			b.most = max(b.most, len(b.held))
		}
		b.mu.Unlock()
	}
}

// release lets all reads go on, and no longer holds up any. It gives how many waited at the same time.
func (b *blockedFile) release(t testing.TB) int {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, fd := range b.held {
		_ = unix.Close(int(fd))
	}
	if err := b.events.Close(); err != nil { // which allows what waits
		t.Error(err)
	}
	return b.most
}

const (
	// blockedFor is how long a port's state does not answer.
	blockedFor = 5 * time.Second
	// readWithin is the time in which nri-rdma reads the state of each port anew.
	readWithin = 20 * time.Second
)

// blocked compares the creation of containers while a port's state blocks with that of as many while it does not.
func (s *setting) blocked(t testing.TB) result {
	const rounds, count = 5, 1000
	ours := s.nriRDMA(t, withoutIPCLock)
	createAll := func() (took []time.Duration) {
		for _, o := range []order{s.plain, s.holding, s.asking} {
			took = append(took, side{ours, o}.batch(t, count/3)...)
		}
		slices.Sort(took)
		return took
	}
	createAll()
	var measured []pair
	for range rounds {
		free := createAll()
		state := block(t, filepath.Join(s.root, "sys/class/infiniband/mlx5_0/ports/1/state"))
		select {
		case <-state.waits:
		case <-time.After(readWithin):
			t.Fatalf("nobody has read the port's state within %s", readWithin)
		}
		answers := time.After(blockedFor)
		measured = append(measured, pair{ours: createAll(), theirs: free})
		select {
		case <-answers:
			t.Errorf("%d containers took longer than %s", count, blockedFor)
		default:
			<-answers
		}
		if waiting := state.release(t); waiting != 1 {
			t.Errorf("%d reads of the port's state waited at the same time, want 1", waiting)
		}
	}
	r := result{what: "a port's state blocks for 5 s", against: "it answers"}
	return r.quantile(measured, "p99", .99, 2)
}
