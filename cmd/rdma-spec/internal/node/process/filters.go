// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// readFilters reads which interfaces of a network namespace filter strictly. /proc/sys shows the settings of the
// reader's namespace: a thread of this program enters the process's, and returns. Without the right to do that, none is
// known to be strict.
func (c *Inside) readFilters(root string, p Process) {
	namespace, err := os.Open(p.File(root, "ns/net"))
	if err != nil {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: the thread ends with this function, unless it is the program's first one
		own, err := os.Open("/proc/thread-self/ns/net")
		if err == nil && unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET) == nil {
			c.setStrict(filepath.Join(root, "proc/sys/net/ipv4/conf"))
			_ = unix.Setns(int(own.Fd()), unix.CLONE_NEWNET) // the way back needs no other right
		}
		_ = own.Close() // it was only read
	}()
	<-done
	_ = namespace.Close() // it was only read
}

// setStrict reads the settings in a directory. Of that for all interfaces and that of one, the greater counts: 0 is
// off, 1 strict, 2 loose.
func (c *Inside) setStrict(dir string) {
	setting := func(name string) string {
		text, _ := os.ReadFile(filepath.Join(dir, name, "rp_filter")) // it is gone
		return string(text)
	}
	all := setting("all")
	for i := range c.Links {
		c.Links[i].Strict = max(all, setting(c.Links[i].Name)) == "1\n"
	}
}
