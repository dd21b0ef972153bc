// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// readFilters determines which interfaces of a network namespace filter strictly. /proc/sys shows the settings of the
// reader's namespace, so a thread of this program temporarily enters the process's namespace. Without permission to
// enter the namespace, Strict stays false.
func (c *Inside) readFilters(root string, p Process) {
	namespace, err := os.Open(p.File(root, "ns/net"))
	if err != nil {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread exits with this function, unless it is the main thread
		own, err := os.Open("/proc/thread-self/ns/net")
		if err == nil && unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET) == nil {
			c.setStrict(filepath.Join(root, "proc/sys/net/ipv4/conf"))
			_ = unix.Setns(int(own.Fd()), unix.CLONE_NEWNET) // returning requires no further permission
		}
		_ = own.Close() // opened only for reading
	}()
	<-done
	_ = namespace.Close() // opened only for reading
}

// setStrict reads the settings in a directory. For each interface, the greater of its own setting and the setting for
// all interfaces applies: 0 is off, 1 is strict, and 2 is loose.
func (c *Inside) setStrict(dir string) {
	setting := func(name string) string {
		text, _ := os.ReadFile(filepath.Join(dir, name, "rp_filter")) // the file is gone
		return string(text)
	}
	all := setting("all")
	for i := range c.Links {
		c.Links[i].Strict = max(all, setting(c.Links[i].Name)) == "1\n"
	}
}
