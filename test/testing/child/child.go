// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package child starts processes that end when the process that started them is killed. A child that reads until the
// end of its standard input does that by itself, and so do its own children.
package child

import (
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// thread is the one that starts all children, and never ends: the kernel takes the end of the thread that started a
// child for the end of the parent.
var thread = sync.OnceValue(func() chan<- func() {
	starts := make(chan func())
	go func() {
		runtime.LockOSThread()
		for start := range starts {
			start()
		}
	}()
	return starts
})

// Start starts a command. The kernel kills it, but not its own children, once this process has ended.
func Start(command *exec.Cmd) error {
	if command.SysProcAttr == nil {
		command.SysProcAttr = &syscall.SysProcAttr{}
	}
	command.SysProcAttr.Pdeathsig = syscall.SIGKILL
	started := make(chan error)
	thread() <- func() { started <- command.Start() }
	return <-started
}
